"""What a turn says about the use of tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from protolink._callables import is_async
from protolink.errors import ConfigurationError

__all__ = ["AUTO", "NONE", "REQUIRED", "ToolChoice", "check_tool_choice"]

ToolChoice = str | Callable[[int], str]
"""`"auto"`, `"required"`, `"none"`, the name of one tool, or a function of the step (from 1) that gives one of them."""

AUTO: Final = "auto"
REQUIRED: Final = "required"
NONE: Final = "none"


def check_tool_choice(choice: Any) -> ToolChoice:
    """The choice as it was given. Raises `ConfigurationError` for what cannot be one."""
    if isinstance(choice, str) and choice.strip():
        return choice
    if callable(choice) and not is_async(choice):
        return cast("Callable[[int], str]", choice)
    raise ConfigurationError(
        "tool_choice is 'auto', 'required', 'none', the name of a tool, or a plain function of the step; "
        f"not {'a coroutine function' if callable(choice) else repr(choice)[:100]}"
    )
