"""One model turn: bind the model, build the request, call it, and record what its reply means."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from protolink._core.budget import model_call_limit
from protolink._core.machine import AskModel
from protolink._core.parse import FinalText, Malformed, ProposedCall, parse_reply, proposals_from
from protolink._core.records import (
    AGENT_CALL,
    ErrorInfo,
    Inference,
    ModelAsked,
    ModelFailed,
    ModelReplied,
    Proposal,
    ReplyRefused,
)
from protolink._json import JSONError, dumps, is_mapping, parse, render, thaw
from protolink._runtime.pace import turn
from protolink._runtime.perform.calls import call, call_hooks
from protolink._runtime.scopes import PASSING, enter
from protolink._text import describe_error, encodable
from protolink.errors import ConfigurationError
from protolink.hooks import ModelRequest
from protolink.llms.create import create_llm
from protolink.llms.port import LLM, UNKNOWN_USAGE, LLMReply, LLMRequest, ModelUsage, ToolCall, ToolDeclaration
from protolink.llms.prompt import system_prompt
from protolink.tools.worker import WorkerTool

if TYPE_CHECKING:
    from protolink._runtime.driver import Driver

__all__ = ["ask_model"]

T = TypeVar("T")

MAX_CALLS_PER_REPLY: Final = 64
CHARACTERS_PER_TOKEN: Final = 4
_ESTIMATE: Final = f"estimate of {CHARACTERS_PER_TOKEN} characters a token"


async def ask_model(driver: Driver, command: AskModel) -> None:
    """Make one turn and record the reply, or why there is none."""
    if driver.run.started.slice_steps is not None and not driver.journal.durable:
        await driver.fail(
            "configuration", "yield_after_steps needs durability= on the agent or on the root that owns it"
        )
        return
    llm = driver.llm or await _ready(driver)
    if llm is None:
        return
    if driver.run.budget.max_cost is not None and llm.pricing is None:
        await driver.fail(
            "configuration", f"max_cost needs a model with known prices, and {llm.provider}:{llm.model} has none"
        )
        return
    stream = _Stream(driver)
    try:
        request = await _request(driver, llm, command.step, stream)
    except PASSING:
        raise
    except BaseException as error:  # a hook's
        await driver.fail("hook_failed", f"before_model failed: {describe_error(error)}", error)
        return
    estimate = _estimate(driver, request)
    exceeded = model_call_limit(driver.journal.tree.counters, driver.run.budget, driver.run.steps, estimate)
    if exceeded is not None:
        await driver.append(exceeded)
        return
    asked = ModelAsked(
        step=command.step,
        provider=llm.provider,
        model=llm.model,
        native=llm.native_tools,
        streaming=llm.streaming,
        corrections_allowed=llm.max_tool_corrections,
        estimated_input_tokens=estimate,
    )
    await driver.append(asked)
    began = driver.environment.monotonic()
    try:
        reply = await _call(driver, llm, request)
    except PASSING:
        raise
    except BaseException as error:  # the provider's
        await _failed(driver, "model_failed", f"the model {llm.provider}:{llm.model} failed", error)
        return
    # A provider that streamed nothing is a stream of one fragment.
    if not stream.any and (reply.text or reply.calls):
        stream.fragment(reply.text or _calls_as_text(reply.calls))
    await _record_reply(driver, llm, asked, reply, driver.environment.monotonic() - began)


async def _ready(driver: Driver) -> LLM | None:
    """The model of this attempt, once it knows what it can do. None, and a record, where there is none to be had."""
    llm = await _bind(driver)
    if llm is None or type(llm).prepare is LLM.prepare:
        return llm
    try:
        await driver.scope.call(llm.prepare(driver.configuration.workers.run))
    except PASSING:
        raise
    except BaseException as error:  # the provider's
        await _failed(driver, "model_failed", f"the model {llm.provider}:{llm.model} cannot be used", error)
        driver.llm = None
        return None
    return llm


async def _bind(driver: Driver) -> LLM | None:
    """The model of this attempt, resolved once. None, and a record, where there is none to be had."""
    configuration = driver.configuration
    if configuration.llm_factory is None:
        if configuration.llm is None:
            await driver.fail("no_model", f"agent {configuration.agent_name!r} has no model; pass llm= or llm_factory=")
        driver.llm = configuration.llm
        return driver.llm
    try:
        driver.llm = _as_llm(await call(driver, configuration.llm_factory, in_thread=True))
    except PASSING:
        raise
    except BaseException as error:  # the factory's
        await _failed(driver, "model_factory_failed", "llm_factory gave no model", error)
        return None
    return driver.llm


def _as_llm(made: object) -> LLM:
    if isinstance(made, LLM):
        return made
    if isinstance(made, str):
        return create_llm(made)
    raise ConfigurationError(
        f"llm_factory must return a model or a specification such as 'mock', not {type(made).__name__}"
    )


async def _failed(driver: Driver, code: str, what: str, error: BaseException) -> None:
    driver.keep_cause(error)
    info = ErrorInfo(code=code, message=f"{what}: {describe_error(error)}", type=type(error).__name__)
    await driver.append(ModelFailed(error=info))


async def _request(driver: Driver, llm: LLM, step: int, stream: _Stream) -> LLMRequest:
    configuration, run = driver.configuration, driver.run
    messages: list[dict[str, Any]] = run.history
    tools = configuration.native_declarations if llm.native_tools else configuration.declarations
    prompt = configuration.prompt_for_native if llm.native_tools else configuration.prompt_for_json
    driver.offered = None
    if configuration.before_model:
        messages, tools = await _hooked(driver, step, tools)
        driver.offered = tools
        if not llm.native_tools and len(tools) < len(configuration.declarations):
            prompt = system_prompt(configuration.words, tools, configuration.workers_offered, native=False)
    work = run.work
    left = run.budget.max_output_tokens
    return LLMRequest(
        messages=messages,
        system_prompt=prompt,
        tools=tools,
        native=llm.native_tools,
        step=step,
        turn=stream,
        output_schema=work.output_schema if isinstance(work, Inference) else None,
        max_output_tokens=None if left is None else max(1, left - driver.journal.tree.counters.output_tokens),
    )


async def _hooked(
    driver: Driver, step: int, offered: Sequence[ToolDeclaration]
) -> tuple[list[dict[str, Any]], tuple[ToolDeclaration, ...]]:
    """The messages and tools as the hooks left them; copies, for the conversation itself stays as it is."""
    declared = {tool.name: tool for tool in offered}
    request = ModelRequest(
        history=thaw(driver.run.history),
        tools=[
            {"name": tool.name, "description": tool.description, "input_schema": thaw(tool.input_schema)}
            for tool in declared.values()
        ],
        context=driver.shared_context,
        step=step,
    )
    await call_hooks(driver, driver.configuration.before_model, request, "before_model")
    names = [tool.get("name") for tool in request.tools]
    if unknown := [name for name in names if name not in declared]:
        raise ConfigurationError(f"a before_model hook offers tools that the agent does not declare: {unknown}")
    if not all("role" in message and isinstance(message.get("content"), str) for message in request.history):
        raise ConfigurationError("a before_model hook left a message without a role or without a text as content")
    return request.history, tuple(declared[str(name)] for name in names)


class _Stream:
    """The run's side of one turn: takes fragments, from the provider's own thread too."""

    __slots__ = ("_driver", "_home", "_loop", "any")

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._loop = asyncio.get_running_loop()
        self._home = threading.get_ident()
        self.any = False

    @property
    def stopped(self) -> bool:
        return self._driver.scope.stopped

    def fragment(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"a fragment is a text, not {type(text).__name__}")
        self.any = True
        driver = self._driver
        if threading.get_ident() == self._home:
            driver.journal.fragment(driver.run_id, text)
        else:
            self._loop.call_soon_threadsafe(driver.journal.fragment, driver.run_id, text)

    def in_thread(self, function: Callable[..., T], /, *args: Any) -> Awaitable[T]:
        return self._driver.configuration.workers.run(function, *args)


def _estimate(driver: Driver, request: LLMRequest) -> int:
    """A rough count of the tokens that are about to be sent. It costs the same for a long conversation."""
    characters = len(request.system_prompt) + driver.run.history_characters
    if request.native:
        characters += driver.configuration.native_schema_characters
    return characters // CHARACTERS_PER_TOKEN + 1


async def _call(driver: Driver, llm: LLM, request: LLMRequest) -> LLMReply:
    if type(llm).blocking:
        reply = await driver.scope.call_in_thread(driver.configuration.workers.call(llm.respond, request))
    else:
        reply = enter(llm.respond, request)
    if type(reply) is not LLMReply and inspect.isawaitable(reply):
        reply = await driver.scope.call(reply)
        # Many answers can arrive at once; a run that was told to stop meanwhile says so at its next append.
        waiting = turn()
        if waiting is not None:
            await waiting
    return _checked(reply)


def _checked(reply: object) -> LLMReply:
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


async def _record_reply(driver: Driver, llm: LLM, asked: ModelAsked, reply: LLMReply, seconds: float) -> None:
    proposals, answer, problem = _meaning(driver, llm, reply)
    replied = ModelReplied(
        text=reply.text,
        proposals=proposals,
        answer=answer,
        problem=problem,
        usage=_usage(llm, asked, reply),
        seconds=seconds,
        attempts=max(1, reply.attempts),
        finish_reason=reply.finish_reason,
        request_id=reply.request_id,
        reasoning=reply.reasoning,
        provider_state=None if reply.provider_state is None else render(reply.provider_state)[0],
    )
    if problem is None:
        await driver.append(replied)
    else:
        await driver.append(replied, ReplyRefused(message=problem))


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


def _calls_as_text(calls: tuple[ToolCall, ...]) -> str:
    """Native calls as a reader of the raw stream sees them."""
    rendered, _ = render([{"type": "tool_call", "tool": call.name, "args": call.arguments} for call in calls])
    return dumps(rendered)


def _usage(llm: LLM, asked: ModelAsked, reply: LLMReply) -> ModelUsage:
    """The provider's numbers, or estimates that say so; a cost only where a price is known."""
    usage = reply.usage
    tokens_in, tokens_out = usage.input_tokens, usage.output_tokens
    source, estimated = usage.source, usage.estimated
    if tokens_in is None or tokens_out is None:
        source, estimated = _ESTIMATE, True
        if tokens_in is None:
            tokens_in = asked.estimated_input_tokens
        if tokens_out is None:
            tokens_out = len(reply.text or _calls_as_text(reply.calls)) // CHARACTERS_PER_TOKEN + 1
    cost = usage.cost
    if cost is None and llm.pricing is not None:
        cost = (tokens_in * llm.pricing.input + tokens_out * llm.pricing.output) / 1_000_000
    return ModelUsage(
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        cached_tokens=usage.cached_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        cost=cost,
        source=source,
        estimated=estimated,
    )
