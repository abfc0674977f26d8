"""What a scripted model can say beside text, as the JSON actions that it would say."""

from __future__ import annotations

from typing import Any

__all__ = ["call", "calls", "delegate"]

Action = dict[str, Any]


def call(tool: str, /, **args: Any) -> Action:
    """One call of a tool."""
    return {"type": "tool_call", "tool": tool, "args": args}


def calls(*actions: Action) -> list[Action]:
    """Several actions in one reply. Raises `ValueError` for none, which no model can say."""
    if not actions:
        raise ValueError("a reply with calls has at least one; write a text for a reply without")
    return list(actions)


def delegate(agent: str, prompt: str) -> Action:
    """Work that is handed to another agent."""
    return {"type": "agent_call", "agent": agent, "action": "infer", "prompt": prompt}
