"""What a transport does: serve one handler at an address, and call those that others serve."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

from protolink._json import JSON

__all__ = ["FRAME_KINDS", "ActingAs", "Frame", "FrameKind", "Handler", "NetworkTransport", "StreamHandler", "Transport"]

Handler = Callable[[str, JSON], Awaitable[JSON]]
"""Answers one request: an operation and its payload. A `ValueError` or `ProtolinkError` refuses it."""

FrameKind: TypeAlias = Literal["event", "task", "error"]
FRAME_KINDS: Final[tuple[FrameKind, ...]] = ("event", "task", "error")


@dataclass(frozen=True, slots=True)
class Frame:
    """One message of a stream: an event, and last the task, or an error where there is none."""

    kind: FrameKind
    data: JSON
    number: int | None = None
    """The event's place in the list of its run, where it has one."""


StreamHandler = Callable[[str, JSON], AsyncGenerator[Frame]]
"""Answers one request by a stream. What it raises before the first frame refuses the request."""

ActingAs = Callable[[str], AbstractContextManager[None]]
"""Lets what is inside the block be done for a principal."""


@runtime_checkable
class Transport(Protocol):
    """One address, or none for a transport that only calls."""

    @property
    def url(self) -> str | None:
        """The address that this transport serves."""
        ...

    def serve(self, handler: Handler) -> None:
        """Say who answers. Raises `ConfigurationError` where somebody does already."""
        ...

    async def start(self) -> None:
        """Serve the address; ready when it returns. Raises `TransportStartError` for an address that is taken."""
        ...

    async def stop(self) -> None:
        """Stop serving and end what is being answered. Harmless before a start, half-way through and again."""
        ...

    async def call(self, url: str, operation: str, payload: JSON) -> JSON:
        """Ask the peer at `url`. Canceling the call cancels what the peer does for it.

        Raises `PeerUnavailableError`, `PeerRefusedError`, or another `TransportError`.
        """
        ...


@runtime_checkable
class NetworkTransport(Transport, Protocol):
    """A transport that knows who asks, and over which an answer can be a stream."""

    def serve_network(self, handler: Handler, *, acting_as: ActingAs, stream: StreamHandler | None = None) -> None:
        """Say who answers, for whom it is done, and who answers by a stream. Instead of `serve`."""
        ...

    def stream(self, url: str, operation: str, payload: JSON) -> AsyncGenerator[Frame]:
        """Ask the peer at `url` for a stream; one that does not stream gives its answer as the only frame.

        Raises as `call` does. The last frame is a task; closing the generator cancels what the peer does.
        """
        ...
