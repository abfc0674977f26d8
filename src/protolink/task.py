"""A task: what was asked, what came of it, and in which state it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self

from protolink._json import is_mapping, require_json
from protolink._record import new_dict, new_list
from protolink._values import Reader, new_id, now_text
from protolink.context import NO_LIMITS, RunBudget, RunContext
from protolink.errors import TaskExecutionError
from protolink.message import Artifact, Message, Part

__all__ = ["Task", "TaskState", "merged_context"]


class TaskState(Enum):
    """Where a task stands. COMPLETED, CANCELED and FAILED are ends."""

    SUBMITTED = "submitted"
    WORKING = "working"
    INPUT_REQUIRED = "input-required"
    COMPLETED = "completed"
    CANCELED = "canceled"
    FAILED = "failed"
    UNKNOWN = "unknown"


_TERMINAL = frozenset({TaskState.COMPLETED, TaskState.CANCELED, TaskState.FAILED})


@dataclass(slots=True)
class Task:
    """Messages in, messages and artifacts out.

    A task that a run gives back is a snapshot: changing it changes no run.
    """

    id: str = field(default_factory=new_id)
    state: TaskState = TaskState.SUBMITTED
    messages: list[Message] = field(default_factory=new_list)
    artifacts: list[Artifact] = field(default_factory=new_list)
    metadata: dict[str, Any] = field(default_factory=new_dict)
    flow_state: dict[str, Any] = field(default_factory=new_dict)
    created_at: str = field(default_factory=now_text)

    @classmethod
    def create(cls, message: Message | str) -> Self:
        """A task that asks for inference on one message."""
        return cls(messages=[Message.user(message) if isinstance(message, str) else message])

    @classmethod
    def create_infer(
        cls,
        prompt: str | None = None,
        *,
        user: str | None = None,
        output_schema: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        session_id: str | None = None,
        budget: RunBudget | None = None,
        context: RunContext | None = None,
    ) -> Self:
        """A task that asks for inference. `user` is another spelling of `prompt`.

        Raises `ValueError` when neither or both are given, or when `session_id` or `budget` contradict `context`.
        """
        part = cls.infer(prompt=prompt, user=user, output_schema=output_schema, metadata=metadata)
        return cls(messages=[Message(parts=[part])])._with_context(session_id, budget, context)

    @classmethod
    def create_tool_call(
        cls,
        tool_name: str,
        args: Mapping[str, Any] | None = None,
        *,
        call_id: str | None = None,
        session_id: str | None = None,
        budget: RunBudget | None = None,
        context: RunContext | None = None,
    ) -> Self:
        """A task that calls one declared tool, without a model."""
        if not isinstance(tool_name, str) or not tool_name:
            raise ValueError("tool_name must be a non-empty text")
        content = {"tool_name": tool_name, "args": dict(args or {}), "call_id": call_id or new_id()}
        return cls(messages=[Message(parts=[Part("tool_call", content)])])._with_context(session_id, budget, context)

    @staticmethod
    def infer(
        *,
        prompt: str | None = None,
        user: str | None = None,
        output_schema: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Part:
        """A part that asks for inference, to be added to a message."""
        if (prompt is None) == (user is None):
            raise ValueError("give the prompt once, as prompt= or user=")
        text = prompt if prompt is not None else user
        if not isinstance(text, str):
            raise ValueError(f"a prompt is a text, not {type(text).__name__}")
        content: dict[str, Any] = {"prompt": text}
        if output_schema is not None:
            content["output_schema"] = require_json(dict(output_schema), "output_schema")
        if metadata is not None:
            content["metadata"] = require_json(dict(metadata), "metadata")
        return Part("infer", content)

    def _with_context(self, session_id: str | None, budget: RunBudget | None, context: RunContext | None) -> Self:
        if context is None and session_id is None and budget is None:
            context = RunContext()
        merged_context(context, session_id, budget).attach_to_task(self)
        return self

    @property
    def is_terminal(self) -> bool:
        """Whether the task has ended for good."""
        return self.state in _TERMINAL

    def get_output(self, default: Any = None) -> Any:
        """The last answer or tool result, or `default` where there is none."""
        for message in reversed(self.messages):
            for part in reversed(message.parts):
                if part.type == "infer_output":
                    return part.content
                if part.type == "tool_output" and is_mapping(part.content):
                    return part.content.get("result")
        return default

    def raise_for_status(self) -> Self:
        """Give the task back, unless it failed or was canceled: then raise `TaskExecutionError`."""
        if self.state in (TaskState.FAILED, TaskState.CANCELED):
            error = self.metadata.get("error")
            reason = error.get("message") if is_mapping(error) else self.metadata.get("cancel_reason")
            raise TaskExecutionError(
                f"task {self.id!r} is {self.state.value}: {reason or 'no reason given'}", task=self
            )
        return self

    def start(self) -> Self:
        """Mark the task as being worked on."""
        return self._become(TaskState.WORKING)

    def complete(self, output: Message | str | None = None) -> Self:
        """Mark the task as completed, with an answer where one is given."""
        if isinstance(output, str):
            output = Message(role="agent", parts=[Part("infer_output", output)])
        if output is not None:
            self.messages.append(output)
        return self._become(TaskState.COMPLETED)

    def fail(self, message: str, *, code: str = "task_failed") -> Self:
        """Mark the task as failed, with the reason."""
        self.metadata["error"] = {"code": code, "message": message}
        return self._become(TaskState.FAILED)

    def cancel(self, reason: str | None = None) -> Self:
        """Mark the task as canceled, with the reason."""
        self.metadata["cancel_reason"] = reason
        return self._become(TaskState.CANCELED)

    def _become(self, state: TaskState) -> Self:
        if self.is_terminal:
            raise ValueError(f"task {self.id!r} is {self.state.value} and cannot become {state.value}")
        self.state = state
        return self

    def to_dict(self) -> dict[str, Any]:
        """Every field by its name, as JSON."""
        return {
            "id": self.id,
            "state": self.state.value,
            "messages": [message.to_dict() for message in self.messages],
            "artifacts": [artifact.to_dict() for artifact in self.artifacts],
            "metadata": dict(self.metadata),
            "flow_state": dict(self.flow_state),
            "created_at": self.created_at,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a task back. Unknown keys are ignored; a state this release does not know is UNKNOWN."""
        read = Reader(data, "Task")
        state = read.text("state", TaskState.SUBMITTED.value)
        return cls(
            id=read.text("id"),
            state=TaskState(state) if state in TaskState._value2member_map_ else TaskState.UNKNOWN,
            messages=[Message.from_dict(message) for message in read.items("messages")],
            artifacts=[Artifact.from_dict(artifact) for artifact in read.items("artifacts")],
            metadata=read.mapping("metadata"),
            flow_state=read.mapping("flow_state"),
            created_at=read.text("created_at", now_text),
        )


def merged_context(context: RunContext | None, session_id: str | None, budget: RunBudget | None) -> RunContext:
    """One context from a given one and separate settings; `ValueError` where they contradict each other."""
    if context is None:
        return RunContext(session_id=session_id, budget=NO_LIMITS if budget is None else budget)
    merged = context.copy()
    if session_id is not None:
        if merged.session_id not in (None, session_id):
            raise ValueError("session_id differs from the context's session_id; give it once")
        merged.session_id = session_id
    if budget is not None:
        if merged.budget not in (RunBudget(), budget):
            raise ValueError("budget differs from the context's budget; give it once")
        merged.budget = budget
    return merged
