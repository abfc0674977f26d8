"""Transports by their name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protolink.errors import ConfigurationError
from protolink.transport.port import Transport
from protolink.transport.runtime import RuntimeTransport

__all__ = ["create_transport"]

_KNOWN: Final[dict[str, Callable[[str | None], Transport]]] = {"runtime": RuntimeTransport}


def create_transport(transport: object, url: str | None = None) -> Transport:
    """The transport of that name for an address, or the given object if it is one already.

    Raises `ConfigurationError` for an unknown name and for an object that is no transport.
    """
    if isinstance(transport, str):
        make = _KNOWN.get(transport)
        if make is None:
            known = ", ".join(map(repr, sorted(_KNOWN)))
            raise ConfigurationError(f"the transport {transport!r} is not known here, only {known}")
        return make(url)
    if not isinstance(transport, Transport):
        raise ConfigurationError(f"a transport is a name or a Transport, not {type(transport).__name__}")
    if url is not None and transport.url != url:
        raise ConfigurationError(f"the transport serves {transport.url!r}, but the url given is {url!r}")
    return transport
