"""What an application takes from its clients and keeps for them."""

from __future__ import annotations

from dataclasses import dataclass

from protolink.transport.http.limits import HTTPLimits

__all__ = ["ApplicationLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationLimits(HTTPLimits):
    """Bounds of an application; those of connections and of outgoing calls are a server's and a client's concern.

    Raises `ConfigurationError` for a limit that is not positive and finite.
    """

    max_requests: int = 4096
    """Requests that are being answered at a time, open streams among them; a further one is refused with 429."""

    max_requests_per_principal: int = 2048
    max_runs: int = 2048
    """Runs at work at a time that clients have asked for; a further one is refused with 429."""

    max_runs_per_principal: int = 1024
    max_ended_runs: int = 1024
    """Ended runs that are kept in memory, the latest ones. Stored runs are found in their store besides."""

    max_ended_runs_per_principal: int = 256
    max_idempotency_keys: int = 16384
    """Keys that are remembered, the latest ones."""

    max_idempotency_keys_per_principal: int = 4096
