"""The one client of outgoing requests connects where it may, and shows a credential where it belongs."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from protolink import ConfigurationError
from protolink.transport import HTTPTransport, PeerUnavailableError, TransportError
from protolink.transport.http.addresses import is_forbidden, is_loopback
from tests.http.servers import Waiting, free_url, port_of, served


@asynccontextmanager
async def listener(answer: bytes) -> AsyncGenerator[tuple[str, list[bytes]]]:
    """A peer that keeps what it is sent and answers each request the same."""
    heard: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heard
    finally:
        server.close()
        await server.wait_closed()


FINE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4\r\nSet-Cookie: a=b\r\n\r\nnull"


def elsewhere(url: str, status: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nLocation: {url}/card\r\nContent-Length: 0\r\n\r\n".encode()


async def test_c12_a_credential_is_shown_to_its_origin_alone() -> None:
    """Another port of the same host is another peer; and no peer's cookie comes back."""
    async with listener(FINE) as (one, at_one), listener(FINE) as (two, at_two), listener(FINE) as (three, at_three):
        tokens = iter(["first", "second"])
        transport = HTTPTransport(credentials={one: "token-of-one", two: lambda: next(tokens)})
        async with transport:
            for url in (one, two, two, three):
                await transport.call(url, "card", None)

    assert b"authorization: bearer token-of-one\r\n" in at_one[0].lower()
    assert [b"first" in at_two[0], b"second" in at_two[1]] == [True, True]
    assert b"authorization" not in at_three[0].lower()
    everything = b"".join(at_one + at_two + at_three).lower()
    assert everything.count(b"token-of-one") == 1
    assert b"cookie" not in everything


@pytest.mark.parametrize("status", ["301 x", "302 x", "303 x", "307 x", "308 x"])
async def test_c12_a_redirect_takes_no_credential_along(status: str) -> None:
    """It is not followed at all, and the caller is told."""
    async with listener(FINE) as (other, at_other), listener(elsewhere(other, status)) as (first, at_first):
        with pytest.raises(TransportError, match="redirect"):
            await HTTPTransport(credentials={first: "secret-token"}).call(first, "card", None)

    assert (len(at_first), at_other) == (1, [])


async def test_c12_an_agent_passes_no_callers_token_on() -> None:
    """What a request came in with stays there: calls made for it show the agent's own credentials or none."""
    async with listener(FINE) as (other, at_other):
        calling = HTTPTransport()

        async def relay(operation: str, payload: Any) -> Any:
            return await calling.call(other, "card", None)

        async with served(relay) as transport:
            url = str(transport.url)
            await HTTPTransport(credentials={url: "callers-token"}).call(url, "task", None)

    assert b"callers-token" not in at_other[0]


FORBIDDEN = [
    "http://169.254.169.254",
    "http://169.254.169.254:80/latest",
    "http://[::ffff:169.254.169.254]",
    "http://[fe80::1]",
    "http://2852039166",
    "http://0xa9fea9fe",
    "http://0251.0376.0251.0376",
    "http://0.0.0.0:1",
    "http://0:1",
    "http://[::]:1",
    "http://224.0.0.1",
    "http://255.255.255.255",
    "http://240.0.0.1",
    "http://[ff02::1]",
    "http://10.0.0.1",
    "http://192.168.1.1:8000",
    "http://[fd00::1]",
    "https://169.254.169.254",
    "https://[::ffff:169.254.169.254]",
    "https://0.0.0.0",
    "file:///etc/passwd",
    "gopher://127.0.0.1:1",
    "http://user:password@127.0.0.1:1",
    "http://127.0.0.1:1#@evil.example",
]


@pytest.mark.parametrize("url", FORBIDDEN)
async def test_c12_some_addresses_no_peer_can_have(url: str) -> None:
    """In whatever spelling: refused before anything is sent. Plain http stays on this machine."""
    with pytest.raises(ConfigurationError) as caught:
        await HTTPTransport().call(url, "card", None)

    assert "password" not in str(caught.value).replace("user, password", "")


@pytest.mark.parametrize(
    "address",
    [
        "169.254.1.1",
        "::ffff:169.254.1.1",
        "fe80::1%lo",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "255.255.255.255",
        "2002:a9fe:a9fe::1",
    ],
)
def test_c12_forbidden_addresses_are_known(address: str) -> None:
    """A name that resolves to one of them is refused too."""
    assert is_forbidden(address)


def test_c12_ordinary_addresses_are_allowed() -> None:
    """A team may live in a private network, over TLS."""
    assert not any(map(is_forbidden, ["127.0.0.1", "::1", "10.0.0.1", "192.168.1.1", "fd00::1", "93.184.216.34"]))
    assert [is_loopback(address) for address in ("127.8.8.8", "::1", "::ffff:127.0.0.1", "10.0.0.1")] == [
        True,
        True,
        True,
        False,
    ]


async def test_c12_only_listed_peers_are_asked() -> None:
    """Where the application lists them."""
    async with listener(FINE) as (one, at_one), listener(FINE) as (two, at_two):
        transport = HTTPTransport(peers=[one])
        await transport.call(one, "card", None)
        with pytest.raises(ConfigurationError, match="not one of the peers"):
            await transport.call(two, "card", None)

    assert (len(at_one), at_two) == (1, [])


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are its certificates: none of the variables weakens a check."""
    async with listener(FINE) as (proxy, at_proxy), listener(FINE) as (peer, at_peer):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        await HTTPTransport().call(peer, "card", None)

    assert (len(at_proxy), len(at_peer)) == (0, 1)


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate of its own authority for 127.0.0.1."""
    key, made = folder / f"{name}.key", folder / f"{name}.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(made)),
        ],
        check=True,
        capture_output=True,
    )
    return key, made


async def test_c18_tls_is_served_and_verified(tmp_path: Path) -> None:
    """A peer with another certificate is not asked, and verification cannot be left out."""
    key, made = certificate(tmp_path, "ours")
    _, others = certificate(tmp_path, "others")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(made, key)
    url = free_url().replace("http:", "https:")

    async def echo(operation: str, payload: Any) -> Any:
        return payload

    transport = HTTPTransport(url, tls=serving)
    transport.serve(echo)
    await transport.start()
    try:
        good = HTTPTransport(trust=ssl.create_default_context(cafile=str(made)))
        assert await good.call(url, "task", "hello") == "hello"
        async with good:
            assert [await good.call(url, "task", number) for number in range(3)] == [0, 1, 2]
        for suspicious in (HTTPTransport(), HTTPTransport(trust=ssl.create_default_context(cafile=str(others)))):
            with pytest.raises(PeerUnavailableError) as caught:
                await suspicious.call(url, "task", "secret")
            assert not caught.value.delivered
    finally:
        await transport.stop()
    lax = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    lax.check_hostname = False
    with pytest.raises(ConfigurationError, match="verify"):
        HTTPTransport(trust=lax)


async def test_a_server_that_is_killed_while_it_answers_leaves_the_outcome_unknown() -> None:
    """The request was sent and the connection broke: look before retrying."""
    waiting = Waiting()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        waiting.entered.set()
        await waiting.go.wait()
        writer.transport.abort()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{port_of(':' + str(server.sockets[0].getsockname()[1]))}"
    asking = asyncio.create_task(HTTPTransport().call(url, "task", {}))
    await waiting.entered.wait()
    waiting.go.set()
    with pytest.raises(PeerUnavailableError, match="broke after") as caught:
        await asking
    server.close()
    await server.wait_closed()

    assert caught.value.delivered
