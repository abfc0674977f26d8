"""Listening sockets and the connections that they accept, served by uvicorn's HTTP protocol in the running loop."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from typing import Final

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from protolink.transport.errors import TransportStartError
from protolink.transport.http.addresses import is_loopback, resolve
from protolink.transport.http.limits import HTTPLimits

__all__ = ["ABORT", "Listener"]

ABORT: Final = "protolink.abort"
"""The key, in a scope's state, of what drops the connection at once."""

_BACKLOG: Final = 512
_LAST_WORDS_SECONDS: Final = 1.0
_NOT_HERE: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


class _Connection(H11Protocol):
    """uvicorn's, with an end to connections that are too many, too slow, or not read from."""

    def __init__(self, config: Config, state: ServerState, limits: HTTPLimits) -> None:
        super().__init__(config, state, {ABORT: self.abort})
        # What is logged about requests is the application's to decide, and not by whether the root logger has handlers.
        self.access_log = False
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            transport.abort()
        else:
            self._deadline = self.loop.call_later(self._limits.header_seconds, self.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._call_off()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self._limits.header_seconds, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._call_off()
        super().connection_lost(exc)
        self.lost.set()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing more was asked, and perhaps the last answer was never read."""
        if self.transport.get_write_buffer_size():
            self.abort()
        else:
            super().timeout_keep_alive_handler()

    async def leave(self) -> None:
        """Close once what was said is sent, or soon in spite of it."""
        self.transport.close()
        try:
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await self.lost.wait()
        except TimeoutError:
            self.abort()
            await self.lost.wait()

    def _call_off(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def abort(self) -> None:
        """Drop the connection and what is not yet sent."""
        self.transport.abort()


class Listener:
    """Serves an ASGI application at one host and port. Raises no `SystemExit` and touches no signal handler."""

    def __init__(self, app: ASGIApp, limits: HTTPLimits, tls: ssl.SSLContext | None) -> None:
        self._limits = limits
        self._tls = tls
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []
        self._sockets: list[socket.socket] = []
        self._config = Config(
            app,  # pyright: ignore[reportArgumentType]
            log_config=None,
            lifespan="off",
            ws="none",
            interface="asgi3",
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=max(1, round(limits.idle_seconds)),
            h11_max_incomplete_event_size=2 * limits.max_header_bytes + 4096,
        )
        self._config.load()

    @property
    def is_alive(self) -> bool:
        """Whether the event loop that it listens on is there."""
        return bool(self._servers) and not self._servers[0].get_loop().is_closed()

    async def start(self, host: str, port: int, *, only_loopback: bool) -> None:
        """Listen at each address of the host. Raises `TransportStartError` where one is taken or not allowed."""
        try:
            addresses = await resolve(host, port)
        except OSError as error:
            raise TransportStartError(f"the host {host!r} has no address here: {error.strerror}") from error
        if only_loopback and not all(map(is_loopback, addresses)):
            raise TransportStartError(
                f"{host!r} can be reached from other machines and nobody is asked who they are: pass authenticator=, "
                "or allow_unauthenticated=True if that is meant"
            )
        refused: OSError | None = None
        for address in addresses:
            try:
                self._servers.append(await self._listen(address, port))
            except OSError as error:
                # A name often stands for an IPv6 address too, where this machine has none.
                if error.errno not in _NOT_HERE:
                    raise TransportStartError(f"cannot listen at {host}:{port}: {error.strerror}") from error
                refused = error
        if not self._servers:
            raise TransportStartError(f"cannot listen at {host}:{port}: none of its addresses is here") from refused

    async def _listen(self, address: str, port: int) -> asyncio.Server:
        listening = _bound(address, port)
        self._sockets.append(listening)
        return await asyncio.get_running_loop().create_server(
            self._connection, sock=listening, ssl=self._tls, backlog=_BACKLOG
        )

    def _connection(self) -> _Connection:
        return _Connection(self._config, self._state, self._limits)

    def close(self) -> None:
        """Accept no more connections, also where the event loop has gone."""
        if self.is_alive:
            for server in self._servers:
                server.close()
        for listening in self._sockets:
            listening.close()

    async def drain(self) -> None:
        """Await the requests that are being answered, and close every connection."""
        for connection in _ours(self._state):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(tuple(self._state.tasks), timeout=_LAST_WORDS_SECONDS)
        if self._state.tasks:
            # A request that does not arrive in full, or an answer that nobody reads.
            for connection in _ours(self._state):
                connection.abort()
            await asyncio.wait(tuple(self._state.tasks))
        await asyncio.gather(*(connection.leave() for connection in _ours(self._state)))
        for server in self._servers:
            await server.wait_closed()


def _bound(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # With the protocol named, or asyncio does not know that it is TCP and lets small answers wait for acknowledgements.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((address, port))
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


def _ours(state: ServerState) -> list[_Connection]:
    return [connection for connection in tuple(state.connections) if isinstance(connection, _Connection)]
