"""Which operation lives where. The server serves this table, and the client asks by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from protolink._json import JSON
from protolink.errors import ConfigurationError

__all__ = ["CURSOR", "HEALTH", "ROUTES", "Route", "route_of"]

HEALTH: Final = "/health"
CURSOR: Final = "Last-Event-ID"
"""The header field of a GET that stands for the field `after` of its payload."""


@dataclass(frozen=True, slots=True)
class Route:
    """One operation of a handler."""

    operation: str
    method: str
    path: str
    """`{name}` stands for the field `name` of the payload; the body has the others."""

    streamed: bool = False
    """Whether the answer can be a stream."""

    def target(self, payload: JSON) -> tuple[str, JSON]:
        """The path for a payload, and what is left for the body."""
        if "{" not in self.path:
            return self.path, payload
        fields = dict(payload) if isinstance(payload, dict) else {}
        parts: list[str] = []
        for part in self.path.split("/"):
            if part.startswith("{"):
                value = fields.pop(part[1:-1], None)
                if not isinstance(value, str) or not value:
                    raise ConfigurationError(f"{self.operation!r} needs the text {part[1:-1]!r}")
                parts.append(quote(value, safe=""))
            else:
                parts.append(part)
        return "/".join(parts), dict(fields)


ROUTES: Final[tuple[Route, ...]] = (
    Route("task", "POST", "/tasks", streamed=True),
    Route("status", "GET", "/tasks/{task_id}"),
    Route("events", "GET", "/tasks/{task_id}/events", streamed=True),
    Route("cancel", "POST", "/tasks/{task_id}/cancel"),
    Route("card", "GET", "/card"),
    Route("register", "POST", "/registry/register"),
    Route("unregister", "POST", "/registry/unregister"),
    Route("heartbeat", "POST", "/registry/heartbeat"),
    Route("discover", "POST", "/registry/discover"),
)

_BY_OPERATION: Final[Mapping[str, Route]] = {route.operation: route for route in ROUTES}


def route_of(operation: str) -> Route:
    """Where an operation lives. Raises `ConfigurationError` for one that does not cross HTTP."""
    route = _BY_OPERATION.get(operation)
    if route is None:
        raise ConfigurationError(f"no operation {operation!r} crosses HTTP, only {', '.join(sorted(_BY_OPERATION))}")
    return route
