"""What a transport does: serve one handler at an address, and call those that others serve."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from protolink._json import JSON

__all__ = ["Handler", "Transport"]

Handler = Callable[[str, JSON], Awaitable[JSON]]
"""Answers one request: an operation and its payload. A `ValueError` or `ProtolinkError` refuses it."""


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
