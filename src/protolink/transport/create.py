"""Transports by their name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from protolink.errors import ConfigurationError
from protolink.transport.port import Transport
from protolink.transport.runtime import RuntimeTransport

__all__ = ["create_transport"]


def _runtime(url: str | None, **options: Any) -> Transport:
    if options:
        raise ConfigurationError(f"the transport 'runtime' has no {' or '.join(sorted(options))}")
    return RuntimeTransport(url)


def _http(url: str | None, **options: Any) -> Transport:
    # Only who uses HTTP has its packages.
    from protolink.transport.http import HTTPTransport

    return HTTPTransport(url, **options)


_KNOWN: Final[dict[str, Callable[..., Transport]]] = {"http": _http, "runtime": _runtime}


def create_transport(transport: object, url: str | None = None, **options: Any) -> Transport:
    """The transport of that name for an address, or the given object if it is one already.

    `options` are those of the named transport; None stands for one that is not given. Raises
    `ConfigurationError` for an unknown name, for options that are not the transport's, and for an object that
    is no transport.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(transport, str):
        make = _KNOWN.get(transport)
        if make is None:
            known = ", ".join(map(repr, sorted(_KNOWN)))
            raise ConfigurationError(f"the transport {transport!r} is not known here, only {known}")
        return make(url, **given)
    if not isinstance(transport, Transport):
        raise ConfigurationError(f"a transport is a name or a Transport, not {type(transport).__name__}")
    if given:
        raise ConfigurationError(f"give {' and '.join(sorted(given))} to the transport that you have made")
    if url is not None and transport.url != url:
        raise ConfigurationError(f"the transport serves {transport.url!r}, but the url given is {url!r}")
    return transport
