"""Redaction: what leaves a run through a handle holds no secret; what the run itself uses is unchanged."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from protolink import Agent, RedactionPolicy, ToolRejectedError
from protolink.testing import call
from tests.support import ListeningLLM, model

SECRET = "sk-s3cret/VALUE+42"
POLICY = RedactionPolicy(sensitive_values=[SECRET])


def echo(text: str) -> dict[str, Any]:
    """Give a text back, in several places."""
    return {"text": text, "list": [text], "inner": {"note": f"it is {text}!"}, text: "as a key"}


def fail(text: str) -> None:
    """Fail with a text."""
    raise ValueError(f"cannot use {text}")


def reject(text: str) -> None:
    """Refuse a text."""
    raise ToolRejectedError(f"{text} is wrong", details={"given": text}, suggestion=f"not {text}")


def _agent(*script: Any, **options: Any) -> Agent:
    return Agent(name="a", tools=[echo, fail, reject], llm=ListeningLLM(*script, **options), expose_tool_results=True)


async def _everything(agent: Agent, prompt: str = "go", policy: RedactionPolicy | None = POLICY) -> str:
    handle = agent.start_run(prompt, redaction_policy=policy)
    events = [event.to_dict() async for event in handle.events()]
    chunks = [chunk async for chunk in handle.chunks()]
    evidence = [record.to_dict() async for record in handle.tool_evidence()]
    result = await handle.result()
    shown = [events, "".join(chunks), chunks, evidence, result.error, result.report.to_dict()]
    shown += [[record.to_dict() for record in result.tool_evidence]]
    return json.dumps(shown)


@pytest.mark.parametrize(
    "script",
    [
        [call("echo", text=SECRET)],
        [call("fail", text=SECRET)],
        [call("reject", text=SECRET)],
        [call("missing", text=SECRET)],
        [f"the answer is {SECRET}"],
        [{"type": "final", "content": {"token_value": SECRET}}],
        [ConnectionError(f"401 for {SECRET}")],
        [call(SECRET)],
    ],
    ids=["result", "error", "rejection", "unknown tool", "answer", "data", "provider error", "tool name"],
)
@pytest.mark.parametrize("fragment_size", [None, 1, 7])
async def test_a_secret_is_in_no_event_fragment_evidence_error_or_report(
    script: Any, fragment_size: int | None
) -> None:
    """Wherever it entered the run, and however its reply was cut into pieces."""
    shown = await _everything(_agent(*script, fragment_size=fragment_size))

    assert SECRET not in shown
    assert json.dumps(SECRET)[1:-1] not in shown
    assert "[redacted]" in shown


async def test_without_a_policy_nothing_is_changed() -> None:
    """The check above could otherwise not fail."""
    assert SECRET in await _everything(_agent(call("echo", text=SECRET)), policy=None)


async def test_the_run_itself_sees_the_real_values() -> None:
    """Redaction is for what leaves; the tool and the model work with the secret."""
    agent = _agent(call("echo", text=SECRET))
    await _everything(agent)

    llm = agent.llm
    assert isinstance(llm, ListeningLLM)
    assert SECRET in llm.everything


@pytest.mark.parametrize("size", range(1, 25))
async def test_fragments_do_not_give_a_secret_away_at_any_cut(size: int) -> None:
    """Joined, the pieces are the redacted text."""
    text = f"before {SECRET} after {SECRET[:5]} end"
    handle = Agent(name="a", llm=model(text, fragment_size=size)).start_run("go", redaction_policy=POLICY)

    joined = "".join([chunk async for chunk in handle.chunks()])

    assert joined == f"before [redacted] after {SECRET[:5]} end"


async def test_encoded_spellings_are_found_as_well() -> None:
    """URL, JSON and base64."""
    from urllib.parse import quote

    encoded = [quote(SECRET, safe=""), base64.b64encode(SECRET.encode()).decode(), json.dumps(SECRET)[1:-1]]

    shown = await _everything(_agent(*(call("echo", text=text) for text in encoded)))

    assert not any(text in shown for text in encoded)


async def test_sensitive_keys_hide_what_stands_beside_them() -> None:
    """Whatever the value is."""

    def login() -> dict[str, Any]:
        return {"user": "alice", "password": ["a", "b"], "Api-Key": 42, "input_tokens": 7}

    handle = Agent(name="a", tools=[login], llm=model(call("login")), expose_tool_results=True).start_run(
        "go", redaction_policy=RedactionPolicy()
    )
    result = await handle.result()

    shown = result.tool_evidence[0].result
    assert shown == {"user": "alice", "password": "[redacted]", "Api-Key": "[redacted]", "input_tokens": 7}


async def test_the_secret_in_a_prompt_is_not_in_the_report() -> None:
    """A user may have typed it."""
    assert SECRET not in await _everything(_agent("answer"), f"my key is {SECRET}")


async def test_redacted_events_keep_their_numbers_and_ids() -> None:
    """Another reader without redaction can be compared with it, event by event."""
    agent = _agent(call("echo", text=SECRET), "the answer", fragment_size=5)
    handle = agent.start_run("go", redaction_policy=POLICY)

    events = [event async for event in handle.events()]

    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert events[-1].final
    rest = [event async for event in handle.events(after=4)]
    assert [event.event_id for event in rest] == [event.event_id for event in events[4:]]


async def test_the_final_task_holds_the_answer_unredacted_only_where_it_was_asked_for() -> None:
    """`result.task` is what the application asked for; its error, which is shown, is redacted."""
    handle = _agent(call("fail", text=SECRET)).start_run("go", redaction_policy=POLICY)
    result = await handle.result()

    assert SECRET not in str(result.task.metadata.get("error"))
    assert SECRET not in str(result.error)
