"""How agents reach each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protolink.transport.create import create_transport
from protolink.transport.errors import (
    PeerNotFoundError,
    PeerRefusedError,
    PeerUnavailableError,
    TransportError,
    TransportStartError,
)
from protolink.transport.outgoing import Outgoing
from protolink.transport.port import Handler, Transport
from protolink.transport.runtime import RuntimeTransport

if TYPE_CHECKING:
    from protolink.transport.http.transport import HTTPTransport

__all__ = [
    "HTTPTransport",
    "Handler",
    "Outgoing",
    "PeerNotFoundError",
    "PeerRefusedError",
    "PeerUnavailableError",
    "RuntimeTransport",
    "Transport",
    "TransportError",
    "TransportStartError",
    "create_transport",
]


def __getattr__(name: str) -> Any:
    """Load the HTTP transport, and the packages that it needs, when it is first used."""
    if name != "HTTPTransport":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from protolink.transport.http import HTTPTransport

    return HTTPTransport
