"""Which origins are left alone for a while, because nobody has answered there again and again."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from protolink._environment import backoff, current_environment
from protolink.transport.errors import PeerUnavailableError

__all__ = ["MAX_FAILURES", "Breakers"]

MAX_FAILURES: Final = 5
"""How often in a row nobody may answer at an origin before it is left alone."""

FIRST_PAUSE_SECONDS: Final = 1.0
LAST_PAUSE_SECONDS: Final = 60.0
MAX_ORIGINS: Final = 1000
"""Origins with failures that are remembered; the one that failed first is forgotten for a further one."""


@dataclass(slots=True)
class _Failing:
    failures: int = 0
    until: float = 0.0
    """When it may be tried again, by the monotonic clock."""

    is_tried: bool = False
    """Whether somebody is finding out just now."""


class Breakers:
    """One circuit breaker for each origin.

    After `MAX_FAILURES` in a row an origin is asked nothing for a pause, which is doubled with each further failure.
    Then one is let through while all others still are refused, and how that goes decides for all. What is
    refused was not sent, so it is safe to ask again, or somebody else.
    """

    def __init__(self) -> None:
        self._failing: dict[str, _Failing] = {}

    @contextmanager
    def asking(self, origin: str) -> Generator[None]:
        """Around finding out whether an origin answers. Raises `PeerUnavailableError` while it is left alone."""
        known = self._failing.get(origin)
        if known is not None and known.failures >= MAX_FAILURES:
            if known.is_tried or current_environment().monotonic() < known.until:
                raise PeerUnavailableError(
                    f"nobody answered at {origin!r} the last {known.failures} times, so it is left alone for a while"
                )
            known.is_tried = True
        try:
            yield
        except PeerUnavailableError:
            self._failed(origin)
            raise
        except BaseException:  # canceled, or never sent: nothing was found out
            if known is not None:
                known.is_tried = False
            raise
        self._failing.pop(origin, None)

    def _failed(self, origin: str) -> None:
        if origin not in self._failing and len(self._failing) >= MAX_ORIGINS:
            del self._failing[next(iter(self._failing))]
        known = self._failing.setdefault(origin, _Failing())
        known.failures += 1
        known.is_tried = False
        if known.failures >= MAX_FAILURES:
            environment = current_environment()
            attempt = known.failures - MAX_FAILURES
            pause = backoff(environment, attempt, first=FIRST_PAUSE_SECONDS, most=LAST_PAUSE_SECONDS)
            known.until = environment.monotonic() + pause

    def __repr__(self) -> str:
        return f"<Breakers with {len(self._failing)} origins that do not answer>"
