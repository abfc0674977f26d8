"""The agents of a registry, as the runs of one agent ask them."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from protolink._environment import current_environment
from protolink._text import describe_error, visible
from protolink.card import AgentCard
from protolink.client import AgentClient
from protolink.discovery.port import Directory
from protolink.events import RunEvent
from protolink.task import Task
from protolink.transport.outgoing import Outgoing

__all__ = ["RegistryPeers"]

_FRESH_SECONDS: Final = 5.0
_logger: Final = logging.getLogger("protolink")


class RegistryPeers:
    """Everybody whom a registry knows but the agent itself.

    The list that models are told of is kept for a moment, and for longer while the registry does not answer.
    """

    def __init__(self, own: AgentCard, directory: Directory, outgoing: Outgoing) -> None:
        self._own = own
        self._directory = directory
        self._client = AgentClient(outgoing)
        self._known: tuple[AgentCard, ...] = ()
        self._asked_at: float | None = None
        self._lost = False

    async def known(self) -> Sequence[AgentCard]:
        """The cards of the others, as of a moment ago. Where the registry does not answer, the last ones."""
        now = current_environment().monotonic()
        if self._asked_at is None or not 0 <= now - self._asked_at < _FRESH_SECONDS:
            self._asked_at = now
            try:
                self._known = self._others(await self._directory.discover())
                self._lost = False
            except Exception as error:  # the registry is somebody else's, and the agent works on without it
                if not self._lost:
                    name, why = visible(self._own.name, limit=100), visible(describe_error(error))
                    _logger.warning("agent %s goes on without its registry: %s", name, why)
                self._lost = True
        return self._known

    async def named(self, name: str) -> Sequence[AgentCard]:
        """The cards of a name, as they are now. Raises what the registry raises."""
        return self._others(await self._directory.discover({"name": name}))

    def ask(self, url: str, task: Task) -> AsyncGenerator[RunEvent | Task]:
        """Send a task; gives events where the peer streams, and last the final task. Raises `TransportError`."""
        return self._client.stream_task(url, task)

    def _others(self, cards: Sequence[AgentCard]) -> tuple[AgentCard, ...]:
        return tuple(card for card in cards if card.url and card.url != self._own.url)
