"""Asking the person: a tool whose result is what somebody answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from protolink._json import is_list
from protolink.errors import ToolDefinitionError
from protolink.tools.arguments import ArgumentsError, Problem, parse_object
from protolink.tools.tool import BaseTool

__all__ = ["MAX_CHOICES", "QuestionTool", "ask_user"]

MAX_CHOICES: Final = 50

_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "question": {"type": "string", "minLength": 1, "description": "The question, complete in itself."},
        "choices": {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "maxItems": MAX_CHOICES,
            "description": "Answers to offer; the person may answer something else.",
        },
    },
    "required": ["question"],
    "additionalProperties": False,
}


class QuestionArguments:
    """Accepts a `question` that is not blank, with or without `choices`."""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema; shared."""
        return dict(_SCHEMA)

    def validate(self, text: str) -> dict[str, Any]:
        """Check a JSON object and give its question and choices. Raises `ArgumentsError`."""
        arguments = parse_object(text)
        known = ("question", "choices")
        problems = [Problem(key[:100], "Extra inputs are not permitted") for key in arguments if key not in known]
        question, choices = arguments.get("question"), arguments.get("choices")
        if not isinstance(question, str):
            problems.append(Problem("question", "Input should be a valid string"))
        elif not question.strip():
            problems.append(Problem("question", "The question must not be blank"))
        if "choices" in arguments and not _are_choices(choices):
            problems.append(Problem("choices", f"Input should be at most {MAX_CHOICES} texts that are not blank"))
        if problems:
            raise ArgumentsError(problems)
        return dict(arguments)


def _are_choices(value: object) -> bool:
    if not is_list(value) or len(value) > MAX_CHOICES:
        return False
    return all(isinstance(choice, str) and choice.strip() for choice in value)


class QuestionTool(BaseTool):
    """A question to whoever the run works for. It has no code: the answer that is recorded is its result.

    A durable run pauses with an interruption of kind `input` until `resume_task(..., request_id=..., answer=...)`;
    a run that is not durable fails with the code `input_required`.
    """

    def __init__(self, *, name: str = "ask_user", description: str | None = None) -> None:
        super().__init__(
            name=name,
            description=description or "Ask the person you work for, and wait for the answer.",
            arguments=QuestionArguments(),
            capabilities=("user.ask",),
            read_only=True,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: only a run can wait for a person."""
        raise ToolDefinitionError(
            f"{self.name!r} cannot be called; use the agent's call_tool or let its model select it"
        )


ask_user: Final = QuestionTool()
"""The tool with which a model asks the person it works for."""
