"""The tool that every workload calls, and the same work written by hand: coroutines and `json`, nothing else.

A floor makes the calls that a run makes (a model that answers in JSON, a tool, a conversation that grows by
messages) and does nothing of what the runtime is for: no schema, no policy, no record, no event, no limit.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

__all__ = ["ANSWER", "bare_commits", "bare_loop", "bare_turn", "lookup", "script"]

ANSWER = "done"


def lookup(number: int) -> str:
    """Look up a number."""
    return f"entry {number}"


def script(calls: int) -> Callable[[int], str]:
    """What a model says in each step, counted from 1: so many calls with arguments of their own, then the answer."""

    def say(step: int) -> str:
        if step > calls:
            return ANSWER
        return json.dumps({"type": "tool_call", "tool": "lookup", "args": {"number": step}})

    return say


async def _reply() -> str:
    return ANSWER


async def bare_turn() -> str:
    """One answer, kept as a message that was JSON once."""
    messages: list[dict[str, str]] = []
    text = await _reply()
    messages.append(json.loads(json.dumps({"role": "assistant", "content": text})))
    return messages[-1]["content"]


async def bare_loop(model: Callable[[int], Awaitable[str]], calls: int) -> list[str]:
    """So many tool calls, then an answer; `model` is given the number of the step, from 1."""
    messages: list[str] = []
    for step in range(1, calls + 1):
        action = json.loads(await model(step))
        result = lookup(**action["args"])
        messages.append(json.dumps({"type": "tool_result", "tool": action["tool"], "result": result}))
    messages.append(json.dumps({"role": "assistant", "content": await model(calls + 1)}))
    return messages


def bare_commits(path: Path, calls: int) -> None:
    """Two synced commits of a small row for each call."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS steps (number INTEGER PRIMARY KEY, body TEXT)")
    for _ in range(2 * calls):
        connection.execute("INSERT INTO steps (body) VALUES (?)", ("x" * 300,))
    connection.close()
