"""A registry behind a transport."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protolink._values import Reader
from protolink.card import AgentCard
from protolink.discovery.port import Directory
from protolink.errors import ConfigurationError
from protolink.transport.create import create_transport
from protolink.transport.port import Transport

__all__ = ["RegistryClient", "create_directory"]


class RegistryClient:
    """The same questions as to a `Registry`, asked over a transport."""

    def __init__(self, transport: str | Transport, url: str, **options: Any) -> None:
        self._transport = create_transport(transport, **options)
        self.url = url

    async def register(self, card: AgentCard) -> float | None:
        """Enter or replace the card of an address."""
        return (await self._ask("register", card=card.to_dict())).optional_number("ttl")

    async def unregister(self, url: str) -> bool:
        """Remove the card of an address."""
        return (await self._ask("unregister", url=url)).boolean("known", False)

    async def heartbeat(self, url: str) -> bool:
        """Say that an address is still served."""
        return (await self._ask("heartbeat", url=url)).boolean("known", False)

    async def discover(self, filter_by: Mapping[str, Any] | None = None) -> list[AgentCard]:
        """The cards that match. A registry elsewhere can name no agent of this process."""
        asked = await self._ask("discover", filter_by=None if filter_by is None else dict(filter_by))
        cards = [AgentCard.from_dict(card) for card in asked.items("cards")]
        if is_of_one_process(self.url):
            return cards
        # Somebody elsewhere would be naming an agent of this process, which takes whoever asks for its own.
        return [card for card in cards if not is_of_one_process(card.url or "")]

    async def _ask(self, operation: str, **payload: Any) -> Reader:
        return Reader(await self._transport.call(self.url, operation, payload), "the registry's reply")

    def __repr__(self) -> str:
        return f"<RegistryClient of {self.url}>"


def is_of_one_process(url: str) -> bool:
    """Whether an address means something in one process only."""
    return url.lower().startswith("runtime:")


def create_directory(registry: object, url: str | None = None, **options: Any) -> Directory | None:
    """The registry that an agent was given: an object, or the name of a transport with an address."""
    if registry is None:
        if url is not None:
            raise ConfigurationError("registry_url needs registry=, the transport by which it is reached")
        return None
    if isinstance(registry, str):
        if url is None:
            raise ConfigurationError(f"registry={registry!r} needs registry_url=, the registry's address")
        return RegistryClient(registry, url, **options)
    if not isinstance(registry, Directory):
        raise ConfigurationError(f"registry is a Registry or the name of a transport, not {type(registry).__name__}")
    return registry
