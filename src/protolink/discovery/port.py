"""What an agent needs of a registry, be it an object of this process or one behind a transport."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from protolink.card import AgentCard

__all__ = ["Directory"]


@runtime_checkable
class Directory(Protocol):
    """Who can be reached where. An entry is known by its address; names may repeat."""

    async def register(self, card: AgentCard) -> float | None:
        """Enter or replace a card; gives the seconds within which a heartbeat is expected, or None."""
        ...

    async def unregister(self, url: str) -> bool:
        """Remove the card of an address; False where there was none."""
        ...

    async def heartbeat(self, url: str) -> bool:
        """Say that an address is still served; False where it has to be registered again."""
        ...

    async def discover(self, filter_by: Mapping[str, Any] | None = None) -> list[AgentCard]:
        """The cards that match, in the order of their registration."""
        ...
