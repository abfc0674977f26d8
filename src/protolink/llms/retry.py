"""How often, and after which pauses, a lost model call is made again."""

from __future__ import annotations

import math
from dataclasses import dataclass

from protolink._environment import Environment, backoff
from protolink.errors import ConfigurationError

__all__ = ["RetryPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a call that failed with `ModelCallError(retryable=True)` is made again.

    The pauses double, from `first_delay_seconds` up to `max_delay_seconds`, and half of each is left to chance, so
    that many runs do not come back at the same moment. A provider's own wish (`retry_after`) is honoured where
    it is longer; one beyond `max_delay_seconds` is not waited for, and the call counts as failed.
    """

    max_attempts: int = 3
    """Calls of one turn and model, the first one included; 1 retries nothing."""

    first_delay_seconds: float = 0.5
    max_delay_seconds: float = 30.0

    def __post_init__(self) -> None:
        if isinstance(self.max_attempts, bool) or not isinstance(self.max_attempts, int) or self.max_attempts < 1:
            raise ConfigurationError("max_attempts is a positive whole number")
        for name in ("first_delay_seconds", "max_delay_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ConfigurationError(f"{name} is a number of seconds that is not negative")

    def delay(self, environment: Environment, attempt: int, retry_after: float | None) -> float | None:
        """The pause after the failure of call `attempt` (from 1), or None where it is not made again."""
        if attempt >= self.max_attempts:
            return None
        if retry_after is not None and retry_after > self.max_delay_seconds:
            return None
        own = backoff(environment, attempt - 1, first=self.first_delay_seconds, most=self.max_delay_seconds)
        return max(own, retry_after or 0.0)
