"""The ASGI application: what each route does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from protolink._json import canonical, digest, dumps
from protolink._runtime.principal import acting_as, current_principal
from protolink._text import describe_error
from protolink.context import RunBudget
from protolink.errors import ConfigurationError
from protolink.group import AgentGroup
from protolink.http.idempotency import IdempotencyKeys
from protolink.http.limits import ApplicationLimits
from protolink.http.openapi import description
from protolink.http.problems import problem_of
from protolink.http.requests import Decision, NewRun, cursor, flag, idempotency_key, require_empty
from protolink.http.routes import found, run_path
from protolink.http.runs import Run, Runs
from protolink.http.streams import EventStream
from protolink.redaction import RedactionPolicy
from protolink.transport.http.auth import Authenticator
from protolink.transport.http.body import read_json
from protolink.transport.http.encoding import NDJSON, SSE
from protolink.transport.http.guard import HEADERS, PRINCIPAL, Guard, allowed_host_names, allowed_origin_names
from protolink.transport.http.problems import Problem
from protolink.transport.http.replies import Document, negotiated

__all__ = ["Application", "create_app"]

_JSON: Final = "application/json"
_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_CANCEL: Final = "cancel_on_disconnect"

Endpoint = Callable[[Request, str], Awaitable[ASGIApp]]


def create_app(
    group: AgentGroup,
    *,
    authenticator: Authenticator | None = None,
    allow_unauthenticated: bool = False,
    allowed_hosts: Collection[str] | None = None,
    allowed_origins: Collection[str] = (),
    max_body_bytes: int | None = None,
    budget: RunBudget | None = None,
    redaction_policy: RedactionPolicy | None = None,
    limits: ApplicationLimits | None = None,
) -> Application:
    """Serve the runs of a group's agents to HTTP clients.

    The application stands alone (`uvicorn module:app`) or is mounted into another one. Alone, its lifespan starts
    the group and closes it. Mounted, the host does that in its own lifespan, `async with group`: a mounted
    application's lifespan is run by nobody. What cannot work is refused as `ConfigurationError`.

    Parameters
    ----------
    group
        Whose agents clients may run, by name.
    authenticator
        Says who a client is, such as an `APIKeyAuthenticator`. Runs and sessions belong to who started them, and
        nobody else can see them. Without one everybody is the same `anonymous`, and only this machine is answered.
    allow_unauthenticated
        Answer other machines without asking who they are.
    allowed_hosts
        What the `Host` of a request may say, each with or without a port; by default this machine's names for
        itself.
    allowed_origins
        Web pages that may ask, such as `https://example.org`; none by default.
    max_body_bytes
        How large a request's body may be: 1 MiB by default.
    budget
        What a run may use at most; a client's own budget can only narrow it. By default ten model turns.
    redaction_policy
        What is withheld from events, evidence, requests and errors.
    limits
        `ApplicationLimits`.
    """
    if not isinstance(group, AgentGroup):
        raise ConfigurationError(f"an application serves an AgentGroup, not {type(group).__name__}")
    if authenticator is not None and not isinstance(authenticator, Authenticator):
        raise ConfigurationError(f"authenticator= has a method authenticate, not {type(authenticator).__name__}")
    if budget is not None and not isinstance(budget, RunBudget):
        raise ConfigurationError(f"budget= is a RunBudget, not {type(budget).__name__}")
    if limits is not None and not isinstance(limits, ApplicationLimits):
        raise ConfigurationError(f"limits= are ApplicationLimits, not {type(limits).__name__}")
    chosen = limits or ApplicationLimits()
    if max_body_bytes is not None:
        chosen = replace(chosen, max_body_bytes=max_body_bytes)
    application = Application(group, Runs(group, chosen, budget, redaction_policy), chosen)
    application.guard = Guard(
        application.answer,
        hosts=_LOCAL_NAMES if allowed_hosts is None else allowed_host_names(allowed_hosts),
        origins=allowed_origin_names(allowed_origins),
        authenticator=authenticator,
        only_loopback=not allow_unauthenticated,
        limits=chosen,
    )
    return application


class Application:
    """An ASGI application. Made by `create_app`."""

    def __init__(self, group: AgentGroup, runs: Runs, limits: ApplicationLimits) -> None:
        self._group = group
        self._runs = runs
        self._limits = limits
        self._keys = IdempotencyKeys(limits.max_idempotency_keys, limits.max_idempotency_keys_per_principal)
        self._endpoints: Mapping[str, Endpoint] = {
            "start": self._start,
            "status": self._status,
            "cancel": self._cancel,
            "events": self._events,
            "evidence": self._evidence,
            "resume": self._resume,
            "decide": self._decide,
            "describe": self._describe,
        }
        self.guard: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self.guard(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Start the group, and close it at the end, unless it was started by somebody else."""
        owned = not self._group.running
        await receive()
        try:
            if owned:
                await self._group.start()
        except Exception as error:  # whatever the group's agents and transports raise
            await send({"type": "lifespan.startup.failed", "message": describe_error(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        try:
            if owned:
                await self._group.close()
        except Exception as error:  # as above
            await send({"type": "lifespan.shutdown.failed", "message": describe_error(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that has passed the guard, for whoever the guard says has sent it."""
        route, run_id = found(scope)
        with acting_as(scope[PRINCIPAL]):
            try:
                reply = await self._endpoints[route.operation](Request(scope, receive), run_id)
            except Problem:
                raise
            except Exception as error:  # the runtime's, or that of a store
                problem = problem_of(error)
                if problem is None:
                    raise
                raise problem from error
        await reply(scope, receive, send)

    async def _start(self, request: Request, _: str) -> ASGIApp:
        media = _form(request, _JSON, NDJSON, SSE)
        cancels = flag(request, _CANCEL)
        key = idempotency_key(request)
        body = await read_json(request, self._limits)
        asked = NewRun.from_body(body)
        if key is None:
            run = await self._runs.start(asked)
        else:
            run = await self._once(key, digest(canonical(body)), asked)
        return self._begun(request, run, media, cancels=cancels)

    async def _once(self, key: str, request_digest: str, asked: NewRun) -> Run:
        started: list[Run] = []

        async def start() -> str:
            started.append(await self._runs.start(asked, key, request_digest))
            return started[0].run_id

        run_id = await self._keys.once(current_principal(), key, request_digest, start)
        run = started[0] if started else await self._runs.known(run_id)
        if run is None:
            raise Problem(410, "the run of this Idempotency-Key has ended and is no longer kept", run_id=run_id)
        return run

    async def _status(self, request: Request, run_id: str) -> ASGIApp:
        _form(request, _JSON)
        return self._document((await self._runs.find(run_id)).document)

    async def _cancel(self, request: Request, run_id: str) -> ASGIApp:
        _form(request, _JSON)
        return self._document((await self._runs.cancel(await self._runs.find(run_id))).document)

    async def _evidence(self, request: Request, run_id: str) -> ASGIApp:
        _form(request, _JSON)
        run = await self._runs.find(run_id)
        return self._document({"run_id": run_id, "evidence": run.evidence})

    async def _events(self, request: Request, run_id: str) -> ASGIApp:
        media = _form(request, SSE, NDJSON)
        after = cursor(request)
        run = await self._runs.find(run_id)
        if after > run.views.reach:
            raise Problem(409, "there is no event of that number yet; begin at the start, or where you have been")
        if run.has_nothing_behind(after):
            # What tells a browser not to connect again.
            return Response(status_code=204)
        return self._stream(request, run, media, after)

    async def _resume(self, request: Request, run_id: str) -> ASGIApp:
        media = _form(request, _JSON, NDJSON, SSE)
        require_empty(await read_json(request, self._limits, may_be_absent=True))
        run = await self._runs.find(run_id)
        after = run.views.last_place
        return self._begun(request, await self._runs.resume(run), media, after=after)

    async def _decide(self, request: Request, run_id: str) -> ASGIApp:
        media = _form(request, _JSON, NDJSON, SSE)
        decision = Decision.from_body(await read_json(request, self._limits))
        run = await self._runs.find(run_id)
        after = run.views.last_place
        return self._begun(request, await self._runs.resume(run, decision), media, after=after)

    async def _describe(self, request: Request, _: str) -> ASGIApp:
        _form(request, _JSON)
        return self._document(description(request.scope.get("root_path", ""), sorted(self._group.agents)))

    def _begun(self, request: Request, run: Run, media: str, *, after: int = 0, cancels: bool = False) -> ASGIApp:
        """The answer to whoever set a run going: its id at once, or its events."""
        if media != _JSON:
            return self._stream(request, run, media, after, cancels=cancels)
        document = {"run_id": run.run_id, "status": run.views.status}
        return Document(dumps(document), self._limits, status=202, headers=_headers(request, run))

    def _stream(self, request: Request, run: Run, media: str, after: int, *, cancels: bool = False) -> ASGIApp:
        handle = run.handle if cancels else None
        return EventStream(
            run.views,
            after,
            media,
            self._limits,
            _headers(request, run),
            tail=run.tail,
            abandoned=None if handle is None else lambda: handle.cancel("its client has gone"),
        )

    def _document(self, value: Any) -> ASGIApp:
        return Document(dumps(value), self._limits)

    def __repr__(self) -> str:
        return f"<Application of {self._group!r}>"


def _form(request: Request, *offered: str) -> str:
    return negotiated(request.scope[HEADERS].get("accept"), offered)


def _headers(request: Request, run: Run) -> dict[str, str]:
    return {"X-Run-ID": run.run_id, "Location": run_path(request.scope, run.run_id)}
