"""What a model is offered in a turn: tools, the words about them, demonstrations, the schema of its actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from protolink._json import dumps
from protolink._record import command
from protolink.errors import ConfigurationError
from protolink.llms.actions import action_schema
from protolink.llms.choice import AUTO, NONE, REQUIRED
from protolink.llms.port import LLM, ToolDeclaration
from protolink.llms.prompt import (
    COMPACT_WINDOW,
    WorkerDescription,
    agent_call_declaration,
    choice_in_words,
    demonstrations,
    system_prompt,
)

if TYPE_CHECKING:
    from protolink._runtime.configuration import Configuration

__all__ = ["Offer", "Offers"]

Workers: TypeAlias = tuple[WorkerDescription, ...]

_KEPT: Final = 64
"""Forms that are remembered. Only hooks that leave out ever other tools make more of them."""

SMALL_TEXT: Final = 1_000
"""The characters of an answer, and of a task for a worker, that are constrained and for which nobody has set a bound.
It holds for models with a small context window alone: they may find no end by themselves."""


@command
class Offer:
    """One form of a turn."""

    tools: tuple[ToolDeclaration, ...]
    prompt: str
    demonstrations: tuple[dict[str, Any], ...]
    action_schema: Mapping[str, Any] | None
    characters: int
    """The length of all that is sent beside the conversation."""


class Offers:
    """The offers of one configuration, made once and remembered: a turn that is like another costs a lookup."""

    __slots__ = ("_configuration", "_made")

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._made: dict[object, Offer] = {}

    def require(self, choice: str, workers: Workers | None = None) -> None:
        """Raise `ConfigurationError` for a choice that the agent has no tool, and no worker, for.

        `workers` are those of a turn, or None for the agent's own.
        """
        configuration = self._configuration
        if choice in (AUTO, NONE) or choice in configuration.tools:
            return
        workers = configuration.workers_offered if workers is None else workers
        if choice == REQUIRED and (configuration.tools or workers):
            return
        if choice == "agent_call" and workers:
            return
        if choice == REQUIRED:
            raise ConfigurationError(
                f"tool_choice='required' needs a tool; agent {configuration.agent_name!r} has none"
            )
        known = ", ".join(sorted(configuration.tools)) or "none"
        raise ConfigurationError(
            f"tool_choice names {choice[:100]!r}, which is no tool of agent {configuration.agent_name!r}; "
            f"its tools are: {known}"
        )

    def native_declarations(self, workers: Workers | None = None) -> tuple[ToolDeclaration, ...]:
        """What is offered in a provider's own format, with the workers of a turn instead of the agent's own."""
        configuration = self._configuration
        if workers is None or len(workers) == len(configuration.workers_offered):
            return configuration.native_declarations
        return (*configuration.declarations, agent_call_declaration(workers))

    def offer(
        self,
        llm: LLM,
        choice: str,
        tools: Sequence[ToolDeclaration] | None,
        answer: Mapping[str, Any] | None,
        workers: Workers | None = None,
    ) -> Offer:
        """What `llm` is offered under `choice`; `tools` are those that hooks left, or None for all.

        `workers` are those of the turn: the agent's own, which None stands for, and then peers.
        """
        owned = self._configuration.workers_offered
        workers = owned if workers is None else workers
        compact = llm.context_window is not None and llm.context_window <= COMPACT_WINDOW
        names = None if tools is None else tuple(tool.name for tool in tools)
        constrained = llm.constrained and not llm.native_tools
        typed = dumps(answer) if constrained and answer is not None else None
        peers = tuple((peer.name, peer.description, peer.tools) for peer in workers[len(owned) :])
        key = (llm.native_tools, constrained, compact, choice, names, typed, repr(peers) if peers else None)
        offer = self._made.get(key)
        if offer is None:
            if len(self._made) >= _KEPT:
                self._made.clear()
            if llm.native_tools:
                offer = self._native(choice, tools, workers)
            else:
                offer = self._json(constrained, compact, choice, tools, answer, workers)
            self._made[key] = offer
        return offer

    def _native(self, choice: str, tools: Sequence[ToolDeclaration] | None, workers: Workers) -> Offer:
        configuration = self._configuration
        offered = self.native_declarations(workers) if tools is None else tuple(tools)
        if choice == NONE:
            offered = ()
        prompt = system_prompt(configuration.words, (), (), native=True)
        described = sum(len(tool.description) + len(dumps(tool.input_schema)) for tool in offered)
        return Offer(offered, prompt, (), None, len(prompt) + described)

    def _json(
        self,
        constrained: bool,
        compact: bool,
        choice: str,
        tools: Sequence[ToolDeclaration] | None,
        answer: Mapping[str, Any] | None,
        workers: Workers,
    ) -> Offer:
        configuration = self._configuration
        offered = configuration.declarations if tools is None else tuple(tools)
        acts = bool(configuration.tools or workers)
        if choice == NONE:
            offered, workers = (), ()
        prompt = system_prompt(configuration.words, offered, workers, native=False, compact=compact)
        schema = None
        if constrained:
            longest = SMALL_TEXT if compact else None
            if acts or (answer is None and configuration.max_answer_characters is not None):
                schema = action_schema(
                    offered,
                    workers,
                    choice,
                    answer=answer,
                    max_answer_characters=configuration.max_answer_characters or longest,
                    max_task_characters=longest,
                )
        elif choice not in (AUTO, NONE):
            prompt += choice_in_words(choice)
        shown = demonstrations(offered)
        length = len(prompt) + sum(len(turn["content"]) for turn in shown)
        return Offer(offered, prompt, shown, schema, length)
