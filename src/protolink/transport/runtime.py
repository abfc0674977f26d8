"""The transport inside one process: every request crosses as text, as if there were a wire."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from typing import Any, Final

from protolink._environment import Environment, current_environment, use_environment
from protolink._json import JSON, dumps, parse, require_json
from protolink._text import describe_error, visible
from protolink.errors import ConfigurationError, ProtolinkError
from protolink.transport.errors import (
    PeerNotFoundError,
    PeerRefusedError,
    PeerUnavailableError,
    TransportError,
    TransportStartError,
)
from protolink.transport.port import Handler

__all__ = ["RuntimeTransport"]

_SCHEME: Final = "runtime://"
_logger: Final = logging.getLogger("protolink")


class RuntimeTransport:
    """Serves a name of this process, `runtime://name`, and calls others.

    Requests and replies are JSON text. The handler runs on the event loop that started the transport, in a
    context of its own: private request values, or anything else that the caller holds, stay with the caller.
    """

    def __init__(self, url: str | None = None) -> None:
        self._url = None if url is None else _checked(url)
        self._handler: Handler | None = None
        self._server: _Server | None = None

    @property
    def url(self) -> str | None:
        """The address that this transport serves, or None where it only calls."""
        return self._url

    def serve(self, handler: Handler) -> None:
        """Say who answers. Raises `ConfigurationError` where somebody does already."""
        if self._handler is not None:
            raise ConfigurationError(f"the transport of {self._url!r} already serves somebody; give each its own")
        self._handler = handler

    async def start(self) -> None:
        """Take the name. Raises `TransportStartError` where another has it; starting again changes nothing."""
        if self._url is None:
            raise TransportStartError("a transport without an address cannot be started; give it a url")
        if self._handler is None:
            raise TransportStartError(f"nobody answers at {self._url!r}; give the transport to an agent or a registry")
        if self._server is None or self._server.loop.is_closed():
            server = _Server(self._handler)
            _take(self._url, server)
            self._server = server

    async def stop(self) -> None:
        """Give the name back and end what is being answered."""
        server, self._server = self._server, None
        if server is not None and self._url is not None:
            _release(self._url, server)
            await server.close()

    async def call(self, url: str, operation: str, payload: JSON) -> JSON:
        """Ask whoever serves `url`. Raises `PeerUnavailableError` where nobody does."""
        server = _find(_checked(url))
        if server is None:
            raise PeerUnavailableError(f"nobody serves {visible(url, limit=200)!r} in this process")
        text = dumps(require_json(payload, "the request"))
        return parse(await server.answer(url, operation, text))

    def __repr__(self) -> str:
        state = "serving" if self._server is not None else "not serving"
        return f"<RuntimeTransport {self._url or 'without an address'}, {state}>"


class _Server:
    """A handler with the loop that it runs on and the requests that it is answering."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._environment = current_environment()
        self._answering: set[asyncio.Task[str]] = set()
        self.loop = asyncio.get_running_loop()

    async def answer(self, url: str, operation: str, text: str) -> str:
        """The reply as text. The caller may be on another event loop."""
        if asyncio.get_running_loop() is self.loop:
            task = self._begin(operation, text)
            waiting: asyncio.Future[str] = task
        else:
            waiting = asyncio.wrap_future(self._begin_from_elsewhere(operation, text))
        try:
            return await waiting
        except asyncio.CancelledError:
            if _is_canceled_itself():
                raise
            raise PeerUnavailableError(f"{url!r} was stopped while it answered", delivered=True) from None

    def _begin(self, operation: str, text: str) -> asyncio.Task[str]:
        # An empty context: what the caller holds in context variables must not cross.
        task = self.loop.create_task(
            _served(self._handler, self._environment, operation, text), context=contextvars.Context()
        )
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        return task

    def _begin_from_elsewhere(self, operation: str, text: str) -> Any:
        async def relayed() -> str:
            return await self._begin(operation, text)

        work = relayed()
        try:
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:
            work.close()
            raise PeerUnavailableError("the event loop of the peer is closed") from None

    async def close(self) -> None:
        """End what is being answered and await that it has ended."""
        answering = tuple(self._answering)
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)


async def _served(handler: Handler, environment: Environment, operation: str, text: str) -> str:
    with use_environment(environment):
        try:
            return dumps(require_json(await handler(operation, parse(text)), "the reply"))
        except PeerNotFoundError as error:
            raise PeerNotFoundError(f"the peer refused the request: {visible(str(error), limit=500)}") from None
        except (ProtolinkError, ValueError) as error:
            if isinstance(error, TransportError) and error.delivered:
                raise
            # Refusals explain themselves to whoever asked; nothing else of this side leaves it.
            raise PeerRefusedError(f"the peer refused the request: {visible(str(error), limit=500)}") from None
        except Exception as error:  # the handler's own bug: told to the operator, not to the peer
            _logger.error("answering %r failed: %s", visible(operation, limit=100), visible(describe_error(error)))
            raise TransportError("the peer failed while it answered", delivered=True) from None


def _is_canceled_itself() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


_lock = threading.Lock()
_serving: dict[str, _Server] = {}
"""Who serves which name of this process. Names are the addresses of `runtime://`, so they live as long as it."""


def _take(url: str, server: _Server) -> None:
    with _lock:
        present = _serving.get(url)
        # A loop that was closed without stopping its transports serves nobody any more.
        if present is not None and not present.loop.is_closed():
            raise TransportStartError(f"{url!r} is taken in this process")
        _serving[url] = server


def _release(url: str, server: _Server) -> None:
    with _lock:
        if _serving.get(url) is server:
            del _serving[url]


def _find(url: str) -> _Server | None:
    with _lock:
        server = _serving.get(url)
    return None if server is None or server.loop.is_closed() else server


def _checked(url: object) -> str:
    name = url.removeprefix(_SCHEME) if isinstance(url, str) else ""
    if not isinstance(url, str) or not url.startswith(_SCHEME) or not name.strip():
        raise ConfigurationError(f"the address of a runtime transport looks like {_SCHEME}name")
    return url
