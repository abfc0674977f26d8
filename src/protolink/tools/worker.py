"""Worker facades: one owned child, or one of its tools, as a typed declaration."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from protolink.errors import ToolDefinitionError
from protolink.tools.arguments import Arguments, ArgumentsError, Problem, parse_object
from protolink.tools.tool import BaseTool

__all__ = ["TASK_SCHEMA", "TaskArguments", "Worker", "WorkerTool"]

TASK_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "minLength": 1, "description": "The assignment, complete in itself."},
    },
    "required": ["task"],
    "additionalProperties": False,
}


class Worker(Protocol):
    """What a facade stands for: an agent that the parent owns."""

    @property
    def name(self) -> str:
        """The worker's name."""
        ...


class TaskArguments:
    """Accepts exactly one text, `task`, that is not blank."""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema; a copy."""
        return copy.deepcopy(dict(TASK_SCHEMA))

    def validate(self, text: str) -> dict[str, Any]:
        """Check a JSON object and give `{"task": ...}`. Raises `ArgumentsError`."""
        arguments = parse_object(text)
        problems = [Problem(key[:100], "Extra inputs are not permitted") for key in arguments if key != "task"]
        task = arguments.get("task")
        if not isinstance(task, str):
            problems.append(Problem("task", "Input should be a valid string"))
        elif not task.strip():
            problems.append(Problem("task", "The assignment must not be blank"))
        if problems:
            raise ArgumentsError(problems)
        return {"task": task}


class ObjectArguments:
    """Accepts any object: the arguments of a peer's tool, whose schema only the peer knows."""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema."""
        return {"type": "object"}

    def validate(self, text: str) -> dict[str, Any]:
        """Read a JSON object. Raises `ArgumentsError`."""
        return dict(parse_object(text))


class WorkerTool(BaseTool):
    """A declaration that the runtime resolves to a delegation before anything else sees it.

    It is configuration: it belongs to the parent that registered it and to the very child that was
    registered then, and calling it executes nothing. `Agent.add_worker_tool` makes one.
    """

    def __init__(
        self,
        *,
        owner: object,
        worker: Worker,
        tool: BaseTool | None,
        name: str,
        description: str,
        examples: Iterable[Any] | None = None,
    ) -> None:
        arguments: Arguments = TaskArguments() if tool is None else tool.arguments
        super().__init__(
            name=name,
            description=description,
            arguments=arguments,
            output_schema=None if tool is None else tool.output_schema,
            examples=examples,
            read_only=tool is not None and tool.read_only,
            repeatable=tool is not None and tool.repeatable,
        )
        self.owner = owner
        self.worker = worker
        self.tool: str | None = None if tool is None else tool.name

    def to_dict(self) -> dict[str, Any]:
        """The declaration and its binding as JSON; loading it needs the child again."""
        return {
            **super().to_dict(),
            "type": "worker",
            "worker_binding": {"worker": self.worker.name, "tool": self.tool},
            "reconnect_required": True,
        }

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: a facade is configuration, and its worker runs only through the parent that registered it."""
        raise ToolDefinitionError(
            f"worker declaration {self.name!r} cannot be called; use the parent's call_tool or let its model select it"
        )
