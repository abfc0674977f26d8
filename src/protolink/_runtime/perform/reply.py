"""What a model's reply means, once every part of it can be recorded and charged."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from protolink._core.parse import FinalText, Malformed, ProposedCall, parse_reply, proposals_from
from protolink._core.records import AGENT_CALL, Inference, ModelAsked, ModelReplied, Proposal, ReplyRefused
from protolink._json import JSONError, dumps, is_mapping, parse, render
from protolink._text import encodable
from protolink.llms.choice import AUTO, NONE, REQUIRED
from protolink.llms.port import LLM, UNKNOWN_USAGE, LLMReply, ModelUsage, ToolCall
from protolink.llms.prices import Prices, cost_of
from protolink.tools.worker import WorkerTool

if TYPE_CHECKING:
    from protolink._runtime.driver import Driver

__all__ = [
    "CHARACTERS_PER_TOKEN",
    "MAX_CALLS_PER_REPLY",
    "calls_as_text",
    "checked",
    "delegation_proposal",
    "record_reply",
]

MAX_CALLS_PER_REPLY: Final = 64
CHARACTERS_PER_TOKEN: Final = 4
_ESTIMATE: Final = f"estimate of {CHARACTERS_PER_TOKEN} characters a token"


def checked(reply: object) -> LLMReply:
    """What a provider gave, once every part of it can be recorded and charged. Raises `TypeError`."""
    if not isinstance(reply, LLMReply):
        raise TypeError(f"a model answers with an LLMReply, not {type(reply).__name__}")
    for name in ("text", "finish_reason", "request_id", "reasoning"):
        value = getattr(reply, name)
        if not isinstance(value, str) and (value is not None or name == "text"):
            raise TypeError(f"an LLMReply's {name} is a text, not {type(value).__name__}")
    if not isinstance(reply.calls, tuple) or not all(map(_is_call, reply.calls)):
        raise TypeError("an LLMReply's calls are a tuple of ToolCalls, each with a text as its name")
    if not _is_count(reply.attempts):
        raise TypeError("an LLMReply's attempts are a whole number")
    usage = reply.usage
    if usage is not UNKNOWN_USAGE and not (isinstance(usage, ModelUsage) and _is_sound(usage)):
        raise TypeError("an LLMReply's usage is a ModelUsage of finite numbers that are not negative")
    # Half of a character can be neither stored nor sent back.
    return reply if reply.text.isascii() else replace(reply, text=encodable(reply.text))


def _is_call(value: object) -> bool:
    return isinstance(value, ToolCall) and isinstance(value.name, str) and isinstance(value.id, str | None)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_sound(usage: ModelUsage) -> bool:
    counts = (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens)
    if not all(count is None or _is_count(count) for count in counts):
        return False
    cost: object = usage.cost
    return cost is None or (isinstance(cost, int | float) and math.isfinite(cost) and cost >= 0)


async def record_reply(driver: Driver, llm: LLM, asked: ModelAsked, reply: LLMReply, seconds: float) -> None:
    """Record what a reply means: actions, an answer, or why it is neither."""
    proposals, answer, problem = _meaning(driver, llm, reply)
    if problem is None:
        problem = _against_the_choice(asked.tool_choice, proposals) or _too_long(driver, proposals, answer)
    text = reply.text
    if problem is not None:
        proposals, answer = (), None
        # Sent back without its calls, for nothing answers them; it has to say something all the same.
        text = text or calls_as_text(reply.calls)
    replied = ModelReplied(
        text=text,
        proposals=proposals,
        answer=answer,
        problem=problem,
        usage=_usage(llm, driver.configuration.prices, asked, reply),
        seconds=seconds,
        attempts=driver.run.retries + max(1, reply.attempts),
        finish_reason=reply.finish_reason,
        request_id=reply.request_id,
        reasoning=reply.reasoning,
        provider_state=None if reply.provider_state is None else render(reply.provider_state)[0],
    )
    if problem is None:
        await driver.append(replied)
    else:
        await driver.append(replied, ReplyRefused(message=problem))


def _against_the_choice(choice: str, proposals: tuple[Proposal, ...]) -> str | None:
    """What the model is told of a reply that its turn does not allow."""
    if choice == AUTO:
        return None
    if choice == NONE:
        return "No tool can be used in this turn. Nothing was run; answer." if proposals else None
    if not proposals:
        return f"This turn needs a call of {'a tool' if choice == REQUIRED else choice!r} before an answer."
    if choice != REQUIRED and any(proposal.said != choice for proposal in proposals):
        return f"Only {choice!r} can be used in this turn. Nothing was run."
    return None


def _too_long(driver: Driver, proposals: tuple[Proposal, ...], answer: Any) -> str | None:
    longest = driver.configuration.max_answer_characters
    work = driver.run.work
    if longest is None or proposals or not isinstance(answer, str) or len(answer) <= longest:
        return None
    if isinstance(work, Inference) and work.output_schema is not None:
        return None
    return f"An answer has at most {longest} characters, and this one has {len(answer)}. Answer in fewer."


def _meaning(driver: Driver, llm: LLM, reply: LLMReply) -> tuple[tuple[Proposal, ...], Any, str | None]:
    """What a reply says: actions, an answer, or why it cannot be understood."""
    if reply.calls:
        return _proposals(driver, [_proposed(call) for call in reply.calls], [call.id for call in reply.calls])
    if llm.native_tools and reply.actions is None:
        return (), reply.text, None
    understood = parse_reply(reply.text) if reply.actions is None else proposals_from(reply.actions)
    match understood:
        case FinalText(content=content):
            return (), content, None
        case Malformed(message=message):
            return (), None, message
        case proposed:
            return _proposals(driver, proposed, [])


def _proposed(call: ToolCall) -> ProposedCall:
    """A native call; arguments that came as text are parsed, and kept as text where they are no JSON."""
    arguments: Any = call.arguments
    if isinstance(arguments, str):
        with suppress(JSONError):  # validation will refuse the text and tell the model
            arguments = parse(arguments) if arguments.strip() else {}
    else:
        arguments, _ = render(arguments)
    return ProposedCall(kind="tool_call", tool=call.name, agent=None, action=None, prompt=None, args=arguments)


def _proposals(
    driver: Driver, calls: list[ProposedCall], ids: list[str | None]
) -> tuple[tuple[Proposal, ...], Any, str | None]:
    if len(calls) > MAX_CALLS_PER_REPLY:
        return (), None, f"A reply may hold {MAX_CALLS_PER_REPLY} calls; this one has {len(calls)}."
    first = driver.run.action_count + 1
    used: set[str] = set()
    proposals: list[Proposal] = []
    for number, proposed in enumerate(calls):
        action_id = f"{driver.run_id}.{first + number}"
        call_id = ids[number] if number < len(ids) else None
        if not call_id or call_id in used:
            call_id = action_id
        used.add(call_id)
        proposals.append(_proposal(driver, proposed, action_id, call_id))
    return tuple(proposals), None, None


def _proposal(driver: Driver, proposed: ProposedCall, action_id: str, call_id: str) -> Proposal:
    """A call as what it stands for: a facade, and a native `agent_call`, are delegations from here on."""
    if proposed.kind == "agent_call":
        return delegation_proposal(action_id, call_id, proposed.agent, proposed.tool, proposed.prompt, proposed.args)
    facade = driver.configuration.tools.get(proposed.tool or "")
    if isinstance(facade, WorkerTool):
        return Proposal(
            action_id=action_id,
            call_id=call_id,
            tool=facade.tool,
            agent=facade.worker.name,
            facade=facade.name,
            args=proposed.args,
        )
    if proposed.tool == AGENT_CALL and is_mapping(proposed.args) and isinstance(proposed.args.get("agent"), str):
        args = proposed.args
        return delegation_proposal(
            action_id, call_id, args["agent"], args.get("tool"), args.get("prompt"), args.get("args", {})
        )
    return Proposal(action_id=action_id, call_id=call_id, tool=proposed.tool, args=proposed.args)


def delegation_proposal(action_id: str, call_id: str, agent: str | None, tool: Any, prompt: Any, args: Any) -> Proposal:
    """A proposal to delegate: a tool of the worker with its arguments, or a task for its model."""
    if isinstance(tool, str):
        return Proposal(action_id=action_id, call_id=call_id, tool=tool, agent=agent or "", args=args)
    return Proposal(action_id=action_id, call_id=call_id, agent=agent or "", args={"task": prompt})


def calls_as_text(calls: tuple[ToolCall, ...]) -> str:
    """Native calls as a reader of the raw stream sees them."""
    rendered, _ = render([{"type": "tool_call", "tool": call.name, "args": call.arguments} for call in calls])
    return dumps(rendered)


def _usage(llm: LLM, prices: Prices | None, asked: ModelAsked, reply: LLMReply) -> ModelUsage:
    """The provider's numbers, or estimates that say so; a cost only where a price is known."""
    usage = reply.usage
    tokens_in, tokens_out = usage.input_tokens, usage.output_tokens
    source, estimated = usage.source, usage.estimated
    if tokens_in is None or tokens_out is None:
        source, estimated = _ESTIMATE, True
        if tokens_in is None:
            tokens_in = asked.estimated_input_tokens
        if tokens_out is None:
            tokens_out = len(reply.text or calls_as_text(reply.calls)) // CHARACTERS_PER_TOKEN + 1
    counted = ModelUsage(
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        cached_tokens=usage.cached_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        cost=usage.cost,
        source=source,
        estimated=estimated,
    )
    cost = cost_of(llm, prices, counted)
    return counted if cost == usage.cost else replace(counted, cost=cost)
