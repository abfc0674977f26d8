"""How agents reach each other."""

from protolink.transport.create import create_transport
from protolink.transport.errors import PeerRefusedError, PeerUnavailableError, TransportError, TransportStartError
from protolink.transport.port import Handler, Transport
from protolink.transport.runtime import RuntimeTransport

__all__ = [
    "Handler",
    "PeerRefusedError",
    "PeerUnavailableError",
    "RuntimeTransport",
    "Transport",
    "TransportError",
    "TransportStartError",
    "create_transport",
]
