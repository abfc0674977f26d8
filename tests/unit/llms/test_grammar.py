"""Schemas as the embedded engine can make a grammar of them."""

from __future__ import annotations

from typing import Any

import pytest

from protolink.llms.grammar import grammar_schema


@pytest.mark.parametrize(
    "keyword",
    [
        {"pattern": "abc"},
        {"pattern": "^a|b$"},
        {"pattern": "^(?=a)b$"},
        {"pattern": r"^\w+$"},
        {"pattern": "^a{1000000}$"},
        {"minLength": 3_000},
        {"maxItems": 50_000},
        {"maximum": 10**30},
    ],
)
def test_what_the_engine_refuses_is_left_out(keyword: dict[str, Any]) -> None:
    """One such keyword would cost every turn; validation looks at it all the same."""
    assert grammar_schema({"properties": {"v": {"type": "string", **keyword}}}) == {
        "properties": {"v": {"type": "string"}}
    }


@pytest.mark.parametrize(
    "keyword",
    [{"pattern": "^[a-z]{3}$"}, {"minLength": 3}, {"maximum": 4}, {"enum": ["a"]}, {"const": {"pattern": "abc"}}],
)
def test_what_it_understands_stays(keyword: dict[str, Any]) -> None:
    """The grammar says as much as it can."""
    schema = {"anyOf": [{"type": "object", "properties": {"pattern": keyword}}], "$defs": {"maximum": keyword}}

    assert grammar_schema(schema) == schema


def test_a_schema_that_allows_everything_is_an_empty_one() -> None:
    """The engine takes objects alone."""
    assert grammar_schema({"properties": {"v": True}, "additionalProperties": False}) == {
        "properties": {"v": {}},
        "additionalProperties": False,
    }
