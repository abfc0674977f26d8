"""What a server takes and a client waits for. Everything that could grow has a name and an end."""

from __future__ import annotations

from dataclasses import dataclass, fields

from protolink.errors import ConfigurationError

__all__ = ["HTTPLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HTTPLimits:
    """Bounds of an HTTP transport. Raises `ConfigurationError` for a limit that is not positive and finite."""

    max_body_bytes: int = 1024 * 1024
    """A request's body; a longer one is refused with 413 before it is parsed."""

    max_header_bytes: int = 16 * 1024
    """A request's header fields altogether; more is refused with 431."""

    max_header_fields: int = 100
    max_json_depth: int = 64
    max_connections: int = 1000
    """Open connections; a further one is closed at once."""

    max_requests: int = 256
    """Requests that are being answered at a time; a further one is refused with 429."""

    max_requests_per_principal: int = 64
    header_seconds: float = 10.0
    """For a request's header to arrive, counted from its first byte or from the connection."""

    body_seconds: float = 20.0
    """For a request's body to arrive; later it is refused with 408."""

    idle_seconds: float = 30.0
    """How long a connection without a request stays open."""

    write_seconds: float = 20.0
    """How long a client may leave a stream unread before its connection is dropped."""

    keep_alive_seconds: float = 15.0
    """After how long a silent stream carries a sign of life."""

    connect_seconds: float = 2.0
    """For a peer to accept a connection."""

    call_seconds: float = 10.0
    """For a peer to answer anything but a task."""

    task_seconds: float = 600.0
    """For a peer to answer a task that is not streamed."""

    silence_seconds: float = 60.0
    """How long a peer's stream may be silent."""

    max_reply_bytes: int = 16 * 1024 * 1024
    """A peer's reply, or one message of its stream."""

    max_stream_bytes: int = 256 * 1024 * 1024
    """A peer's stream altogether."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise ConfigurationError(f"{field.name} must be positive and finite")
