"""Addresses: what may be served, who may be named in a request, where a client may connect to."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from protolink.errors import ConfigurationError

__all__ = ["Address", "is_forbidden", "is_loopback", "parse_address", "parse_bind", "resolve"]

_PORTS: Final = {"http": 80, "https": 443}
_HOST: Final = re.compile(r"[A-Za-z0-9._:-]+")
_PATH: Final = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@%/-]*")

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_FORBIDDEN: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        # Nobody's, whatever a machine makes of them; Oracle's clouds keep their secrets in the second.
        "0.0.0.0/8",
        "192.0.0.0/24",
        "fec0::/10",
        # Where clouds serve a machine's secrets at addresses that look like anybody's: Alibaba, Azure, AWS, Google.
        "100.100.100.200/32",
        "168.63.129.16/32",
        "fd00:ec2::254/128",
        "fd20:ce::254/128",
    )
)


@dataclass(frozen=True, slots=True)
class Address:
    """A URL of this library's: scheme, host and port, and a path to put before the routes."""

    scheme: str
    host: str
    """In lower case, without brackets."""

    port: int
    path: str

    @property
    def authority(self) -> str:
        """The host and the port, as they stand in a URL and in a `Host` field."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """What credentials belong to."""
        return f"{self.scheme}://{self.authority}"


def parse_address(url: object) -> Address:
    """Read a URL strictly. Raises `ConfigurationError` for one of another kind, without repeating it."""
    wrong = ConfigurationError("the address of an HTTP transport looks like http://host:port or https://host:port")
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or "\\" in url:
        raise wrong
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in _PORTS or not host or not _HOST.fullmatch(host) or not _PATH.fullmatch(parts.path):
        raise wrong
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise ConfigurationError("an address has no user, password, query or fragment; pass credentials=")
    if port == 0:
        raise ConfigurationError("an address needs a port of its own; others could not know a chosen one")
    return Address(parts.scheme, host.lower(), port or _PORTS[parts.scheme], parts.path.rstrip("/"))


def parse_bind(bind: object) -> tuple[str, int]:
    """Read `host:port`."""
    host, colon, port = bind.rpartition(":") if isinstance(bind, str) else ("", "", "")
    if not colon or not host or not port.isdecimal() or not port.isascii() or not 0 < int(port) < 65536:
        raise ConfigurationError("bind= looks like host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, in the order in which they are to be tried. Raises `OSError` where there are none."""
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_loopback(address: str) -> bool:
    """Whether an address leads nowhere but to this machine."""
    return _plain(address).is_loopback


def is_forbidden(address: str) -> bool:
    """Whether no peer can have that address: link-local ones serve a machine's own secrets, others nobody."""
    ip = _plain(address)
    if ip.is_loopback:
        return False
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified or ip.is_reserved:
        return True
    return any(ip in network for network in _FORBIDDEN)


def _plain(address: str) -> IPAddress:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        # Spellings of an IPv4 address that the system would follow.
        return ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else ip)
    return ip
