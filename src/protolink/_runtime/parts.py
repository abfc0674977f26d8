"""The parts of an agent, from what an application passes or has stored. Each is refused as `ConfigurationError`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, Final, cast

from protolink._json import is_mapping
from protolink._values import Reader
from protolink.card import AgentCard
from protolink.completion import CompletionValidator
from protolink.durable.port import RecordLog
from protolink.errors import ConfigurationError
from protolink.hooks import AgentHooks
from protolink.llms.create import create_llm
from protolink.llms.port import LLM
from protolink.policy.policies import CapabilityPolicy, Policy

__all__ = [
    "answer_bound_of",
    "card_of",
    "hooks_of",
    "model_from",
    "model_of",
    "policies_of",
    "policy_as_data",
    "policy_from",
    "record_log_of",
    "slice_steps_of",
    "state_of",
    "validator_as_data",
    "validator_of",
]

CONVERSATION: Final = "conversation"
"""The one kind of state that outlives a run."""


def card_of(
    card: AgentCard | Mapping[str, Any] | None, name: str | None, description: str | None, url: str | None
) -> AgentCard:
    """The card that was given, with what else was said about the agent."""
    if card is None:
        if name is None:
            raise ConfigurationError("an agent needs a name: pass name= or a card")
        try:
            return AgentCard(name=name, description=description or "", url=url)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
    base = card if isinstance(card, AgentCard) else AgentCard.from_dict(card)
    return AgentCard(
        name=name or base.name,
        description=base.description if description is None else description,
        url=url or base.url,
        version=base.version,
        skills=list(base.skills),
        metadata=dict(base.metadata),
    )


def answer_bound_of(characters: object) -> int | None:
    """The length of an answer, where it has a bound."""
    if characters is None:
        return None
    if isinstance(characters, bool) or not isinstance(characters, int) or characters < 1:
        raise ConfigurationError("max_answer_characters is a positive whole number, or None")
    return characters


def model_of(llm: object) -> LLM | None:
    """A model, or the one of a specification."""
    if llm is None or isinstance(llm, LLM):
        return llm
    if isinstance(llm, str):
        return create_llm(llm)
    raise ConfigurationError(f"llm must be a model or a specification such as 'mock', not {type(llm).__name__}")


def model_from(stored: Mapping[str, Any] | None) -> LLM | None:
    """The model that a stored configuration names."""
    if stored is None:
        return None
    # A key is sent wherever a model's address points, so no address is taken from stored data.
    if stored.get("reconnect_required"):
        raise ConfigurationError("the model of this configuration has an address of its own; pass it again with llm=")
    options = {"tool_calling": stored["tool_calling"]} if "tool_calling" in stored else {}
    try:
        llm = create_llm(f"{stored.get('provider')}:{stored.get('model')}", **options)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"the model of this configuration has to be passed again with llm=: {error}"
        ) from error
    llm.max_tool_corrections = stored.get("max_tool_corrections", llm.max_tool_corrections)
    return llm


def policies_of(policy: Policy | Iterable[Policy] | None) -> tuple[Policy, ...]:
    """One policy or several, in their order."""
    if policy is not None and not isinstance(policy, Policy | Iterable):
        raise ConfigurationError(f"a policy is a Policy, not {type(policy).__name__}")
    listed = (policy,) if isinstance(policy, Policy) else tuple(policy or ())
    for item in listed:
        if not isinstance(item, Policy):
            raise ConfigurationError(f"a policy is a Policy, not {type(item).__name__}")
    return listed


def policy_as_data(policy: Policy) -> dict[str, Any]:
    """Rules as they are; anything else only as a name, for its code has to be passed again."""
    if isinstance(policy, CapabilityPolicy):
        return policy.to_dict()
    return {"name": policy.name, "reconnect_required": True}


def policy_from(entry: object) -> Policy:
    """A policy of a stored configuration."""
    read = Reader(entry, "a policy")
    if read.boolean("reconnect_required", False):
        raise ConfigurationError(
            f"this configuration has the policy {read.text('name', '')!r}, which is code; pass all of them with policy="
        )
    rules: Any = read.any("rules")
    if not is_mapping(rules):
        raise ConfigurationError("a policy's rules are a dictionary of effects by capability")
    return CapabilityPolicy(rules, default_effect=read.text("default_effect"), name=read.text("name"))


def hooks_of(hooks: AgentHooks | Iterable[AgentHooks] | None) -> tuple[AgentHooks, ...]:
    """One set of hooks or several, in their order."""
    if hooks is not None and not isinstance(hooks, AgentHooks | Iterable):
        raise ConfigurationError(f"hooks are AgentHooks, not {type(hooks).__name__}; write AgentHooks(after_tool=...)")
    listed = (hooks,) if isinstance(hooks, AgentHooks) else tuple(hooks or ())
    for item in listed:
        if not isinstance(item, AgentHooks):
            raise ConfigurationError(f"hooks are AgentHooks, not {type(item).__name__}")
    return listed


def validator_of(validator: object) -> CompletionValidator | None:
    """The checks that answers have to pass."""
    if validator is None or isinstance(validator, CompletionValidator):
        return validator
    raise ConfigurationError(f"completion_validator is a CompletionValidator, not {type(validator).__name__}")


def validator_as_data(validator: CompletionValidator | None) -> list[dict[str, Any]]:
    """What is checked, without the code that does it."""
    checks = () if validator is None else validator.checks
    return [{"name": check.name, "require_execution": check.require_execution} for check in checks]


def state_of(state: Iterable[str] | None) -> tuple[str, ...]:
    """The kinds of state that the agent keeps."""
    if isinstance(state, str):
        raise ConfigurationError(f"state is a list of words; write state=[{state!r}]")
    listed = tuple(state or ())
    if unknown := [word for word in listed if word != CONVERSATION]:
        raise ConfigurationError(f"state knows 'conversation', not {unknown[0]!r}")
    return listed


def record_log_of(durability: object) -> RecordLog | None:
    """The store that was given, or the one of a file."""
    if durability is None:
        return None
    if isinstance(durability, str | PathLike):
        # Only a durable agent loads the database module.
        from protolink.durable.sqlite import SQLiteRecordLog

        return SQLiteRecordLog(cast("str | PathLike[str]", durability))
    if isinstance(durability, RecordLog):
        return durability
    log = getattr(durability, "log", None)  # a DurableStore, whose module loads the database
    if isinstance(log, RecordLog):
        return log
    raise ConfigurationError(f"durability is a path or a store, not {type(durability).__name__}")


def slice_steps_of(steps: object) -> int | None:
    """Model turns of a slice; None for a run without slices."""
    if steps is None:
        return None
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ConfigurationError("yield_after_steps is a positive whole number, or None")
    return steps
