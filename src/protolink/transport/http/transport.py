"""Agents and registries over HTTP: a server in the running event loop, and a guarded client."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import replace
from typing import Final, Self

from protolink._json import JSON
from protolink.errors import ConfigurationError
from protolink.transport.errors import TransportStartError
from protolink.transport.http.addresses import Address, parse_address, parse_bind
from protolink.transport.http.auth import Authenticator
from protolink.transport.http.client import Client, Credential
from protolink.transport.http.guard import Guard, allowed_host_names, allowed_origin_names
from protolink.transport.http.limits import HTTPLimits
from protolink.transport.http.listener import Listener
from protolink.transport.http.routes import HEALTH
from protolink.transport.http.server import Answers, Service
from protolink.transport.port import ActingAs, Frame, Handler, StreamHandler

__all__ = ["HTTPTransport"]

_LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")


class HTTPTransport:
    """Serves a URL and calls others.

    Started, it serves in the running event loop, without a thread and without touching signals, and keeps its
    outgoing connections. `async with` keeps them for a transport that only calls. Not started, each call has a
    connection of its own.

    Parameters
    ----------
    url
        The address that others use: `http://host:port`, or https. None for a transport that only calls.
    authenticator
        Who may ask, such as an `APIKeyAuthenticator`. Without one the server is for this machine alone.
    credentials
        Tokens for outgoing calls by origin: `{"https://agents.example.org": token}`, or functions that give them.
    allow_unauthenticated
        Serve other machines without asking who they are.
    allowed_hosts
        What the `Host` of a request may say; by default the URL's host, and this machine's names for itself
        where the URL has one of them.
    allowed_origins
        Web pages that may ask, such as `https://example.org`; none by default.
    bind
        `host:port` to listen at where that is not the URL's, as behind a proxy or in a container.
    tls
        A server-side `ssl.SSLContext` with the certificate; an https URL needs it, unless `bind` says that a
        proxy stands before.
    peers
        The only origins that may be called.
    allow_plain_http
        Let calls leave this machine without TLS.
    trust
        A client-side `ssl.SSLContext` with the authorities to believe. It has to verify.
    limits
        `HTTPLimits`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        authenticator: Authenticator | None = None,
        credentials: Mapping[str, Credential] | None = None,
        allow_unauthenticated: bool = False,
        allowed_hosts: Collection[str] | None = None,
        allowed_origins: Collection[str] = (),
        bind: str | None = None,
        tls: ssl.SSLContext | None = None,
        peers: Collection[str] | None = None,
        allow_plain_http: bool = False,
        trust: ssl.SSLContext | None = None,
        limits: HTTPLimits | None = None,
    ) -> None:
        if authenticator is not None and not isinstance(authenticator, Authenticator):
            raise ConfigurationError(f"authenticator= has a method authenticate, not {type(authenticator).__name__}")
        self._url = url
        self._address = None if url is None else parse_address(url)
        self._bind = None if bind is None else parse_bind(bind)
        if self._address is not None and self._address.path:
            raise ConfigurationError("an HTTP transport serves a host and a port, not a path of it")
        if self._address is not None and self._bind is None and (self._address.scheme == "https") != (tls is not None):
            raise ConfigurationError("an https address is served with tls=, and an http address without")
        self._authenticator = authenticator
        self._allow_unauthenticated = allow_unauthenticated
        self._hosts = _hosts(self._address) if allowed_hosts is None else allowed_host_names(allowed_hosts)
        self._origins = allowed_origin_names(allowed_origins)
        self._tls = tls
        self._limits = limits or HTTPLimits()
        self._client = Client(
            credentials=credentials,
            peers=peers,
            allow_plain_http=allow_plain_http,
            trust=trust,
            limits=self._limits,
        )
        self._service: Service | None = None
        self._listener: Listener | None = None
        self._answers: Answers | None = None

    @property
    def url(self) -> str | None:
        """The address that this transport serves, or None where it only calls."""
        return self._url

    def serve(self, handler: Handler) -> None:
        """Say who answers. Raises `ConfigurationError` where somebody does already."""
        self._serve(Service(handler))

    def serve_network(self, handler: Handler, *, acting_as: ActingAs, stream: StreamHandler | None = None) -> None:
        """Say who answers, for whom it is done, and who answers by a stream. Instead of `serve`."""
        self._serve(Service(handler, stream, acting_as))

    def _serve(self, service: Service) -> None:
        if self._service is not None:
            raise ConfigurationError(f"the transport of {self._url!r} already serves somebody; give each its own")
        self._service = service

    async def start(self) -> None:
        """Serve the address; ready when it returns. Starting again changes nothing.

        Raises `TransportStartError` where the port is taken, and for an address that other machines can reach
        when nobody is asked who they are.
        """
        if self._address is None:
            raise TransportStartError("a transport without an address cannot be started; give it a url")
        if self._service is None:
            raise TransportStartError(f"nobody answers at {self._url!r}; give the transport to an agent or a registry")
        if self._listener is not None:
            if self._listener.is_alive:
                return
            self._listener.close()
        answers = Answers(self._service, self._limits)
        guard = Guard(
            answers,
            hosts=self._hosts,
            origins=self._origins,
            authenticator=self._authenticator,
            public=(HEALTH,),
            limits=self._limits,
        )
        listener = Listener(guard, self._limits, self._tls)
        host, port = self._bind or (self._address.host, self._address.port)
        open_to_all = self._authenticator is not None or self._allow_unauthenticated
        try:
            await listener.start(host, port, only_loopback=not open_to_all)
        except BaseException:
            listener.close()
            await listener.drain()
            raise
        self._listener, self._answers = listener, answers
        self._client.open()

    async def stop(self) -> None:
        """Serve no more, end what is being answered, and close every connection."""
        listener, self._listener = self._listener, None
        answers, self._answers = self._answers, None
        if listener is not None and answers is not None:
            alive = listener.is_alive
            listener.close()
            if alive:
                await answers.close()
                await listener.drain()
        await self._client.close()

    async def call(self, url: str, operation: str, payload: JSON) -> JSON:
        """Ask the peer at `url`. Canceling the call closes its connection, and the peer gives the request up."""
        return await self._client.call(url, operation, payload)

    def stream(self, url: str, operation: str, payload: JSON) -> AsyncGenerator[Frame]:
        """Ask the peer at `url` for a stream; one that does not stream gives its answer as the only frame."""
        return self._client.stream(url, operation, payload)

    async def __aenter__(self) -> Self:
        self._client.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.close()

    def __repr__(self) -> str:
        state = "serving" if self._listener is not None else "not serving"
        return f"<HTTPTransport {self._url or 'without an address'}, {state}>"


def _hosts(address: Address | None) -> frozenset[str]:
    if address is None:
        return frozenset()
    if address.host not in _LOCAL_NAMES:
        return frozenset({address.authority})
    return frozenset(replace(address, host=name).authority for name in _LOCAL_NAMES)
