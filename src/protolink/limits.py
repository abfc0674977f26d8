"""How many children an agent may have at work, and how deep."""

from __future__ import annotations

from dataclasses import dataclass

from protolink.errors import ConfigurationError

__all__ = ["SubagentLimits"]


@dataclass(frozen=True, slots=True)
class SubagentLimits:
    """Bounds on delegated work. Raises `ConfigurationError` for a limit that is none."""

    max_children: int = 8
    """Child runs that one run of the parent may start."""

    max_concurrency: int = 4
    """Child runs of one parent run that are at work at a time; the others wait."""

    max_depth: int = 1
    """Generations below the root. A child's own limit can only narrow what its ancestors leave."""

    background: bool = False
    """Whether the model may start workers beside its turns (`spawn_subagent`, `wait_subagent`, `cancel_subagent`)."""

    def __post_init__(self) -> None:
        for name, least in (("max_children", 0), ("max_concurrency", 1), ("max_depth", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigurationError(f"{name} is a whole number of at least {least}")
        if not isinstance(self.background, bool):
            raise ConfigurationError("background is True or False")
