"""The ASGI application of a transport: it answers its routes by the handler that it was given."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Router
from starlette.routing import Route as Endpoint
from starlette.types import ASGIApp, Receive, Scope, Send

from protolink._environment import Environment, current_environment, use_environment
from protolink._json import JSON, dumps, require_json
from protolink._text import describe_error, visible
from protolink._values import new_id
from protolink.errors import DurableExecutionError, ProtolinkError, RunExistsError, UnknownRunError
from protolink.transport.errors import PeerNotFoundError, TransportError
from protolink.transport.http.body import read_json
from protolink.transport.http.encoding import (
    NDJSON,
    NDJSON_SIGN_OF_LIFE,
    SSE,
    SSE_SIGN_OF_LIFE,
    ndjson_message,
    sse_frame,
)
from protolink.transport.http.guard import PRINCIPAL
from protolink.transport.http.limits import HTTPLimits
from protolink.transport.http.listener import ABORT
from protolink.transport.http.problems import Problem, not_found, stopped
from protolink.transport.http.replies import Document, disconnected, negotiated, patient
from protolink.transport.http.routes import CURSOR, HEALTH, ROUTES, Route
from protolink.transport.port import ActingAs, Frame, Handler, StreamHandler

__all__ = ["Answers", "Service"]

_JSON: Final = "application/json"
_ENCODINGS: Final[dict[str, tuple[Callable[[Frame], bytes], bytes]]] = {
    SSE: (sse_frame, SSE_SIGN_OF_LIFE),
    NDJSON: (ndjson_message, NDJSON_SIGN_OF_LIFE),
}
_CURSOR_DIGITS: Final = 15
_logger: Final = logging.getLogger("protolink")
_T = TypeVar("_T")


def _for_nobody(principal: str) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Service:
    """Who answers, and for whom."""

    handler: Handler
    stream: StreamHandler | None = None
    acting_as: ActingAs = _for_nobody


class Answers:
    """Everything that one started transport is answering.

    Each request is answered in a context of its own, in the environment that the transport was started in:
    nothing that whoever started it holds reaches a request, and nothing of one request reaches another. A
    request whose sender has gone is given up.
    """

    def __init__(self, service: Service, limits: HTTPLimits) -> None:
        self._service = service
        self._limits = limits
        self._environment: Environment = current_environment()
        self._answering: set[asyncio.Task[Any]] = set()
        self._closing = False
        routes: list[BaseRoute] = [Endpoint(HEALTH, _health, methods=["GET"])]
        routes += [Endpoint(route.path, self._endpoint(route), methods=[route.method]) for route in ROUTES]
        self._router = Router(routes, redirect_slashes=False, default=_nowhere)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # With an application in the scope, the router raises what it would else answer in words of its own.
        await self._router({**scope, "app": self}, receive, send)

    async def close(self) -> None:
        """Give up what is being answered, and await that it has ended."""
        self._closing = True
        answering = tuple(self._answering)
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)

    def _endpoint(self, route: Route) -> Callable[[Request], Awaitable[Any]]:
        async def answer(request: Request) -> ASGIApp:
            payload: JSON = None
            if route.method == "POST":
                payload = await read_json(request, self._limits)
            if request.path_params:
                fields = payload
                if route.method == "GET":
                    fields = _cursor_of(request) if route.streamed else {}
                if not isinstance(fields, dict):
                    raise Problem(422, "the body has to be an object")
                payload = {**fields, **request.path_params}
            encoding = _JSON
            if route.operation == "events":
                encoding = negotiated(request.headers.get("accept"), (SSE, NDJSON))
            elif route.streamed:
                encoding = negotiated(request.headers.get("accept"), (_JSON, NDJSON, SSE))
            if encoding == _JSON or self._service.stream is None:
                return await self._reply(request, route.operation, payload)
            return _Stream(self, encoding, route.operation, payload, request.scope[PRINCIPAL])

        return answer

    async def _reply(self, request: Request, operation: str, payload: JSON) -> ASGIApp:
        answer = self._served(request.scope[PRINCIPAL], lambda: self._service.handler(operation, payload))
        text = await self.unless_gone(self.begin(answer), request.receive)
        return Document(text, self._limits)

    async def _served(self, principal: str, answer: Callable[[], Awaitable[JSON]]) -> str:
        with use_environment(self._environment), self._service.acting_as(principal):
            try:
                return dumps(require_json(await answer(), "the reply"))
            except Exception as error:  # the handler's, which may be anything
                raise problem_of(error) from error

    async def pump(self, stream: _Stream, principal: str, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send what a stream handler gives, and signs of life in between."""
        encode, sign = _ENCODINGS[stream.encoding]
        handler = self._service.stream
        if handler is None:
            raise RuntimeError("nobody answers by a stream")
        with use_environment(self._environment), self._service.acting_as(principal):
            frames = handler(stream.operation, stream.payload)
            alive: asyncio.Task[None] | None = None
            try:
                first = await anext(frames)
                await send(encode(first))
                alive = asyncio.create_task(self._stay_alive(sign, send))
                async for frame in frames:
                    await send(encode(frame))
            except ClientDisconnect:
                raise
            except Exception as error:  # the handler's, which may be anything
                problem = problem_of(error)
                if alive is None:
                    raise problem from error
                await send(encode(Frame("error", problem.document)))
            finally:
                if alive is not None:
                    alive.cancel()
                await frames.aclose()

    async def _stay_alive(self, sign: bytes, send: Callable[[bytes], Awaitable[None]]) -> None:
        while True:
            try:
                async with asyncio.timeout(self._limits.keep_alive_seconds):
                    await asyncio.Event().wait()
            except TimeoutError:
                await send(sign)

    def begin(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Start to answer something."""
        if self._closing:
            work.close()
            raise Problem(503, "the server is stopping", headers={"Retry-After": "1"}, close=True, delivered=False)
        # An empty context: the connection's is the one in which the transport was started.
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        return task

    async def unless_gone(self, work: asyncio.Task[_T], receive: Receive) -> _T:
        """The outcome of work that is given up when its sender has gone."""
        gone = asyncio.create_task(disconnected(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
        if not work.cancelled():
            return work.result()
        if self._closing:
            raise stopped()
        raise ClientDisconnect

    @property
    def limits(self) -> HTTPLimits:
        """The bounds of the transport."""
        return self._limits


class _Stream(Response):
    """A response of frames, for as long as there are some and somebody reads them."""

    def __init__(self, answers: Answers, encoding: str, operation: str, payload: JSON, principal: str) -> None:
        super().__init__(media_type=encoding)
        del self.headers["content-length"]
        self.encoding = encoding
        self.operation = operation
        self.payload = payload
        self._answers = answers
        self._principal = principal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        write = patient(scope, send, self._answers.limits)
        begun = False

        async def send_frame(data: bytes) -> None:
            nonlocal begun
            if not begun:
                begun = True
                await write({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await write({"type": "http.response.body", "body": data, "more_body": True})

        try:
            pumping = self._answers.begin(self._answers.pump(self, self._principal, send_frame))
            await self._answers.unless_gone(pumping, receive)
        except (Problem, ClientDisconnect):
            if not begun:
                raise
            # Whoever reads has seen no last frame and knows that something is missing.
            scope.get("state", {}).get(ABORT, lambda: None)()
            return
        await write({"type": "http.response.body", "body": b"", "more_body": False})


async def _health(request: Request) -> Response:
    return Response(b'{"status":"ok"}', media_type=_JSON)


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    raise not_found()


def _cursor_of(request: Request) -> dict[str, JSON]:
    """The last event that whoever asks has seen."""
    seen = request.headers.get(CURSOR, "0")
    if not (seen.isascii() and seen.isdecimal() and len(seen) <= _CURSOR_DIGITS):
        raise Problem(400, f"{CURSOR} is the number of an event")
    return {"after": int(seen)}


def problem_of(error: Exception) -> Problem:
    """What a client is told about an error: what it can mend, and else only that there was one."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, PeerNotFoundError):
        return not_found()
    if isinstance(error, UnknownRunError | RunExistsError):
        return Problem(409, "a run of that id cannot be started here")
    explains_itself = isinstance(error, ProtolinkError | ValueError) and not isinstance(error, DurableExecutionError)
    if explains_itself and not (isinstance(error, TransportError) and error.delivered):
        return Problem(422, visible(str(error), limit=500))
    identifier = new_id()
    _logger.error("answering a request failed (%s): %s", identifier, visible(describe_error(error)))
    return Problem(500, "something went wrong here", id=identifier, delivered=True)
