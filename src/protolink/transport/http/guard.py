"""What a request has to pass before anybody reads it: size, host, origin, identity, share."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protolink._text import describe_error, visible
from protolink._values import new_id
from protolink.errors import ConfigurationError
from protolink.transport.http.addresses import is_loopback
from protolink.transport.http.auth import ANONYMOUS, Authenticator, is_principal
from protolink.transport.http.limits import HTTPLimits
from protolink.transport.http.listener import ABORT
from protolink.transport.http.problems import Problem, not_found

__all__ = ["HEADERS", "PRINCIPAL", "Guard", "allowed_host_names", "allowed_origin_names"]

PRINCIPAL: Final = "protolink.principal"
"""The key, in a scope, of whoever sent the request."""

HEADERS: Final = "protolink.headers"
"""The key, in a scope, of the header fields by their names in lower case."""

_logger: Final = logging.getLogger("protolink")
_DECISIVE: Final = frozenset(
    {
        "authorization",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "idempotency-key",
        "last-event-id",
        "origin",
        "x-api-key",
    }
)
_ALWAYS: Final = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


class Guard:
    """An ASGI application around another that answers every refusal and every error as a problem document.

    The order: the size of the header (431), `Host` and `Origin` (403), who asks (401), how much is being done
    for them (429). Only then is anything of the request read.

    Parameters
    ----------
    hosts
        What `Host` may say, each with or without a port; without one, any port fits.
    origins
        What `Origin` may say. A program sends none, and a web page always does.
    authenticator
        Says who asks; without one, everybody is `anonymous`.
    only_loopback
        Answer no other machine where nobody is asked who they are.
    public
        Paths that are answered whoever asks, and whatever is being done.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str],
        origins: Collection[str] = (),
        authenticator: Authenticator | None = None,
        only_loopback: bool = False,
        public: Collection[str] = (),
        limits: HTTPLimits,
    ) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._origins = frozenset(origins)
        self._authenticator = authenticator
        self._only_loopback = only_loopback and authenticator is None
        self._public = frozenset(public)
        self._limits = limits
        self._busy: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message = {**message, "headers": [*message.get("headers", ()), *_ALWAYS]}
            await send(message)

        try:
            await self._guarded(scope, receive, sending)
        except ClientDisconnect:
            return  # nobody is there to be told anything
        except Exception as error:  # the application's own, whatever it is
            problem = self._problem_of(error)
            if begun:
                abort = scope.get("state", {}).get(ABORT)
                if abort is not None:
                    abort()
                return
            await problem.response()(scope, receive, sending)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw: list[tuple[bytes, bytes]] = scope["headers"]
        if (
            len(raw) > self._limits.max_header_fields
            or sum(len(name) + len(value) + 4 for name, value in raw) > self._limits.max_header_bytes
        ):
            raise Problem(431, "the header of the request is too large", close=True)
        headers = _once(raw)
        if self._only_loopback and not _is_from_here(scope):
            raise Problem(403, "this server answers this machine alone", close=True)
        if not self._is_our_name(headers.get("host", "")):
            raise Problem(403, "this server does not answer for that host", close=True)
        origin = headers.get("origin")
        if origin is not None and origin not in self._origins:
            raise Problem(403, "this server does not answer to that origin", close=True)
        if scope["path"] in self._public:
            await self._app({**scope, PRINCIPAL: ANONYMOUS, HEADERS: headers}, receive, send)
            return
        principal = await self._principal(headers)
        if (
            self._busy.total() >= self._limits.max_requests
            or self._busy[principal] >= self._limits.max_requests_per_principal
        ):
            raise Problem(429, "too much is being done already", headers={"Retry-After": "1"}, close=True)
        self._busy[principal] += 1
        try:
            await self._app({**scope, PRINCIPAL: principal, HEADERS: headers}, receive, send)
        finally:
            self._busy[principal] -= 1
            if not self._busy[principal]:
                del self._busy[principal]

    def _is_our_name(self, host: str) -> bool:
        host = host.lower()
        name, _, port = host.rpartition(":")
        # Only a name that was listed without a port fits any.
        fits_any = port.isdecimal() and (":" not in name or name.endswith("]")) and name in self._hosts
        return host in self._hosts or fits_any

    async def _principal(self, headers: Mapping[str, str]) -> str:
        if self._authenticator is None:
            return ANONYMOUS
        principal = await self._authenticator.authenticate(headers)
        if principal is None or not is_principal(principal):
            raise Problem(401, "say who you are", headers={"WWW-Authenticate": "Bearer"}, close=True)
        return principal

    def _problem_of(self, error: Exception) -> Problem:
        if isinstance(error, Problem):
            return error
        if isinstance(error, HTTPException):
            if error.status_code == 404:
                return not_found()
            return Problem(error.status_code, error.detail, headers=error.headers)
        identifier = new_id()
        _logger.error("answering a request failed (%s): %s", identifier, visible(describe_error(error)))
        return Problem(500, "something went wrong here", id=identifier, delivered=True)


def _is_from_here(scope: Scope) -> bool:
    """Whether a request comes from this machine, as far as the server knows where it comes from."""
    client = scope.get("client")
    return client is None or _is_local(client[0])


@lru_cache(maxsize=1024)
def _is_local(address: str) -> bool:
    try:
        return is_loopback(address)
    except ValueError:
        return True  # no address of a network


def _once(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Header fields by name. One that decides something and is there twice is refused: who is to be believed?"""
    headers: dict[str, str] = {}
    for name, value in raw:
        key = name.decode("latin-1").lower()
        if key in headers and key in _DECISIVE:
            raise Problem(400, f"the field {key} is there twice", close=True)
        headers[key] = value.decode("latin-1")
    return headers


def allowed_host_names(names: Iterable[str]) -> frozenset[str]:
    """Names for `hosts`, in lower case. Raises `ConfigurationError` for one that could never fit, or for all."""
    if isinstance(names, str):
        raise ConfigurationError("allowed_hosts= is a list of names")
    checked = frozenset(name.lower() for name in names)
    if any(not name or "*" in name or "/" in name for name in checked):
        raise ConfigurationError("allowed_hosts= lists names such as 'agents.example.org' or 'localhost:8000'")
    return checked


def allowed_origin_names(origins: Iterable[str]) -> frozenset[str]:
    """Origins for `origins`. Raises `ConfigurationError` for one that is none, or stands for all."""
    if isinstance(origins, str):
        raise ConfigurationError("allowed_origins= is a list of origins")
    checked = frozenset(origins)
    if any("://" not in origin or origin.count("/") != 2 or "*" in origin for origin in checked):
        raise ConfigurationError("allowed_origins= lists origins such as 'https://example.org'")
    return checked
