"""The one client of outgoing requests.

It speaks http and https, to the addresses that it has checked, follows no redirect, reads no proxy or certificate
from the environment, keeps no cookie, and sends a credential to the origin that it belongs to and nowhere else.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import Final, cast

import httpx2

from protolink._json import JSON, dumps, parse, require_json
from protolink._text import visible
from protolink.errors import ConfigurationError
from protolink.transport.errors import PeerNotFoundError, PeerRefusedError, PeerUnavailableError, TransportError
from protolink.transport.http.addresses import Address, is_forbidden, is_loopback, parse_address, resolve
from protolink.transport.http.breaker import Breakers
from protolink.transport.http.encoding import NDJSON, LineReader, read_frame
from protolink.transport.http.limits import HTTPLimits
from protolink.transport.http.routes import CURSOR, route_of
from protolink.transport.port import Frame

__all__ = ["Client", "Credential"]

Credential = str | Callable[[], str]
"""A token that is sent as `Authorization: Bearer`, or a function that gives the present one."""

_JSON: Final = "application/json"
_MAX_PROBLEM_BYTES: Final = 64 * 1024
_CONNECTIONS: Final = 100
# Shorter than a server keeps an idle connection, so that a request is rarely sent into one that is just closed.
_IDLE_SECONDS: Final = 5.0


class Client:
    """Asks peers. With `open`, connections are kept and used again; without, each request has its own.

    Parameters
    ----------
    credentials
        By origin, such as `https://agents.example.org`.
    peers
        Origins that may be asked at all; None for any.
    allow_plain_http
        Whether http may leave this machine.
    trust
        Whose certificates are believed; the system's authorities by default.
    """

    def __init__(
        self,
        *,
        credentials: Mapping[str, Credential] | None,
        peers: Collection[str] | None,
        allow_plain_http: bool,
        trust: ssl.SSLContext | None,
        limits: HTTPLimits,
    ) -> None:
        self._credentials = {_origin(origin): _checked(secret) for origin, secret in (credentials or {}).items()}
        if isinstance(peers, str):
            raise ConfigurationError("peers= is a list of origins")
        self._peers = None if peers is None else frozenset(map(_origin, peers))
        self._allow_plain_http = allow_plain_http
        if trust is not None and (trust.verify_mode is not ssl.CERT_REQUIRED or not trust.check_hostname):
            raise ConfigurationError("trust= has to verify certificates and host names")
        self._trust = trust
        self._limits = limits
        self._breakers = Breakers()
        self._kept: dict[str, httpx2.AsyncHTTPTransport] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """Keep connections from now on, for this event loop."""
        self._kept, self._loop = {}, asyncio.get_running_loop()

    async def close(self) -> None:
        """Close what was kept."""
        kept, self._kept = self._kept, None
        if kept and asyncio.get_running_loop() is self._loop:
            await asyncio.gather(*(connections.aclose() for connections in kept.values()))

    async def call(self, url: str, operation: str, payload: JSON) -> JSON:
        """Ask for one answer."""
        seconds = self._limits.task_seconds if operation == "task" else self._limits.call_seconds
        async with self._in_time(url, seconds), self._exchange(url, operation, payload, _JSON) as response:
            return await self._document(response)

    async def stream(self, url: str, operation: str, payload: JSON) -> AsyncGenerator[Frame]:
        """Ask for a stream. A peer that does not stream gives its answer as the only frame."""
        accept = f"{NDJSON}, {_JSON}"
        async with self._exchange(url, operation, payload, accept) as response:
            if _media(response) != NDJSON:
                async with self._in_time(url, self._limits.task_seconds):
                    document = await self._document(response)
                yield Frame("task", document)
                return
            async with aclosing(self._frames(url, response)) as frames:
                async for frame in frames:
                    if frame.kind == "error":
                        raise _refusal(_status(frame.data), frame.data)
                    yield frame
                    if frame.kind == "task":
                        return
        raise PeerUnavailableError(f"the stream of {_shown(url)} ended before the task did", delivered=True)

    async def _frames(self, url: str, response: httpx2.Response) -> AsyncGenerator[Frame]:
        most, size = self._limits.max_reply_bytes, 0
        lines = LineReader(most)
        async with aclosing(_chunks(response)) as chunks:
            while True:
                async with self._in_time(url, self._limits.silence_seconds):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    return
                size += len(chunk)
                if size > self._limits.max_stream_bytes:
                    raise TransportError(f"the stream of {_shown(url)} is too long", delivered=True)
                try:
                    frames = [read_frame(line, max_bytes=most) for line in lines.feed(chunk)]
                except ValueError as error:
                    raise TransportError(
                        f"the stream of {_shown(url)} is no stream: {error}", delivered=True
                    ) from error
                for frame in frames:
                    yield frame

    @asynccontextmanager
    async def _in_time(self, url: str, seconds: float) -> AsyncGenerator[None]:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise PeerUnavailableError(f"{_shown(url)} did not answer in time", delivered=True) from None

    @asynccontextmanager
    async def _exchange(self, url: str, operation: str, payload: JSON, accept: str) -> AsyncGenerator[httpx2.Response]:
        """Send a request and give the response to it, which is closed at the end. Refusals are raised."""
        address = self._allowed(url)
        route = route_of(operation)
        path, fields = route.target(require_json(payload, "the request"))
        body = b"" if route.method == "GET" else dumps(fields).encode()
        headers = {
            "Host": address.authority,
            "Accept": accept,
            "Accept-Encoding": "identity",
            "User-Agent": "protolink",
        }
        if body:
            headers["Content-Type"] = _JSON
        elif isinstance(fields, dict) and "after" in fields:
            headers[CURSOR] = str(fields["after"])
        secret = self._credentials.get(address.origin)
        if secret is not None:
            headers["Authorization"] = f"Bearer {secret if isinstance(secret, str) else _checked_token(secret())}"
        async with self._connections(address) as connections:
            # New work alone is held back: what belongs to work that has begun, and a registry, have their own pauses.
            with self._breakers.asking(address.origin) if operation == "task" else nullcontext():
                response = await self._sent(url, address, connections, route.method, path, headers, body)
            try:
                if not 200 <= response.status_code < 300:
                    raise await self._failure(url, response)
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise TransportError(f"the reply of {_shown(url)} is encoded", delivered=True)
                with _broken(url):
                    yield response
            finally:
                await response.aclose()

    async def _sent(
        self,
        url: str,
        address: Address,
        connections: httpx2.AsyncHTTPTransport,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes,
    ) -> httpx2.Response:
        refused: httpx2.TransportError | None = None
        for ip in await self._checked_addresses(url, address):
            host = f"[{ip}]" if ":" in ip else ip
            request = httpx2.Request(
                method,
                f"{address.scheme}://{host}:{address.port}{address.path}{path}",
                headers=headers,
                content=body,
                extensions={"sni_hostname": address.host, "timeout": self._timeouts()},
            )
            try:
                with _broken(url):
                    return await connections.handle_async_request(request)
            except PeerUnavailableError as error:
                if error.delivered or not isinstance(error.__cause__, httpx2.TransportError):
                    raise
                refused = error.__cause__
        raise PeerUnavailableError(f"nobody answers at {_shown(url)}") from refused

    def _timeouts(self) -> dict[str, float | None]:
        limits = self._limits
        return {
            "connect": limits.connect_seconds,
            "pool": limits.call_seconds,
            "write": limits.write_seconds,
            "read": None,  # bounded around the whole
        }

    def _allowed(self, url: str) -> Address:
        address = parse_address(url)
        if self._peers is not None and address.origin not in self._peers:
            raise ConfigurationError(f"{_shown(url)} is not one of the peers that may be asked")
        return address

    async def _checked_addresses(self, url: str, address: Address) -> list[str]:
        """The IP addresses of a host, each of them checked; the connection goes to one of exactly these."""
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                found = await resolve(address.host, address.port)
        except (OSError, TimeoutError, UnicodeError) as error:
            raise PeerUnavailableError(f"the host of {_shown(url)} has no address") from error
        for ip in found:
            if is_forbidden(ip):
                raise ConfigurationError(f"{_shown(url)} leads to an address that no peer can have")
            if address.scheme == "http" and not self._allow_plain_http and not is_loopback(ip):
                raise ConfigurationError(f"{_shown(url)} is another machine: use https, or allow_plain_http=True")
        return found

    @asynccontextmanager
    async def _connections(self, address: Address) -> AsyncGenerator[httpx2.AsyncHTTPTransport]:
        kept = self._kept if asyncio.get_running_loop() is self._loop else None
        if kept is None:
            async with self._made(address) as connections:
                yield connections
            return
        # By origin and not by IP address: a connection proves the name that it was made for, and no other.
        if address.origin not in kept:
            kept[address.origin] = self._made(address)
        yield kept[address.origin]

    def _made(self, address: Address) -> httpx2.AsyncHTTPTransport:
        if address.scheme == "http":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        else:
            self._trust = context = self._trust or ssl.create_default_context()
        return httpx2.AsyncHTTPTransport(
            verify=context,
            trust_env=False,
            limits=httpx2.Limits(
                max_connections=_CONNECTIONS,
                max_keepalive_connections=_CONNECTIONS,
                keepalive_expiry=_IDLE_SECONDS,
            ),
        )

    async def _document(self, response: httpx2.Response) -> JSON:
        body = await _read(response, self._limits.max_reply_bytes)
        if _media(response) != _JSON:
            raise TransportError("the peer's reply is no JSON", delivered=True)
        try:
            return parse(body.decode(), max_bytes=self._limits.max_reply_bytes)
        except ValueError as error:
            raise TransportError(f"the peer's reply cannot be read: {error}", delivered=True) from error

    async def _failure(self, url: str, response: httpx2.Response) -> TransportError:
        status = response.status_code
        if 300 <= status < 400:
            return TransportError(f"{_shown(url)} redirects, which is not followed", delivered=True)
        with _broken(url):
            async with self._in_time(url, self._limits.call_seconds):
                body = await _read(response, _MAX_PROBLEM_BYTES)
        try:
            document: JSON = json.loads(body)
        except (ValueError, RecursionError):
            document = None
        return _refusal(status, document)

    def __repr__(self) -> str:
        return f"<Client with credentials for {len(self._credentials)} origins>"


class _broken:  # noqa: N801 - used like a function
    """Says what a connection's failure means: before it stood nothing was delivered, afterwards nobody knows."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout):
            raise PeerUnavailableError(f"nobody answers at {_shown(self._url)}") from error
        if isinstance(error, httpx2.TransportError):
            raise PeerUnavailableError(
                f"the connection to {_shown(self._url)} broke after the request was sent", delivered=True
            ) from error


async def _chunks(response: httpx2.Response) -> AsyncGenerator[bytes]:
    stream = response.stream
    if not isinstance(stream, httpx2.AsyncByteStream):
        raise TransportError("the reply is no stream", delivered=True)
    async for chunk in stream:
        yield chunk


async def _read(response: httpx2.Response, limit: int) -> bytes:
    body = bytearray()
    async for chunk in _chunks(response):
        body += chunk
        if len(body) > limit:
            raise TransportError(f"the peer's reply has more than {limit} bytes", delivered=True)
    return bytes(body)


def _refusal(status: int, document: JSON) -> TransportError:
    """What a problem document says. Of a status from the server itself, only `delivered` tells how far it came."""
    told = document if isinstance(document, dict) else {}
    detail = told.get("detail")
    reason = f"the peer refused the request ({status})"
    if isinstance(detail, str) and detail:
        reason = f"{reason}: {visible(detail, limit=500)}"
    if status == 404:
        return PeerNotFoundError(reason)
    if status in (429, 503):
        return PeerUnavailableError(reason, delivered=status == 503 and told.get("delivered") is not False)
    if 400 <= status < 500:
        return PeerRefusedError(reason)
    return TransportError(f"the peer failed while it answered ({status})", delivered=True)


def _status(document: JSON) -> int:
    status = document.get("status") if isinstance(document, dict) else None
    return status if isinstance(status, int) else 500


def _media(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _shown(url: str) -> str:
    return repr(visible(url, limit=200))


def _origin(origin: str) -> str:
    address = parse_address(origin)
    if address.path:
        raise ConfigurationError("an origin is a scheme, a host and a port, without a path")
    return address.origin


def _checked(secret: object) -> Credential:
    if isinstance(secret, str):
        return _checked_token(secret)
    if not callable(secret):
        raise ConfigurationError("a credential is a token, or a function that gives one")
    return cast("Callable[[], str]", secret)


def _checked_token(token: object) -> str:
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError("a token is printable ASCII text without spaces")
    return token
