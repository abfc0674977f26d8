"""A request, frozen when it is accepted: what was asked, in which context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from protolink._core.records import Inference, ToolRequest, Work
from protolink._json import render
from protolink._record import command
from protolink._text import encodable
from protolink._values import Reader, new_id
from protolink.context import RunBudget, RunContext
from protolink.message import Message, Part
from protolink.task import Task, TaskState, merged_context

__all__ = ["Request", "prompt_request", "request_for", "tool_request"]


@command
class Request:
    """What a run starts from."""

    task: dict[str, Any]
    """The submitted task as JSON."""

    work: tuple[Work, ...]
    context: RunContext


def request_for(
    subject: str | Task | Message,
    *,
    session_id: str | None = None,
    budget: RunBudget | None = None,
    context: RunContext | None = None,
    max_attempts: int = 1,
) -> Request:
    """Freeze a prompt, a message or a task. Raises `ValueError` for one that asks for nothing or contradicts itself."""
    if isinstance(subject, str):
        return prompt_request(encodable(subject), merged_context(context, session_id, budget))
    if isinstance(subject, Message):
        subject = Task(messages=[subject])
    if not isinstance(subject, Task):
        raise TypeError(f"a run starts from a prompt, a message or a task, not {type(subject).__name__}")
    merged = merged_context(_context(subject, context), session_id, budget)
    stored, _ = render(subject.to_dict())
    return Request(cast("dict[str, Any]", stored), _work(subject, max_attempts), merged)


def prompt_request(prompt: str, context: RunContext) -> Request:
    """Freeze one prompt in a context of its own."""
    part = {"type": "infer", "content": {"prompt": prompt}}
    return Request(_opened(part, context.created_at), (Inference(prompt=prompt),), context)


def tool_request(name: str, arguments: Mapping[str, Any], context: RunContext | None = None) -> Request:
    """Freeze one call of a tool; the arguments may hold Python values."""
    call_id = new_id()
    shown, _ = render(arguments)
    merged = merged_context(context, None, None)
    part = {"type": "tool_call", "content": {"tool_name": name, "args": shown, "call_id": call_id}}
    work = ToolRequest(tool=name, args=dict(arguments), call_id=call_id)
    return Request(_opened(part, merged.created_at), (work,), merged)


def _opened(part: dict[str, Any], now: str) -> dict[str, Any]:
    """A task of one part, as `Task.to_dict` would give it; built directly because every run starts here."""
    task_id = new_id()
    return {
        "id": task_id,
        "state": TaskState.SUBMITTED.value,
        "messages": [{"id": f"{task_id}.1", "role": "user", "parts": [part], "timestamp": now}],
        "artifacts": [],
        "metadata": {},
        "flow_state": {},
        "created_at": now,
    }


def _context(task: Task, context: RunContext | None) -> RunContext | None:
    """The given context, else the one that the task carries. Both together have to be of one run."""
    if "run_context" not in task.metadata:
        return context
    carried = RunContext.from_task(task)
    if context is not None and context.run_id != carried.run_id:
        raise ValueError("the task carries the context of another run; give the context once")
    return context or carried


def _work(task: Task, max_attempts: int) -> tuple[Work, ...]:
    """What the messages of a user ask for, in order."""
    if task.is_terminal:
        raise ValueError(f"task {task.id!r} is {task.state.value}; a task runs once")
    parts = (part for message in task.messages if message.role != "agent" for part in message.parts)
    work = tuple(asked for part in parts if (asked := _asked(part, max_attempts)) is not None)
    if not work:
        raise ValueError(f"task {task.id!r} asks for nothing: it has no text, infer or tool_call part")
    return work


def _asked(part: Part, max_attempts: int) -> Work | None:
    content: Any = part.content
    match part.type:
        case "text":
            return Inference(prompt=_prompt(content))
        case "infer":
            read = Reader(content, "an infer part")
            schema = read.optional_mapping("output_schema")
            return Inference(prompt=_prompt(read.any("prompt")), output_schema=schema, max_attempts=max_attempts)
        case "tool_call":
            read = Reader(content, "a tool_call part")
            call_id = read.optional_text("call_id") or new_id()
            return ToolRequest(tool=read.text("tool_name"), args=read.any("args", dict), call_id=call_id)
        case _:
            return None


def _prompt(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a prompt is a text, not {type(value).__name__}")
    return encodable(value)
