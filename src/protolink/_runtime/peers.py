"""What a run needs of agents that are reached over a transport."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from protolink._runtime.scopes import TimedOut
from protolink._text import visible
from protolink.card import AgentCard
from protolink.events import RunEvent
from protolink.llms.port import ToolDeclaration
from protolink.llms.prompt import WorkerDescription
from protolink.task import Task

if TYPE_CHECKING:
    from protolink._runtime.driver import Driver

__all__ = ["MAX_AGENTS_IN_CHAIN", "Peers", "names_above", "offered_peers"]

MAX_AGENTS_IN_CHAIN: Final = 8
"""How many agents may have passed a piece of work on before it is asked of one more peer."""

MAX_PEERS_OFFERED: Final = 50
_MAX_TOOLS_TOLD: Final = 50
_LOOKUP_SECONDS: Final = 5.0
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,99}")


class Peers(Protocol):
    """The agents of a registry, as one agent sees them."""

    async def known(self) -> Sequence[AgentCard]:
        """The cards of the others, perhaps those of a moment ago. Never raises."""
        ...

    async def named(self, name: str) -> Sequence[AgentCard]:
        """The cards of the others that have a name, as they are now. Raises where the registry does not answer."""
        ...

    def ask(self, url: str, task: Task) -> AsyncGenerator[RunEvent | Task]:
        """Send a task; gives events where the peer streams, and last the final task. Raises `TransportError`."""
        ...


def names_above(driver: Driver) -> tuple[str, ...]:
    """The agents that have passed this work on, and the one that has it."""
    return (*driver.context.agent_chain, driver.configuration.agent_name)


async def offered_peers(driver: Driver) -> tuple[WorkerDescription, ...]:
    """The peers that a model is told of: those that could be asked, described in words that can do nothing else."""
    peers, owned = driver.configuration.peers, driver.configuration.subagents
    above = names_above(driver)
    if peers is None or len(above) > MAX_AGENTS_IN_CHAIN:
        return ()
    try:
        cards = await driver.scope.call(peers.known(), _LOOKUP_SECONDS)
    except TimedOut:
        return ()
    found: dict[str, list[AgentCard]] = {}
    for card in cards:
        if _NAME.fullmatch(card.name) and card.name not in owned and card.name not in above:
            found.setdefault(card.name, []).append(card)
    # A name that stands for several agents stands for none.
    alone = [same[0] for same in found.values() if len(same) == 1]
    return tuple(_described(card) for card in alone[:MAX_PEERS_OFFERED])


def _described(card: AgentCard) -> WorkerDescription:
    names: list[Any] = [skill.get("name") for skill in card.skills[:_MAX_TOOLS_TOLD]]
    # Of a peer's tools the names are told; what they take is for the peer to say.
    tools = tuple(
        ToolDeclaration(name=name, description="", input_schema={"type": "object"})
        for name in names
        if isinstance(name, str) and _NAME.fullmatch(name)
    )
    return WorkerDescription(card.name, visible(card.description, limit=300), infers=True, tools=tools)


async def look_up(driver: Driver, name: str) -> Sequence[AgentCard]:
    """The cards of a name. Raises `TimeoutError`, or whatever keeps the registry from answering."""
    peers = driver.configuration.peers
    if peers is None:
        return ()
    try:
        found: Sequence[AgentCard] = await driver.scope.call(peers.named(name), _LOOKUP_SECONDS)
    except TimedOut:
        raise TimeoutError from None
    return found
