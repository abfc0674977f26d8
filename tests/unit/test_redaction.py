"""Secrets do not leave with what a run shows."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterable
from itertools import pairwise
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protolink import _json
from protolink.redaction import RedactionPolicy

KEY = "sk-live/EXAMPLE 0000"
policy = RedactionPolicy(sensitive_values={KEY, 'pa"ss\\wörd'})

# Few letters, so that overlaps, repetitions and near misses are common.
letters = st.text("ab", max_size=40)
secrets = st.sets(st.text("ab", min_size=4, max_size=9), min_size=1, max_size=3)


@pytest.mark.parametrize(
    "spelling",
    [
        KEY,
        quote(KEY),
        quote(KEY, safe=""),
        quote_plus(KEY),
        quote(KEY, safe="").replace("%2F", "%2f"),
        base64.b64encode(KEY.encode()).decode(),
        base64.urlsafe_b64encode(KEY.encode()).decode().rstrip("="),
        'pa"ss\\wörd',
        json.dumps('pa"ss\\wörd')[1:-1],
        json.dumps('pa"ss\\wörd', ensure_ascii=False)[1:-1],
        quote('pa"ss\\wörd'),
    ],
)
def test_a_value_is_found_in_each_of_its_spellings(spelling: str) -> None:
    """A key in a URL, in a JSON body or in a header is the same key; the rest of the text survives."""
    assert policy.text(f"403 for <{spelling}>, twice <{spelling}>.") == "403 for <[redacted]>, twice <[redacted]>."


@given(st.binary(max_size=7), st.binary(max_size=7))
def test_a_value_is_found_inside_a_longer_base64_text(before: bytes, after: bytes) -> None:
    """Basic authentication encodes the password together with a name, which shifts its digits."""
    encoded = base64.b64encode(before + KEY.encode() + after).decode()

    remainder = policy.text(encoded).replace("[redacted]", "")

    assert len(remainder) <= len(encoded) - 24


@given(secrets, letters)
def test_no_text_keeps_a_value(values: set[str], text: str) -> None:
    """Overlapping values are one occurrence, so no piece of either is left beside the replacement."""
    redacted = RedactionPolicy(sensitive_values=values).text(text)

    assert not any(value in redacted for value in values)
    assert ("[redacted]" in redacted) == any(value in text for value in values)


def test_overlapping_values_leave_no_remainder() -> None:
    """Replacing the first of two would show the end of the second."""
    assert RedactionPolicy(sensitive_values=["abcdef", "defghi"]).text("xabcdefghix") == "x[redacted]x"


def test_the_value_beside_a_sensitive_key_is_hidden_whole() -> None:
    """Case and separators differ between services; a whole name must match, not a part of it."""
    usage: _json.JSON = {"input_tokens": 3, "max_tokens": 4, "token_count": 5, "tokens": [6]}
    headers: _json.JSON = {"X-API-Key": "k", "apiKey": {"a": 1}, "AUTHORIZATION": ["b"], "Set-Cookie": None}

    assert policy.value([usage, headers]) == [
        usage,
        dict.fromkeys(("X-API-Key", "apiKey", "AUTHORIZATION", "Set-Cookie"), "[redacted]"),
    ]


def test_values_are_found_at_any_depth_and_in_keys() -> None:
    """An object keyed by a secret loses the secret but no entry."""
    value: _json.JSON = {KEY: 1, "[redacted]": 2, "list": [{"note": f"key {KEY}"}]}

    redacted = policy.value(value)

    assert redacted == {"[redacted] (2)": 1, "[redacted]": 2, "list": [{"note": "key [redacted]"}]}


def test_a_number_that_is_a_secret_is_replaced() -> None:
    """A PIN is the same secret as a number and as a text."""
    pin = RedactionPolicy(sensitive_values=["84213377"])

    assert pin.value({"pin": 84213377, "n": 84213378, "yes": True}) == {"pin": "[redacted]", "n": 84213378, "yes": True}


def test_the_original_stays_as_it_is() -> None:
    """A view is redacted; the record it was made from is not."""
    inner: _json.JSON = {"password": "x", "note": KEY}
    value: _json.JSON = {"a": [inner]}

    policy.value(value)

    assert value == {"a": [{"password": "x", "note": KEY}]}


@given(secrets, letters, st.lists(st.integers(0, 40), max_size=8))
def test_fragments_are_redacted_like_the_whole(values: set[str], text: str, cuts: list[int]) -> None:
    """Where a stream happens to be cut must not decide whether a secret is seen."""
    redaction = RedactionPolicy(sensitive_values=values)
    stream = redaction.stream()
    shown = ""

    for start, end in pairwise([0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]):
        shown += stream.feed(text[start:end])
        assert not any(value in shown for value in values)

    assert shown + stream.close() == redaction.text(text)


def test_a_stream_holds_back_only_what_may_become_a_secret() -> None:
    """A reader sees text as it comes, apart from a beginning that is not decided yet."""
    stream = RedactionPolicy(sensitive_values=["secret-1"]).stream()

    assert [stream.feed(part) for part in ("Hello se", "cond se", "cret-", "1 end")] == [
        "Hello ",
        "second ",
        "",
        "[redacted] end",
    ]
    assert stream.close() == ""


def test_a_stream_of_one_repeated_value_is_held_briefly() -> None:
    """A text that overlaps with itself forever is replaced at once and never accumulates."""
    stream = RedactionPolicy(sensitive_values=["aaaa"]).stream()

    assert "".join(stream.feed("a") for _ in range(1000)) == "[redacted]"
    assert "holding 3 characters" in repr(stream)


def test_a_closed_stream_takes_nothing_more() -> None:
    """What comes after the end would be shown without its beginning."""
    stream = policy.stream()
    stream.close()

    with pytest.raises(RuntimeError, match="closed"):
        stream.feed("x")


@pytest.mark.parametrize(
    ("values", "keys", "error"),
    [
        ([""], [], ValueError),
        (["   "], [], ValueError),
        (["abc"], [], ValueError),
        (["abcd"], [" "], ValueError),
        ("abcd", [], TypeError),
        ([1234], [], TypeError),
        (["abcd"], "token", TypeError),
    ],
)
def test_a_value_that_would_match_everything_is_refused(
    values: Iterable[str], keys: Iterable[str], error: type[Exception]
) -> None:
    """An empty setting in the environment must not turn every text into replacements, nor into nothing."""
    with pytest.raises(error) as caught:
        RedactionPolicy(sensitive_values=values, sensitive_keys=keys)

    assert "abc" not in str(caught.value)


def test_a_replacement_that_is_a_secret_is_refused() -> None:
    """It would put the value where it was not before."""
    with pytest.raises(ValueError, match="replacement"):
        RedactionPolicy(sensitive_values=["hidden"], replacement="<hidden>")


def test_a_policy_does_not_show_its_values() -> None:
    """Policies end up in logs and tracebacks."""
    assert KEY not in repr(policy)
    assert "2 sensitive values" in repr(policy)


def test_policies_of_the_same_settings_are_equal() -> None:
    """A policy is a value: any collection will do, and it can be replaced in part."""
    listed = RedactionPolicy(sensitive_values=[KEY, 'pa"ss\\wörd'])

    assert listed == policy
    assert hash(listed) == hash(policy)
    assert dataclasses.replace(policy, replacement="***").text(KEY) == "***"


def test_a_policy_without_values_still_knows_its_keys() -> None:
    """The default protects the usual fields and changes no text."""
    default = RedactionPolicy()

    assert default.text(KEY) == KEY
    assert default.value({"client_secret": "x", "text": KEY}) == {"client_secret": "[redacted]", "text": KEY}
    assert default.stream().feed(KEY) == KEY


MASKED = [
    ('{"password":"hunter2","a":1}', '{"password":"[redacted]","a":1}'),
    ('{"Api-Key" : 42}', '{"Api-Key" : "[redacted]"}'),
    ('{"token": null, "b": "c"}', '{"token": "[redacted]", "b": "c"}'),
    ('{"secrets": [1, {"x": "]"}], "b": 2}', '{"secrets": "[redacted]", "b": 2}'),
    ('{"password": "a\\"b\\\\", "b": 2}', '{"password": "[redacted]", "b": 2}'),
    ('He said "well", and: {"password": "x"} "', 'He said "well", and: {"password": "[redacted]"} "'),
    ('{"password": "never ends', '{"password": "[redacted]"'),
    ('{"input_tokens": 3, "the password": "x"}', '{"input_tokens": 3, "the password": "x"}'),
    ('a "password" is needed', 'a "password" is needed'),
    ('say "password"', 'say "password"'),
]


@pytest.mark.parametrize(("text", "shown"), MASKED)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_sensitive_key_hides_what_stands_beside_it_in_a_text(text: str, shown: str, size: int) -> None:
    """A model writes its calls as JSON in a text, and the text comes in fragments."""
    policy = RedactionPolicy()
    stream = policy.stream()
    pieces = [stream.feed(text[start : start + size]) for start in range(0, len(text), size)]

    assert "".join([*pieces, stream.close()]) == policy.text(text) == policy.value(text) == shown


@given(text=st.text(alphabet='pP-"\\:{}[], 1', max_size=60), cuts=st.lists(st.integers(0, 60), max_size=8))
def test_keys_are_found_wherever_a_text_is_cut(text: str, cuts: list[int]) -> None:
    """Fragments are masked like the whole."""
    policy = RedactionPolicy(sensitive_keys=["p"])
    stream = policy.stream()
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [stream.feed(text[start:end]) for start, end in pairwise(places)]

    assert "".join([*pieces, stream.close()]) == policy.text(text)
