"""The registry: the cards of agents that can be reached."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Final

from protolink._environment import current_environment
from protolink._json import JSON, dumps, require_json
from protolink._runtime.lifecycle import Lifecycle, starting
from protolink._runtime.principal import LOCAL, current_principal
from protolink._runtime.threads import Workers
from protolink._values import Reader
from protolink.card import AgentCard
from protolink.discovery.presence import answer_on
from protolink.discovery.remote import is_of_one_process
from protolink.errors import ConfigurationError
from protolink.storage.port import Storage
from protolink.transport.create import create_transport
from protolink.transport.errors import PeerNotFoundError, PeerUnavailableError
from protolink.transport.port import Transport

__all__ = ["Registry", "matches"]

MAX_ENTRIES: Final = 10_000
MAX_ENTRIES_OF_ONE: Final = 500
"""Entries of one principal who is not of this process."""

MAX_CARD_CHARACTERS: Final = 64 * 1024
_FIELDS: Final = ("name", "description", "url", "version")


@dataclass(slots=True)
class _Entry:
    card: AgentCard
    seen: float
    """When it was last heard of, by the monotonic clock."""

    owner: str = LOCAL
    """Who registered it, and alone can change it."""


class Registry:
    """Knows who can be reached where, for this process and, over its transport, for others.

    Parameters
    ----------
    transport
        How others reach it: the name of a transport, or a transport.
    url
        Its address, with the name of a transport.
    verbosity
        Kept for the application's logging.
    entry_ttl_seconds
        After how many seconds without a heartbeat an entry is forgotten; None keeps entries.
    storage
        A `Storage` whose object holds the entries, so that they survive a restart.
    """

    def __init__(
        self,
        transport: str | Transport = "http",
        url: str | None = None,
        verbosity: int = 1,
        *,
        entry_ttl_seconds: float | None = None,
        storage: Storage | None = None,
    ) -> None:
        if entry_ttl_seconds is not None and not 0 < entry_ttl_seconds < float("inf"):
            raise ConfigurationError("entry_ttl_seconds must be positive and finite, or None")
        if storage is not None and not isinstance(storage, Storage):
            raise ConfigurationError(f"storage must be a Storage, not {type(storage).__name__}")
        self._transport = create_transport(transport, url)
        if self._transport.url is None:
            raise ConfigurationError("a registry needs an address; pass url=")
        self.url: str = self._transport.url
        self.verbosity = verbosity
        self._ttl = entry_ttl_seconds
        self._storage = storage
        self._workers = Workers(1)
        self._entries: dict[str, _Entry] = {}
        self._environment = current_environment()
        answer_on(self._transport, self._answer)
        self._lifecycle = Lifecycle(self._enter)

    async def start(self) -> None:
        """Serve; ready when it returns. Raises `TransportStartError`. Starting again changes nothing."""
        await self._lifecycle.start()

    async def stop(self) -> None:
        """Stop serving. Without a storage the entries are gone."""
        await self._lifecycle.stop()

    async def _enter(self, stack: AsyncExitStack) -> None:
        self._environment = current_environment()
        async with starting(f"the registry at {self.url!r}"):
            if self._storage is not None:
                self._entries = self._restored(await self._workers.run(self._storage.load))
            stack.callback(self._entries.clear)
            stack.push_async_callback(self._transport.stop)
            await self._transport.start()

    async def register(self, card: AgentCard) -> float | None:
        """Enter or replace the card of an address; gives the seconds within which a heartbeat is expected.

        Raises `ValueError` for a card without an address or with one that is not the sender's to give, and
        `PeerUnavailableError` where the registry is not running.
        """
        self._require_running()
        if not card.url:
            raise ValueError(f"agent {card.name!r} has no address, so nobody could reach it")
        if card.url not in self._entries:
            self._require_room()
        if len(dumps(require_json(card.to_dict(), "a card"))) > MAX_CARD_CHARACTERS:
            raise ValueError(f"a card has at most {MAX_CARD_CHARACTERS} characters as JSON; shorten its descriptions")
        if current_principal() != LOCAL and is_of_one_process(card.url):
            raise ValueError("runtime:// names an agent of one process, and can be registered from there alone")
        if card.url in self._entries and self._own(card.url) is None:
            raise ValueError("that address is registered by somebody else")
        entry = _Entry(AgentCard.from_dict(card.to_dict()), self._environment.monotonic(), current_principal())
        replaced = self._entries.get(card.url)
        self._entries[card.url] = entry
        try:
            await self._keep()
        except BaseException:
            # What would not survive a restart is not promised.
            if self._entries.get(card.url) is entry:
                del self._entries[card.url]
                if replaced is not None:
                    self._entries[card.url] = replaced
            raise
        return self._ttl

    async def unregister(self, url: str) -> bool:
        """Remove the card of an address; False where there was none."""
        self._require_running()
        if self._own(url) is None:
            return False
        del self._entries[url]
        await self._keep()
        return True

    async def heartbeat(self, url: str) -> bool:
        """Say that an address is still served; False where it has to be registered again."""
        self._require_running()
        self._forget_silent()
        entry = self._own(url)
        if entry is not None:
            entry.seen = self._environment.monotonic()
        return entry is not None

    async def discover(self, filter_by: Mapping[str, Any] | None = None) -> list[AgentCard]:
        """The cards that match, in the order of their registration.

        `filter_by` gives the value that a field has to have: `name`, `description`, `url` or `version`;
        `skill` is the name of a tool that has to be offered. Raises `ValueError` for anything else.
        """
        self._require_running()
        self._forget_silent()
        cards = [AgentCard.from_dict(entry.card.to_dict()) for entry in self._entries.values()]
        return [card for card in cards if matches(card, filter_by or {})]

    def _own(self, url: str) -> _Entry | None:
        """The entry of an address, where it is the caller's to change: somebody else's is answered as none."""
        entry = self._entries.get(url)
        return entry if entry is not None and current_principal() in (entry.owner, LOCAL) else None

    def _require_room(self) -> None:
        """Raise `ValueError` where the caller, or all together, have as many entries as are kept."""
        principal = current_principal()
        own = sum(entry.owner == principal for entry in self._entries.values())
        if len(self._entries) >= MAX_ENTRIES or (principal != LOCAL and own >= MAX_ENTRIES_OF_ONE):
            raise ValueError(f"the registry keeps {MAX_ENTRIES} entries, and {MAX_ENTRIES_OF_ONE} of one principal")

    def _require_running(self) -> None:
        if not self._lifecycle.running:
            raise PeerUnavailableError(f"the registry at {self.url!r} is not running")

    def _forget_silent(self) -> None:
        if self._ttl is not None:
            oldest = self._environment.monotonic() - self._ttl
            for url in [url for url, entry in self._entries.items() if entry.seen < oldest]:
                del self._entries[url]

    async def _keep(self) -> None:
        if self._storage is not None:
            kept = tuple(self._entries.values())
            stored = {"entries": [entry.card.to_dict() for entry in kept], "owners": [entry.owner for entry in kept]}
            await self._workers.run(self._storage.save, stored)

    def _restored(self, stored: Mapping[str, Any] | None) -> dict[str, _Entry]:
        """The stored entries, each with its time to live before it: clocks do not survive a restart."""
        now = self._environment.monotonic()
        read = Reader(stored or {}, "the stored registry")
        cards = [AgentCard.from_dict(card) for card in read.items("entries")]
        owners = chain(read.texts("owners"), repeat(LOCAL))
        return {card.url: _Entry(card, now, owner) for card, owner in zip(cards, owners, strict=False) if card.url}

    async def _answer(self, operation: str, payload: JSON) -> JSON:
        read = Reader(payload, "a request to the registry")
        match operation:
            case "register":
                return {"ttl": await self.register(AgentCard.from_dict(read.mapping("card")))}
            case "unregister":
                return {"known": await self.unregister(read.text("url"))}
            case "heartbeat":
                return {"known": await self.heartbeat(read.text("url"))}
            case "discover":
                cards = await self.discover(read.optional_mapping("filter_by"))
                return {"cards": [card.to_dict() for card in cards]}
            case _:
                raise PeerNotFoundError(f"a registry has no operation {operation!r}")

    def __repr__(self) -> str:
        state = f"{len(self._entries)} entries" if self._lifecycle.running else "not running"
        return f"<Registry {self.url} with {state}>"


def matches(card: AgentCard, filter_by: Mapping[str, Any]) -> bool:
    """Whether a card has every asked value."""
    for key, wanted in filter_by.items():
        if key == "skill":
            if not any(skill.get("name") == wanted for skill in card.skills):
                return False
        elif key not in _FIELDS:
            raise ValueError(f"cards are filtered by {', '.join(_FIELDS)} and skill, not by {key!r}")
        elif getattr(card, key) != wanted:
            return False
    return True
