"""A registry of which only signed cards are believed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from protolink._json import canonical, digest
from protolink._text import visible
from protolink.card import AgentCard
from protolink.discovery.port import Directory
from protolink.discovery.registry import matches
from protolink.errors import ConfigurationError

__all__ = ["SignedRegistry"]

MAX_CARDS_OF_A_NAME: Final = 50
"""How many cards under one name are looked at, each of which costs a signature's verification."""

_SIGNATURE: Final = "signature"
_logger: Final = logging.getLogger("protolink")


class SignedRegistry:
    """Signs the cards that are registered through it, and gives only those that the right key has signed.

    An agent is then who has the key for its name, wherever the registry is and whoever can write to it. The signature
    is a JWS over the card as canonical JSON, its address included, in `metadata["signature"]`. The first card of a
    name that verifies is the accepted one; another is refused, though it is signed, until `accept` is called. Needs
    the extra `jwt`.

    Parameters
    ----------
    registry
        Where the cards are: a `Registry` or a `RegistryClient`.
    trusted
        The public key, or the shared secret, of each agent that may be found, by its name.
    key
        What the cards that are registered here are signed with; None signs none.
    algorithm
        The one JWS algorithm of all these keys.
    accepted
        What `accepted` gave earlier, so that changes are noticed over a restart.
    """

    def __init__(
        self,
        registry: Directory,
        trusted: Mapping[str, Any],
        *,
        key: Any = None,
        algorithm: str = "EdDSA",
        accepted: Mapping[str, str] | None = None,
    ) -> None:
        try:
            import jwt
        except ModuleNotFoundError as error:
            raise ConfigurationError("signed cards need PyJWT: pip install 'protolink[jwt]'") from error
        signatures = jwt.PyJWS()
        if algorithm.lower() == "none" or algorithm not in signatures.get_algorithms():
            raise ConfigurationError("algorithm= is one that PyJWT knows, such as 'EdDSA'")
        self._registry = registry
        self._trusted = dict(trusted)
        self._key = key
        self._algorithm = algorithm
        self._encode: Callable[..., str] = signatures.encode
        self._decode: Callable[..., object] = signatures.decode
        self._invalid = jwt.PyJWTError
        self._accepted = dict(accepted or {})
        self._refused: set[str] = set()

    @property
    def accepted(self) -> Mapping[str, str]:
        """The digest of the accepted card of each name that was found."""
        return MappingProxyType(self._accepted)

    def accept(self, card: AgentCard) -> None:
        """Have a card stand for its name from now on, instead of the one that did.

        Raises `ValueError` for one that the key of its name has not signed.
        """
        if not self._is_signed(card):
            raise ValueError(f"the card of {visible(card.name, limit=100)!r} is not signed by the key of that name")
        self._accepted[card.name] = digest(_text(card))

    async def register(self, card: AgentCard) -> float | None:
        """Enter or replace a card, signed."""
        return await self._registry.register(card if self._key is None else self._signed(card))

    async def unregister(self, url: str) -> bool:
        """Remove the card of an address."""
        return await self._registry.unregister(url)

    async def heartbeat(self, url: str) -> bool:
        """Say that an address is still served."""
        return await self._registry.heartbeat(url)

    async def discover(self, filter_by: Mapping[str, Any] | None = None) -> list[AgentCard]:
        """The cards that match, are signed by the key of their name, and are the accepted ones."""
        looked_at: Counter[str] = Counter()
        believed: list[AgentCard] = []
        for card in await self._registry.discover(filter_by):
            if not matches(card, filter_by or {}):  # a registry that answers with somebody else's signed card
                continue
            looked_at[card.name] += 1
            if card.name in self._trusted and looked_at[card.name] <= MAX_CARDS_OF_A_NAME and self._believes(card):
                believed.append(card)
        self._refused -= {card.name for card in believed}
        return believed

    def _believes(self, card: AgentCard) -> bool:
        if not self._is_signed(card):
            self._refuse(card, "is not signed by the key of that name")
            return False
        if self._accepted.setdefault(card.name, digest(_text(card))) != digest(_text(card)):
            self._refuse(card, "has changed, and nobody has accepted that")
            return False
        return True

    def _refuse(self, card: AgentCard, why: str) -> None:
        # Once until a card of the name is believed again: whoever can enter cards must not be able to fill the log.
        if card.name not in self._refused:
            self._refused.add(card.name)
            _logger.warning("a card of the name %s %s", visible(card.name, limit=100), why)

    def _signed(self, card: AgentCard) -> AgentCard:
        made = AgentCard.from_dict(card.to_dict())
        made.metadata[_SIGNATURE] = self._encode(
            _text(card).encode(), self._key, algorithm=self._algorithm, is_payload_detached=True
        )
        return made

    def _is_signed(self, card: AgentCard) -> bool:
        signature = card.metadata.get(_SIGNATURE)
        if card.name not in self._trusted or not isinstance(signature, str):
            return False
        try:
            text = _text(card).encode()
            self._decode(signature, self._trusted[card.name], algorithms=[self._algorithm], detached_payload=text)
        except (self._invalid, ValueError, TypeError):  # what a stranger wrote is no signature
            return False
        return True

    def __repr__(self) -> str:
        return f"<SignedRegistry of {len(self._trusted)} trusted names over {self._registry!r}>"


def _text(card: AgentCard) -> str:
    """What is signed: everything but the signature."""
    fields = card.to_dict()
    fields["metadata"].pop(_SIGNATURE, None)
    return canonical(fields)
