"""One model turn: bind the model, build the request, call it as often as it takes, and record the outcome."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from protolink._core.budget import model_call_limit, repeated_call_limit
from protolink._core.machine import AskModel
from protolink._core.records import ErrorInfo, Inference, ModelAsked, ModelFailed, ModelRetried
from protolink._environment import pause
from protolink._json import thaw
from protolink._record import command
from protolink._runtime.offers import Offer
from protolink._runtime.pace import turn
from protolink._runtime.peers import offered_peers
from protolink._runtime.perform.calls import call, call_hooks
from protolink._runtime.perform.compact import keep_within_window
from protolink._runtime.perform.reply import CHARACTERS_PER_TOKEN, calls_as_text, checked, record_reply
from protolink._runtime.scopes import PASSING, enter
from protolink._text import describe_error
from protolink.errors import ConfigurationError
from protolink.hooks import ModelRequest
from protolink.llms.choice import AUTO, NONE, REQUIRED, check_tool_choice
from protolink.llms.create import create_llm
from protolink.llms.history import as_json_actions, as_native_calls, forms_of
from protolink.llms.port import LLM, UNKNOWN_USAGE, LLMReply, LLMRequest, ModelCallError, ModelUsage, ToolDeclaration
from protolink.llms.prices import cost_of, has_price
from protolink.llms.prompt import WorkerDescription

if TYPE_CHECKING:
    from protolink._runtime.driver import Driver

__all__ = ["ask_model"]

T = TypeVar("T")


async def ask_model(driver: Driver, asking: AskModel) -> None:
    """Make one turn and record the reply, or why there is none."""
    if driver.run.started.slice_steps is not None and not driver.journal.durable:
        await driver.fail(
            "configuration", "yield_after_steps needs durability= on the agent or on the root that owns it"
        )
        return
    llm = driver.llm or await _ready(driver)
    if llm is None:
        return
    if not _has_price(driver, llm):
        await driver.fail(
            "configuration", f"max_cost needs a model with known prices, and {llm.provider}:{llm.model} has none"
        )
        return
    plan = await _planned(driver, llm, asking.step)
    if plan is None:
        return
    stream = _Stream(driver)
    request, asked = _request(driver, llm, plan, stream)
    estimate = asked.estimated_input_tokens
    exceeded = model_call_limit(driver.journal.tree.counters, driver.run.budget, driver.run.steps, estimate)
    if exceeded is not None:
        await driver.append(exceeded)
        return
    await driver.append(asked)
    await _until_replied(driver, llm, plan, stream, request, asked)


async def _until_replied(
    driver: Driver, llm: LLM, plan: _Plan, stream: _Stream, request: LLMRequest, asked: ModelAsked
) -> None:
    """Call as often as it takes, of one model or of the next, and record the reply, or why there is none."""
    of_model = 1
    while True:
        began = driver.environment.monotonic()
        stream.any = False
        try:
            reply = await _call(driver, llm, request)
        except PASSING:
            raise
        except BaseException as error:  # the provider's
            next_llm, delay = _next_call(driver, llm, of_model, error, streamed=stream.any)
            if next_llm is None:
                await _failed(driver, "model_failed", f"the model {llm.provider}:{llm.model} failed", error)
                return
            of_model = of_model + 1 if next_llm is llm else 1
            lost_by, llm = llm, next_llm
            driver.llm = llm
            unusable = None if llm is lost_by else await _prepared(driver, llm)
            if unusable is not None:
                await _unusable(driver, llm, unusable)
                return
            if llm is not lost_by and llm.context_window is not None and not await _compacted(driver, llm, plan.choice):
                return
            request, asked = _request(driver, llm, plan, stream)
            await driver.append(_retried(driver, lost_by, error, asked, delay, streamed=stream.any))
            if delay:
                await driver.scope.call(pause(driver.environment, delay))
        else:
            break
    # A provider that streamed nothing is a stream of one fragment.
    if not stream.any and (reply.text or reply.calls):
        stream.fragment(reply.text or calls_as_text(reply.calls))
    await record_reply(driver, llm, asked, reply, driver.seconds_since(began))


def _has_price(driver: Driver, llm: LLM) -> bool:
    return driver.run.budget.max_cost is None or has_price(llm, driver.configuration.prices)


def _next_call(
    driver: Driver, llm: LLM, of_model: int, error: BaseException, *, streamed: bool
) -> tuple[LLM | None, float]:
    """The model that is asked after a failed call, and after which pause; no model where the turn has failed."""
    if repeated_call_limit(driver.journal.tree.counters, driver.run.budget, 0) is not None:
        return None, 0.0
    if not streamed:
        for number, candidate in enumerate(driver.fallbacks, 1):
            if _has_price(driver, candidate):
                driver.fallbacks = driver.fallbacks[number:]
                return candidate, 0.0
    if not isinstance(error, ModelCallError) or not error.retryable:
        return None, 0.0
    delay = driver.configuration.retry_policy.delay(driver.environment, of_model, error.retry_after)
    return (None, 0.0) if delay is None else (llm, delay)


def _retried(
    driver: Driver, lost_by: LLM, error: BaseException, asked: ModelAsked, delay: float, *, streamed: bool
) -> ModelRetried:
    lost = error if isinstance(error, ModelCallError) else None
    usage = lost.usage if lost is not None and isinstance(lost.usage, ModelUsage) else UNKNOWN_USAGE
    if usage is not UNKNOWN_USAGE:
        usage = replace(usage, cost=cost_of(lost_by, driver.configuration.prices, usage))
    return ModelRetried(
        error=ErrorInfo(code="model_failed", message=describe_error(error), type=type(error).__name__),
        attempt=driver.run.retries + 1,
        asked=asked,
        delay_seconds=delay,
        status=None if lost is None else lost.status,
        request_id=None if lost is None else lost.request_id,
        streamed=streamed,
        usage=usage,
    )


async def _ready(driver: Driver) -> LLM | None:
    """The model of this attempt, once it knows what it can do. None, and a record, where there is none to be had."""
    llm = await _bind(driver)
    while llm is not None:
        error = await _prepared(driver, llm)
        if error is None:
            break
        if not driver.fallbacks:
            await _unusable(driver, llm, error)
            return None
        llm, *rest = driver.fallbacks
        driver.llm, driver.fallbacks = llm, tuple(rest)
    return llm


async def _prepared(driver: Driver, llm: LLM) -> BaseException | None:
    """Let a model find out what it can do. Gives what is wrong with it."""
    if type(llm).prepare is LLM.prepare:
        return None
    try:
        await driver.scope.call(llm.prepare(driver.configuration.workers.run))
    except PASSING:
        raise
    except BaseException as error:  # the provider's
        return error
    return None


async def _unusable(driver: Driver, llm: LLM, error: BaseException) -> None:
    driver.llm = None
    await _failed(driver, "model_failed", f"the model {llm.provider}:{llm.model} cannot be used", error)


async def _bind(driver: Driver) -> LLM | None:
    """The model of this attempt, resolved once. None, and a record, where there is none to be had."""
    configuration = driver.configuration
    if configuration.llm_factory is None:
        if configuration.llm is None:
            await driver.fail("no_model", f"agent {configuration.agent_name!r} has no model; pass llm= or llm_factory=")
            return None
        return _begin_with(driver, configuration.llm)
    try:
        made = await call(driver, configuration.llm_factory, in_thread=True)
        driver.owns_llm = isinstance(made, str)
        return _begin_with(driver, _as_llm(made))
    except PASSING:
        raise
    except BaseException as error:  # the factory's
        await _failed(driver, "model_factory_failed", "llm_factory gave no model", error)
        return None


def _begin_with(driver: Driver, llm: LLM) -> LLM:
    driver.llm, *rest = llm.routes
    driver.fallbacks = tuple(rest)
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


@command
class _Plan:
    """What a turn says, whichever model it is asked of."""

    step: int
    choice: str
    messages: Sequence[dict[str, Any]] | None
    """What the hooks made of the conversation, or None where no hook was asked."""

    tools: tuple[str, ...] | None
    """The names that the hooks left, or None where no hook was asked."""


async def _planned(driver: Driver, llm: LLM, step: int) -> _Plan | None:
    """The turn as the application's choice and hooks want it. None, and a record, where they contradict each other."""
    try:
        workers = await _workers_offered(driver)
        choice = _choice(driver, step)
        if choice != AUTO:
            driver.configuration.offers.require(choice, workers)
    except PASSING:
        raise
    except BaseException as error:  # the application's function, too
        await driver.fail("configuration", f"tool_choice failed: {describe_error(error)}", error)
        return None
    if llm.context_window is not None and not await _compacted(driver, llm, choice):
        return None
    if not driver.configuration.before_model:
        return _Plan(step, choice, None, None)
    try:
        messages, tools = await _hooked(driver, step, _declared(driver, llm, choice))
    except PASSING:
        raise
    except BaseException as error:  # a hook's
        await driver.fail("hook_failed", f"before_model failed: {describe_error(error)}", error)
        return None
    names = tuple(tool.name for tool in tools)
    if choice not in (AUTO, NONE, *names) and not (names and choice == REQUIRED) and not _delegates(driver, choice):
        await driver.fail("configuration", f"a before_model hook left out what tool_choice={choice!r} needs")
        return None
    return _Plan(step, choice, messages, names)


async def _compacted(driver: Driver, llm: LLM, choice: str) -> bool:
    """Make the conversation fit the model's window. False, and a record, where a hook failed."""
    offer = driver.configuration.offers.offer(llm, choice, None, _answer_schema(driver), driver.workers_offered)
    try:
        await keep_within_window(driver, llm, offer.characters)
    except PASSING:
        raise
    except BaseException as error:  # a hook's
        await driver.fail("hook_failed", f"on_compaction failed: {describe_error(error)}", error)
        return False
    return True


async def _workers_offered(driver: Driver) -> tuple[WorkerDescription, ...]:
    """The owned workers and the peers that can be asked, the same for every turn of the attempt."""
    if driver.workers_offered is None:
        driver.workers_offered = driver.configuration.workers_offered
        if driver.configuration.peers is not None:
            driver.workers_offered += await offered_peers(driver)
    return driver.workers_offered


def _delegates(driver: Driver, choice: str) -> bool:
    """Whether the choice can be met by a delegation, which no hook leaves out where actions are JSON."""
    return choice in (REQUIRED, "agent_call") and bool(driver.workers_offered)


def _choice(driver: Driver, step: int) -> str:
    """What this turn says about the use of tools. What was required has been met once it was called."""
    wanted = driver.tool_choice or driver.run.started.tool_choice or driver.configuration.tool_choice
    if callable(wanted):
        choice = check_tool_choice(enter(wanted, step))
        if not isinstance(choice, str):
            raise ConfigurationError("a tool_choice function returns a text, not another function")
        return choice
    called = driver.run.called
    if wanted in called or (wanted == REQUIRED and called):
        return AUTO
    return wanted


def _declared(driver: Driver, llm: LLM, choice: str) -> tuple[ToolDeclaration, ...]:
    if choice == NONE:
        return ()
    configuration = driver.configuration
    if not llm.native_tools:
        return configuration.declarations
    return configuration.offers.native_declarations(driver.workers_offered)


def _request(driver: Driver, llm: LLM, plan: _Plan, stream: _Stream) -> tuple[LLMRequest, ModelAsked]:
    """The turn as one model takes it, and the record that reserves it."""
    run = driver.run
    schema = _answer_schema(driver)
    tools = None
    if plan.tools is not None:
        tools = tuple(tool for tool in _declared(driver, llm, plan.choice) if tool.name in plan.tools)
    offer = driver.configuration.offers.offer(llm, plan.choice, tools, schema, driver.workers_offered)
    driver.offered = offer.tools if plan.tools is not None or plan.choice == NONE else None
    left = run.budget.max_output_tokens
    request = LLMRequest(
        messages=_messages(driver, llm, plan, offer),
        system_prompt=offer.prompt,
        tools=offer.tools,
        native=llm.native_tools,
        step=plan.step,
        turn=stream,
        output_schema=schema,
        max_output_tokens=None if left is None else max(1, left - driver.journal.tree.counters.output_tokens),
        tool_choice=plan.choice,
        action_schema=offer.action_schema,
    )
    asked = ModelAsked(
        step=plan.step,
        provider=llm.provider,
        model=llm.model,
        native=llm.native_tools,
        streaming=llm.streaming,
        corrections_allowed=llm.max_tool_corrections,
        # It costs the same for a long conversation.
        estimated_input_tokens=(offer.characters + run.history_characters) // CHARACTERS_PER_TOKEN + 1,
        tool_choice=plan.choice,
    )
    return request, asked


def _has_other_form(driver: Driver, llm: LLM) -> bool:
    """Whether calls of the conversation may have been said in a form that is not this model's."""
    run, other = driver.run, not llm.native_tools
    if other in run.call_forms:
        return True
    # Sessions are read once a run, and only what was said before it can hold what the run has not said.
    return bool(run.earlier) and other in forms_of(run.history[: run.earlier])


def _answer_schema(driver: Driver) -> dict[str, Any] | None:
    work = driver.run.work
    return work.output_schema if isinstance(work, Inference) else None


def _messages(driver: Driver, llm: LLM, plan: _Plan, offer: Offer) -> Sequence[dict[str, Any]]:
    messages = driver.run.sent if plan.messages is None else plan.messages
    if _has_other_form(driver, llm):
        messages = as_native_calls(messages) if llm.native_tools else as_json_actions(messages)
    work = driver.run.work
    if llm.repeats_question and isinstance(work, Inference) and messages and messages[-1]["role"] == "tool":
        last = messages[-1]
        messages = [*messages[:-1], {**last, "content": f"{last['content']}\n\n{work.prompt}"}]
    return [*offer.demonstrations, *messages] if offer.demonstrations else messages


async def _hooked(
    driver: Driver, step: int, offered: Sequence[ToolDeclaration]
) -> tuple[list[dict[str, Any]], tuple[ToolDeclaration, ...]]:
    """The messages and tools as the hooks left them; copies, for the conversation itself stays as it is."""
    declared = {tool.name: tool for tool in offered}
    request = ModelRequest(
        history=thaw(driver.run.sent),
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
    return checked(reply)
