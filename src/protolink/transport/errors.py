"""What can go wrong between an agent and its peers.

::

    TransportError                  read what happened; `delivered` says whether the peer may have begun
    ├── TransportStartError         fix the address or free it: nothing is being served
    ├── PeerUnavailableError        try later: nobody answers at that address
    └── PeerRefusedError            fix the request: the peer looked at it and did nothing
        └── PeerNotFoundError       fix the name: there is no such operation or task, or it is somebody else's
"""

from __future__ import annotations

from protolink.errors import ProtolinkError

__all__ = ["PeerNotFoundError", "PeerRefusedError", "PeerUnavailableError", "TransportError", "TransportStartError"]


class TransportError(ProtolinkError):
    """A message to or from a peer could not be handled.

    `delivered` is False where the peer cannot have begun, so that a second attempt is safe.
    """

    def __init__(self, message: str, *, delivered: bool = False) -> None:
        super().__init__(message)
        self.delivered = delivered


class TransportStartError(TransportError):
    """Something could not start to serve; whatever had started with it was stopped again."""


class PeerUnavailableError(TransportError):
    """Nobody answers at the address, or whoever did has gone."""


class PeerRefusedError(TransportError):
    """The peer looked at the request and refused it."""


class PeerNotFoundError(PeerRefusedError):
    """The peer has no such operation or task. What belongs to somebody else is answered the same."""
