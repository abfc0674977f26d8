"""Calling peers wherever they are: the scheme of an address says which transport leads there."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Final, Self

from protolink.errors import ConfigurationError
from protolink.transport.create import create_transport
from protolink.transport.port import Transport

__all__ = ["Outgoing"]

_TRANSPORTS: Final[Mapping[str, str]] = {"runtime": "runtime", "http": "http", "https": "http"}


class Outgoing:
    """The transports by which one agent calls others: its own for the scheme that it serves, others as needed.

    `async with` keeps the connections of those that were made here; without, each call has its own.

    Parameters
    ----------
    own
        The transport that the agent serves, if any.
    credentials
        Tokens by origin, for the transports that are made here.
    """

    def __init__(self, own: Transport | None = None, *, credentials: Mapping[str, Any] | None = None) -> None:
        self._credentials = credentials
        self._known: dict[str, Transport] = {}
        self._stack: AsyncExitStack | None = None
        if own is not None and own.url is not None:
            scheme = _scheme(own.url)
            self._known[_TRANSPORTS.get(scheme, scheme)] = own

    async def to(self, url: str) -> Transport:
        """The transport that leads to an address. Raises `ConfigurationError` for a scheme that none speaks."""
        scheme = _scheme(url)
        name = _TRANSPORTS.get(scheme, scheme)
        if name not in self._known:
            self._known[name] = await self._made(name)
        return self._known[name]

    async def _made(self, name: str) -> Transport:
        if name not in _TRANSPORTS.values():
            raise ConfigurationError(f"an address begins with {', '.join(f'{scheme}://' for scheme in _TRANSPORTS)}")
        made = create_transport(name, credentials=self._credentials if name == "http" else None)
        if self._stack is not None and isinstance(made, AbstractAsyncContextManager):
            await self._stack.enter_async_context(made)
        return made

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        for made in self._known.values():
            if made.url is None and isinstance(made, AbstractAsyncContextManager):
                await self._stack.enter_async_context(made)
        return self

    async def __aexit__(self, *error: object) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()

    def __repr__(self) -> str:
        return f"<Outgoing over {', '.join(sorted(self._known)) or 'nothing yet'}>"


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower()
