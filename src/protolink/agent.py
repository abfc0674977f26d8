"""Agents: configuration and verbs. What a run does is decided elsewhere."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import asdict, fields
from functools import cached_property, partial
from os import PathLike
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Unpack, cast, overload

from protolink._callables import is_async
from protolink._core.records import CancelRequested, Inference, RunStarted
from protolink._core.views.snapshot import task_snapshot
from protolink._environment import Environment, current_environment
from protolink._json import canonical
from protolink._runtime.background import BACKGROUND_TOOL_NAMES, background_tools
from protolink._runtime.calling_off import call_off
from protolink._runtime.configuration import Configuration, LLMFactory
from protolink._runtime.driver import Driver
from protolink._runtime.fingerprint import fingerprint_of
from protolink._runtime.journal import Journal
from protolink._runtime.keeping import keeper_of, recording_in
from protolink._runtime.parts import (
    CONVERSATION,
    answer_bound_of,
    card_of,
    hooks_of,
    model_from,
    model_of,
    policies_of,
    policy_as_data,
    policy_from,
    record_log_of,
    slice_steps_of,
    state_of,
    validator_as_data,
    validator_of,
)
from protolink._runtime.perform.approval import decision_of
from protolink._runtime.principal import LOCAL, current_principal
from protolink._runtime.request import Request, request_for, tool_request
from protolink._runtime.resume import UNSET, Response, open_run, read_run, reconcile_run, take_up
from protolink._runtime.threads import Workers
from protolink._runtime.views import Views
from protolink._text import visible
from protolink._values import Reader, now_text
from protolink.action import RunAction, is_inside_a_tool
from protolink.card import AgentCard
from protolink.completion import CompletionValidator
from protolink.context import RunBudget, RunContext
from protolink.durable.port import RecordLog
from protolink.errors import (
    ActionDeniedError,
    ApprovalRequiredError,
    ConfigurationError,
    RunExistsError,
    RunInterrupted,
)
from protolink.handle import RunHandle, RunResult
from protolink.hooks import AgentHooks
from protolink.limits import SubagentLimits
from protolink.llms.choice import AUTO, ToolChoice, check_tool_choice
from protolink.llms.port import LLM, Pricing
from protolink.llms.prices import Prices, prices_of
from protolink.llms.retry import RetryPolicy
from protolink.message import Message
from protolink.policy.approvals import ApprovalDecision, ApprovalHandler, ApprovalRequest
from protolink.policy.policies import Policy, PolicyDecision, PolicyEffect, decide_all
from protolink.storage.port import RunStore, Storage
from protolink.sync import SyncAgent
from protolink.task import Task, TaskState, merged_context
from protolink.tools.execution import Authorization
from protolink.tools.tool import ActionBuilder, BaseTool, SyncExecution, Tool, check_sync_execution
from protolink.tools.worker import WorkerTool

if TYPE_CHECKING:
    from protolink._options import ResumeOptions, ToolDeclarations
    from protolink._runtime.peers import Peers
    from protolink.client import AgentPeer
    from protolink.discovery.port import Directory
    from protolink.discovery.presence import Presence
    from protolink.durable.store import DurableStore
    from protolink.redaction import RedactionPolicy
    from protolink.transport.http.auth import Authenticator
    from protolink.transport.http.client import Credential
    from protolink.transport.port import Transport

__all__ = ["Agent"]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_logger: Final = logging.getLogger("protolink")
_RESERVED_TOOL_NAMES: Final = frozenset({"agent_call"})


class Agent:
    """An agent: a name, tools, a model, and the rules that its runs follow.

    Building one calls nothing: no model, no factory, no network. One instance serves any number of runs at
    once, from several threads and event loops. What is wrong with the configuration is refused here, as
    `ConfigurationError`.

    Parameters
    ----------
    card
        Who the agent is: an `AgentCard` or a dictionary of one; or else `name`, `description` and `url`.
    name
        What it is called, by people, models and stores.
    description
        What it is good for, as other agents are told.
    url
        Its address, with a `transport`.
    llm
        A model, or a specification such as `"mock"`. Only inference needs one.
    llm_factory
        Called without arguments once per inference-bearing task, off the event loop if it is a plain
        function; returns a model or a specification. Either this or `llm`.
    system_prompt
        The application's own words to the model.
    tools
        Functions, or `Tool` and `PreparedTool` declarations. Names are unique.
    sync_execution
        Where plain functions run by default: `"inline"` or `"thread"`.
    max_sync_workers
        How many of this agent's blocking functions run at a time; synchronous model calls and factories count too.
    expose_tool_results
        Whether results of tools that the model selects are public. Arguments always are.
    policy
        A policy or several, all of which have to agree.
    approval_handler
        Who is asked where policies require approval.
    hooks
        `AgentHooks`, one or several.
    completion_validator
        Checks that an answer has to pass before it is given; they read receipts, not the model's word.
    subagents
        Agents that this one owns and may delegate to.
    subagent_limits
        How many of them may work, and how deep.
    transport
        How others reach the agent once it is started: `"http"` or `"runtime"` with an address such as
        `url="runtime://name"`, or a transport.
    registry
        Where it registers then: a `Registry`, or the name of a transport. A model may delegate to the agents that
        the registry knows, as to owned ones; such an action has the capability `agent.peer` as well.
    registry_url
        The registry's address, where `registry` is the name of a transport.
    authenticator
        Who may ask, with `transport="http"`. A transport that you have made has its own.
    credentials
        The tokens for outgoing calls, by origin. A transport that you have made has its own.
    state
        `["conversation"]` keeps the messages of each session for its next run.
    storage
        The `Storage` for them; in memory by default.
    run_store
        A `RunStore` that keeps the task and the report of every run.
    durability
        Where runs are stored so that they outlive an attempt: the path of a file, or a store.
    yield_after_steps
        Model turns after which an attempt returns control with a `RunHandoff`; needs durability.
    execution_version
        The application's own name for the meaning of its tools; part of the configuration's identity.
    tool_choice
        What the model's turns say about the use of tools: `"auto"`, `"required"` or the name of a tool (until one,
        or that one, was called), `"none"`, or a function of the step, from 1, that gives one of these for each turn.
    max_answer_characters
        How long an answer of text may be. A longer one is sent back to the model as a mistake.
    retry_policy
        How often, and after which pauses, a model call that a provider lost is made again; `RetryPolicy()`.
    prices
        What models cost that have no `pricing` of their own: a table of `"provider:model"` to `Pricing`, or
        `"published"` for the list of the extra `prices`. What neither knows stays unknown.
    verbosity
        What is logged under the logger `protolink`: up to 1 only what goes wrong around the runs (a store that
        fails, say), from 2 on the end of every run as well.
    """

    def __init__(
        self,
        card: AgentCard | Mapping[str, Any] | None = None,
        transport: str | Transport | None = None,
        registry: str | Directory | None = None,
        registry_url: str | None = None,
        llm: LLM | str | None = None,
        system_prompt: str | None = None,
        storage: Storage | None = None,
        state: Iterable[str] | None = None,
        *,
        name: str | None = None,
        description: str | None = None,
        url: str | None = None,
        llm_factory: LLMFactory | None = None,
        run_store: RunStore | None = None,
        tools: Iterable[BaseTool | Callable[..., Any]] | None = None,
        sync_execution: SyncExecution = "inline",
        max_sync_workers: int = 4,
        expose_tool_results: bool = False,
        policy: Policy | Iterable[Policy] | None = None,
        approval_handler: ApprovalHandler | None = None,
        hooks: AgentHooks | Iterable[AgentHooks] | None = None,
        completion_validator: CompletionValidator | None = None,
        subagents: Iterable[Agent] | None = None,
        subagent_limits: SubagentLimits | None = None,
        durability: DurableStore | RecordLog | str | PathLike[str] | None = None,
        yield_after_steps: int | None = None,
        execution_version: str = "1",
        authenticator: Authenticator | None = None,
        credentials: Mapping[str, Credential] | None = None,
        tool_choice: ToolChoice = "auto",
        max_answer_characters: int | None = None,
        retry_policy: RetryPolicy | None = None,
        prices: Prices | Mapping[str, Pricing] | Literal["published"] | None = None,
        verbosity: int = 1,
    ) -> None:
        self.card: AgentCard = card_of(card, name, description, url)
        if llm is not None and llm_factory is not None:
            raise ConfigurationError("give either llm or llm_factory, not both")
        if llm_factory is not None and not callable(llm_factory):
            raise ConfigurationError(f"llm_factory must be callable, not {type(llm_factory).__name__}")
        if system_prompt is not None and not isinstance(system_prompt, str):
            raise ConfigurationError(f"system_prompt must be a text, not {type(system_prompt).__name__}")
        if isinstance(max_sync_workers, bool) or not isinstance(max_sync_workers, int) or max_sync_workers < 1:
            raise ConfigurationError("max_sync_workers must be a positive whole number")
        if approval_handler is not None and not callable(approval_handler):
            raise ConfigurationError(f"approval_handler must be callable, not {type(approval_handler).__name__}")
        if retry_policy is not None and not isinstance(retry_policy, RetryPolicy):
            raise ConfigurationError(f"retry_policy must be a RetryPolicy, not {type(retry_policy).__name__}")
        self._llm = model_of(llm)
        self._owns_llm = isinstance(llm, str)
        self._llm_factory = llm_factory
        self._tool_choice = check_tool_choice(tool_choice)
        self._max_answer_characters = answer_bound_of(max_answer_characters)
        self._retry_policy = retry_policy or RetryPolicy()
        self._prices = prices_of(prices)
        self._system_prompt = system_prompt
        mode = check_sync_execution(sync_execution, f"agent {self.name!r}")
        self._sync_execution: SyncExecution = "inline" if mode is None else mode
        self._max_sync_workers = max_sync_workers
        self._expose_tool_results = bool(expose_tool_results)
        self._policies = policies_of(policy)
        self._approval_handler = approval_handler
        self._hooks = hooks_of(hooks)
        self._completion_validator = validator_of(completion_validator)
        self._state = state_of(state)
        self.execution_version = execution_version
        self.verbosity = verbosity
        self._log = record_log_of(durability)
        self._slice_steps = slice_steps_of(yield_after_steps)
        self._tools: dict[str, BaseTool] = {}
        self._frozen: Configuration | None = None
        self._workers: Workers | None = None
        self._keeper = keeper_of(self.name, storage, CONVERSATION in self._state, run_store)
        self._network = (transport, registry, registry_url, authenticator, credentials)
        if any(part is not None for part in self._network):
            self._presence  # noqa: B018 - what is wrong with it is refused now
        self._live: dict[str, Driver] = {}
        self._subagents = _Roster(self, subagents or ())
        self._subagent_limits = subagent_limits or SubagentLimits()
        if self._subagent_limits.background and self._log is not None:
            raise ConfigurationError("a durable agent starts no workers in the background; use background=False")
        if self._subagent_limits.background:
            self.add_tools(background_tools())
        self.add_tools(tools or ())

    @property
    def name(self) -> str:
        """The agent's name, as every event carries it."""
        return self.card.name

    @property
    def description(self) -> str:
        """What the agent is for, as others are told."""
        return self.card.description

    @property
    def subagents(self) -> MutableMapping[str, Agent]:
        """The owned children by name. Changing it concerns later runs and retargets no declaration."""
        return self._subagents

    @property
    def tools(self) -> Mapping[str, BaseTool]:
        """The declared tools by name, read-only; `add_tool` adds one."""
        return MappingProxyType(self._tools)

    @property
    def llm(self) -> LLM | None:
        """The shared model, or None; setting it concerns later runs."""
        return self._llm

    @llm.setter
    def llm(self, llm: LLM | str | None) -> None:
        if llm is not None and self._llm_factory is not None:
            raise ConfigurationError("this agent has an llm_factory; it cannot have a shared model as well")
        self._llm = model_of(llm)
        self._owns_llm = isinstance(llm, str)
        self._frozen = None

    @cached_property
    def sync(self) -> SyncAgent:
        """The same verbs for programs without an event loop."""
        return SyncAgent(self)

    def add_tool(self, tool: BaseTool | Callable[..., Any]) -> BaseTool:
        """Declare one more tool and give its declaration back.

        Raises `ToolDefinitionError` for a callable that cannot be a tool, and `ConfigurationError` for a
        name that is taken or reserved.
        """
        declared = tool if isinstance(tool, BaseTool) else Tool(tool)
        if isinstance(declared, WorkerTool) and declared.owner is not self:
            raise ConfigurationError(
                f"worker declaration {declared.name!r} belongs to another parent; make one here with add_worker_tool"
            )
        if declared.name in _RESERVED_TOOL_NAMES:
            raise ConfigurationError(f"the tool name {declared.name!r} is reserved; pass another one with name=")
        if declared.name in self._tools:
            raise ConfigurationError(f"agent {self.name!r} already has a tool {declared.name!r}; names are unique")
        self._tools[declared.name] = declared
        self._frozen = None
        return declared

    def add_worker_tool(
        self,
        worker: str,
        *,
        name: str | None = None,
        tool: str | None = None,
        description: str | None = None,
        examples: Iterable[Any] | None = None,
    ) -> WorkerTool:
        """Offer the model one owned child, or one of its tools, as a typed tool. Executes nothing.

        The declaration stands for the very child that is registered now. Without `tool` it takes a `task`
        and asks the child for inference; with it, the child's exact tool is bound and its schemas are copied.
        The name defaults to the child's, or to `<worker>_<tool>`. `examples` are those of a tool.

        Raises `ConfigurationError` for a child or tool that is not there, a child without a model, and a name
        that is taken, reserved or unsuitable.
        """
        child = self._subagents.get(worker)
        if child is None:
            known = ", ".join(sorted(self._subagents)) or "none"
            raise ConfigurationError(f"agent {self.name!r} owns no child {worker!r}; its children are: {known}")
        bound = None if tool is None else child.tools.get(tool)
        if tool is not None and bound is None:
            known = ", ".join(sorted(child.tools)) or "none"
            raise ConfigurationError(f"child {worker!r} declares no tool {tool!r}; its tools are: {known}")
        if tool is None and not child.configuration().has_model:
            raise ConfigurationError(f"child {worker!r} has no model; bind one of its tools with tool=")
        facade = WorkerTool(
            owner=self,
            worker=child,
            tool=bound,
            name=name if name is not None else (worker if tool is None else f"{worker}_{tool}"),
            description=_facade_description(description, child, bound),
            examples=examples,
        )
        self.add_tool(facade)
        return facade

    def add_tools(self, tools: Iterable[BaseTool | Callable[..., Any]]) -> None:
        """Declare several tools. When one is refused, those before it stay declared."""
        for tool in tools:
            self.add_tool(tool)

    @overload
    def tool(self, name: F, /) -> F: ...

    @overload
    def tool(
        self,
        name: str | None = None,
        description: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        tags: Iterable[str] | None = None,
        examples: Iterable[Any] | None = None,
        capabilities: Iterable[str] | None = None,
        action_builder: ActionBuilder | None = None,
        sync_execution: SyncExecution | None = None,
        **declarations: Unpack[ToolDeclarations],
    ) -> Callable[[F], F]: ...

    def tool(self, name: Any = None, description: str | None = None, *options: Any, **declarations: Any) -> Any:
        """Declare the decorated function as a tool; the function itself is given back unchanged.

        Works bare (`@agent.tool`) and with the options of `Tool` (`@agent.tool(capabilities=[...])`).
        """
        if callable(name):
            self.add_tool(cast("Callable[..., Any]", name))
            return name
        positional = dict(zip(_TOOL_OPTIONS, options, strict=False))
        if len(options) > len(_TOOL_OPTIONS):
            raise TypeError("too many positional options for a tool")

        def declare(function: F) -> F:
            self.add_tool(Tool(function, name=name, description=description, **positional, **declarations))
            return function

        return declare

    def configuration(self) -> Configuration:
        """What a run started now would use."""
        if self._frozen is None:
            if self._workers is None:
                self._workers = Workers(self._max_sync_workers)
            self._frozen = Configuration(
                agent_name=self.name,
                words=self._system_prompt,
                tools=dict(self._tools),
                policies=self._policies,
                approval_handler=self._approval_handler,
                hooks=self._hooks,
                completion_validator=self._completion_validator,
                llm=self._llm,
                llm_factory=self._llm_factory,
                workers=self._workers,
                sync_execution=self._sync_execution,
                expose_tool_results=self._expose_tool_results,
                execution_version=self.execution_version,
                slice_steps=self._slice_steps,
                log=self._log,
                owner=self,
                subagents=dict(self._subagents),
                subagent_limits=self._subagent_limits,
                keeper=self._keeper,
                peers=self._peers,
                tool_choice=self._tool_choice,
                max_answer_characters=self._max_answer_characters,
                retry_policy=self._retry_policy,
                prices=self._prices,
            )
        return self._frozen

    def changed(self) -> None:
        """Forget the frozen configuration: what the next run uses is read anew."""
        self._frozen = None

    def start_run(
        self,
        prompt_or_task: str | Task | Message,
        *,
        session_id: str | None = None,
        budget: RunBudget | None = None,
        context: RunContext | None = None,
        store: RunStore | None = None,
        redaction_policy: RedactionPolicy | None = None,
        tool_choice: ToolChoice | None = None,
    ) -> RunHandle:
        """Start a run on the running event loop and give its handle; nothing has to be awaited for it to go on.

        The request is frozen here: its task, context and budget, the agent's configuration, the context
        variables and the private request values of this moment. `tool_choice` takes the place of the agent's for
        this run; a stored run keeps it, so there it cannot be a function. Raises `RuntimeError` without a running
        loop, `ValueError` for a request that contradicts itself, and `RunExistsError`, which is one, for the id
        of a run that is at work already.
        """
        request = request_for(prompt_or_task, session_id=session_id, budget=budget, context=context)
        driver = self._driver(request, tool_choice)
        if store is not None:
            driver.keeper = recording_in(self._keeper, store)
        return self._launch(driver, redaction_policy)

    def _launch(self, driver: Driver, redaction_policy: RedactionPolicy | None = None) -> RunHandle:
        self._live[driver.run_id] = driver
        driver.on_finish = self._finished
        driver.launch()
        return RunHandle(driver, Views(driver.journal, driver.run_id, redaction_policy))

    def _driver(self, request: Request, tool_choice: ToolChoice | None = None) -> Driver:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError("a run needs a running event loop; in a script use agent.sync") from None
        context = request.context
        if context.run_id in self._live:
            raise RunExistsError(f"run {context.run_id!r} is already running")
        if tool_choice is not None and callable(check_tool_choice(tool_choice)) and self._log is not None:
            raise ConfigurationError(
                "a run that is stored keeps its tool_choice, and a function cannot be stored; give it to the agent"
            )
        configuration = self.configuration()
        choice = self._tool_choice if tool_choice is None else tool_choice
        if choice != AUTO and isinstance(choice, str) and any(isinstance(work, Inference) for work in request.work):
            configuration.offers.require(choice)
        environment = current_environment()
        journal = Journal(context.run_id, environment, self._log)
        driver = Driver(configuration, context, journal, environment)
        driver.tool_choice = tool_choice if callable(tool_choice) else None
        driver.start(
            RunStarted(
                task=request.task,
                agent_name=self.name,
                work=driver.configuration.resolve(request.work),
                context=context.to_dict(),
                principal=current_principal(),
                durable=self._log is not None,
                slice_steps=self._slice_steps,
                fingerprint={} if self._log is None else fingerprint_of(driver.configuration),
                tool_choice=tool_choice if isinstance(tool_choice, str) else None,
            )
        )
        return driver

    def _finished(self, driver: Driver) -> None:
        self._live.pop(driver.run_id, None)
        if self.verbosity < 2:
            return
        finished, rest = driver.run.finished, driver.run.rest
        status = finished.status if finished is not None else "at rest" if rest is not None else "left"
        error = finished.error if finished is not None else None
        if error is not None:
            _logger.warning("run %s of %s failed: %s", driver.run_id, visible(self.name), visible(error.message))
        else:
            _logger.info("run %s of %s is %s", driver.run_id, visible(self.name), status)

    async def _to_the_end(self, handle: RunHandle) -> Any:
        """Await a run that belongs to the caller: canceling the caller cancels the run."""
        try:
            return await handle.outcome()
        except asyncio.CancelledError:
            await handle.cancel("the caller was canceled")
            raise

    async def invoke(
        self,
        message: str | Message,
        part_type: str = "infer",
        tool_name: str | None = None,
        tool_args: Mapping[str, Any] | None = None,
        session_id: str | None = None,
        *,
        budget: RunBudget | None = None,
        context: RunContext | None = None,
        tool_choice: ToolChoice | None = None,
    ) -> Any:
        """Run to the end and give the answer; `tool_choice` is that of `start_run`.

        Raises a `TaskExecutionError` that says what ended the run, `UncertainExecutionError`, or
        `RunInterrupted` where it paused. Canceling the awaiting task cancels the run.
        """
        if part_type == "tool_call":
            if tool_name is None:
                raise ValueError("part_type='tool_call' needs tool_name=")
            request = tool_request(tool_name, tool_args or {}, merged_context(context, session_id, budget))
        elif part_type == "infer":
            request = request_for(message, session_id=session_id, budget=budget, context=context)
        else:
            raise ValueError(f"part_type is 'infer' or 'tool_call', not {part_type!r}")
        return await self._to_the_end(self._launch(self._driver(request, tool_choice)))

    async def invoke_typed(
        self,
        message: str,
        response_model: type[T],
        *,
        max_attempts: int = 1,
        session_id: str | None = None,
        budget: RunBudget | None = None,
        context: RunContext | None = None,
        tool_choice: ToolChoice | None = None,
    ) -> T:
        """Run to the end and give the answer as a value of `response_model`.

        The model is told the schema; an answer that does not fit it is told why, until `max_attempts`
        answers were tried, and then raises `InferParseError`. Any type that pydantic understands will do.
        """
        if isinstance(max_attempts, bool) or max_attempts < 1:
            raise ValueError("max_attempts is a positive whole number")
        from protolink.typed import answer_validator  # only typed answers need it

        schema, validate = answer_validator(response_model)
        task = Task.create_infer(message, output_schema=schema, session_id=session_id, budget=budget, context=context)
        driver = self._driver(request_for(task, max_attempts=max_attempts), tool_choice)
        driver.validator = validate
        return cast("T", await self._to_the_end(self._launch(driver)))

    async def run_task(self, task: Task, *, tool_choice: ToolChoice | None = None) -> Task:
        """Run a task to its end and give its final snapshot; a failed run gives a failed task.

        `tool_choice` is that of `start_run`. The submitted task stays as it is. Canceling the awaiting task
        cancels the run.
        """
        submitted = await self._submit(task, tool_choice)
        return submitted if isinstance(submitted, Task) else (await self._await_owned(submitted)).task

    async def _submit(self, task: Task, tool_choice: ToolChoice | None = None) -> RunHandle | Task:
        """The run of a task, or its stored state where it was submitted before."""
        stored = await self._stored_task(task)
        if stored is not None:
            return stored
        if current_principal() != LOCAL and await self._is_taken(task):
            raise RunExistsError(f"task {task.id!r}, or its run, is here already")
        return self.start_run(task, tool_choice=tool_choice)

    async def _is_taken(self, task: Task) -> bool:
        """Whether an id of a task is that of another one: a sender chooses them, and what is kept would be replaced."""
        if any(driver.run.started.task_id == task.id for driver in self._live.values()):
            return True
        run_id = RunContext.from_task(task).run_id if "run_context" in task.metadata else None
        return self._keeper is not None and await self._keeper.has(current_environment(), task.id, run_id)

    async def _stored_task(self, task: Task) -> Task | None:
        """The stored state of a task that was submitted before: submitting it again starts nothing."""
        if self._log is None or "run_context" not in task.metadata:
            return None
        run_id = RunContext.from_task(task).run_id
        known = await self._log.get(run_id)
        if known is None or known.records == 0:
            return None
        stored = task_snapshot((await read_run(self._log, run_id, current_environment())).entries, run_id)
        if stored.id != task.id:
            raise RunExistsError(f"run {run_id!r} exists already, for another task; start a run of its own")
        return stored

    async def resume_task(
        self,
        run_id: str,
        *,
        request_id: str | None = None,
        approved: bool | None = None,
        answer: Any = UNSET,
        fingerprint: str | None = None,
        accept_changes: bool = False,
    ) -> Task:
        """Take a stored root run up again and give its task once the attempt has ended.

        A run that yielded, or whose attempt ended for a reason outside it, is resumed without an answer and
        gets one more slice. An approval is answered by its `request_id` with `approved`; without one the
        run stays as it is. A run that has ended executes nothing and gives its stored task.

        Raises `RunBusyError` while somebody drives the run, `UnknownRunError`, `CheckpointMismatchError` for
        another configuration (`accept_changes` goes on under this one, and records that),
        `UncertainExecutionError` until every unknown effect is reconciled, and `DurableExecutionError` for an
        answer that does not fit.
        """
        resumed = await self.resume_run(
            run_id,
            request_id=request_id,
            approved=approved,
            answer=answer,
            fingerprint=fingerprint,
            accept_changes=accept_changes,
        )
        if isinstance(resumed, Task):
            return resumed
        result = await self._await_owned(resumed)
        await resumed.raise_for_uncertain()
        return result.task

    async def resume_run(
        self,
        run_id: str,
        *,
        request_id: str | None = None,
        approved: bool | None = None,
        answer: Any = UNSET,
        fingerprint: str | None = None,
        accept_changes: bool = False,
    ) -> RunHandle | Task:
        """Take a stored root run up again and give the handle of the new attempt, which goes on by itself.

        Where the run stays as it is, because it has ended or waits for an answer, its stored task is given.
        Raises as `resume_task` does.
        """
        return await self._resume(run_id, Response(request_id, approved, answer, fingerprint), accept_changes)

    async def resume(self, run_id: str, **response: Unpack[ResumeOptions]) -> Any:
        """`resume_task`, giving the output; raises as `invoke` does, `RunInterrupted` where the run paused again."""
        task = await self.resume_task(run_id, **response)
        if task.state is TaskState.INPUT_REQUIRED:
            raise RunInterrupted(task)
        return task.raise_for_status().get_output()

    async def _resume(self, run_id: str, response: Response, accept_changes: bool) -> RunHandle | Task:
        environment = current_environment()
        journal = await open_run(self._required_log(), run_id, environment)
        try:
            configuration = self.configuration()
            if not await take_up(journal, configuration, response, accept_changes=accept_changes):
                await journal.end()
                return task_snapshot(journal.entries, run_id)
        except BaseException:
            await journal.end()
            raise
        return self._launch(_driver_of(journal, configuration, environment))

    def _required_log(self) -> RecordLog:
        if self._log is None:
            raise ConfigurationError(f"agent {self.name!r} stores no runs; pass durability=")
        return self._log

    async def reconcile(self, run_id: str, action_id: str, *, result: Any = UNSET, happened: bool = True) -> Task:
        """Settle an uncertain action of a stored run: it happened, with this result, or it did not.

        It executes nothing; `resume_task` goes on from there, and the model decides again about an
        operation that did not happen. Raises `DurableExecutionError` for an action that is not uncertain.
        """
        return await reconcile_run(self._required_log(), run_id, action_id, result=result, happened=happened)

    async def cancel_stored(self, run_id: str, reason: str = "canceled by the application") -> Task:
        """End a stored run that nobody drives as canceled, with everything that it had open, and give its task.

        It executes nothing. An operation that had been entered stays uncertain. A run that has ended stays as
        it is. Raises `UnknownRunError`, and `RunBusyError` for a run that is driven: cancel it where it runs.
        """
        environment = current_environment()
        journal = await open_run(self._required_log(), run_id, environment)
        try:
            driver = _driver_of(journal, self.configuration(), environment)
            keeper = driver.keeper
            save = None if keeper is None else partial(keeper.keep_conversation, driver)
            ended = await call_off(journal, reason, first=save)
        except BaseException:
            await journal.end()
            raise
        if not ended:
            await journal.end()
            return task_snapshot(journal.entries, run_id)
        driver.launch()  # nothing is left to drive: it gives the run back and keeps what it has left
        await driver.wait()
        return task_snapshot(journal.entries, run_id)

    async def _await_owned(self, handle: RunHandle) -> RunResult:
        """Await a run that belongs to the caller: canceling the caller cancels the run."""
        try:
            return await handle.result()
        except asyncio.CancelledError:
            await handle.cancel("the caller was canceled")
            raise

    async def call_tool(self, name: str, /, **arguments: Any) -> Any:
        """Run one declared tool as a run of its own and give what it returned.

        It walks the same road as a model's call: validation, policies, approval, budget, record. Raises
        `ToolRejectedError` for arguments that do not fit or that the tool refuses, and otherwise as
        `invoke` does.
        """
        self._refuse_nested_worker(name)
        return await self._to_the_end(self._launch(self._driver(tool_request(name, arguments))))

    def _refuse_nested_worker(self, name: str) -> None:
        """A facade stands for a delegation of this agent; inside a running tool there is nobody to delegate for."""
        if isinstance(self._tools.get(name), WorkerTool) and is_inside_a_tool():
            raise ConfigurationError(
                f"worker declaration {name!r} cannot be called from inside a running tool; "
                "let the model select it, or use handle.spawn()"
            )

    async def call_tool_in_context(self, name: str, context: RunContext, /, **arguments: Any) -> Any:
        """Run one declared tool on behalf of `context`: its session, permissions and limits under a child's run id."""
        if isinstance(self._tools.get(name), WorkerTool):
            raise ConfigurationError(f"worker declaration {name!r} cannot be called in a given context; use call_tool")
        request = tool_request(name, arguments, context.child(self.name))
        return await self._to_the_end(self._launch(self._driver(request)))

    async def cancel_task(self, task_id: str, reason: str = "canceled by the application") -> bool:
        """Cancel the live run of a task or run id and await its end. False where the caller has none at work here."""
        for driver in tuple(self._live.values()):
            if current_principal() not in (driver.run.started.principal, LOCAL):
                continue  # somebody else's is not there
            if task_id in (driver.run_id, driver.run.started.task_id):
                driver.stop(CancelRequested(reason=reason, principal=current_principal()))
                await driver.wait()
                return True
        return False

    @cached_property
    def _presence(self) -> Presence:
        """Where others find the agent. Only one that they can find loads this half of the package."""
        from protolink.discovery.presence import Presence, transport_of
        from protolink.discovery.remote import create_directory
        from protolink.transport.outgoing import Outgoing

        transport, registry, registry_url, authenticator, credentials = self._network
        own_transport = transport_of(self.card, transport, authenticator=authenticator, credentials=credentials)
        directory = create_directory(registry, registry_url, credentials=credentials)
        outgoing = Outgoing(own_transport, credentials=credentials)
        return Presence(self.name, self.public_card, self._submit, own_transport, directory, outgoing)

    @cached_property
    def _peers(self) -> Peers | None:
        """Whom the registry knows, where the agent has one."""
        if self._network[1] is None or self.registry is None:
            return None
        from protolink.peers import RegistryPeers

        return RegistryPeers(self.card, self.registry, self._presence.outgoing)

    @property
    def transport(self) -> Transport | None:
        """How others reach the agent once it is started, or None."""
        return self._presence.transport

    @property
    def registry(self) -> Directory | None:
        """Where the agent registers and looks up peers, or None."""
        return self._presence.directory

    def public_card(self) -> AgentCard:
        """The card as others see it: with the declared tools as skills, where it lists none itself."""
        from protolink.discovery.presence import described

        return described(self.card, self._tools.values())

    async def start(self) -> None:
        """Serve over the transport and register; ready when it returns. Starting again changes nothing.

        Runs of this process need no start. Raises `TransportStartError`, with nothing left started.
        """
        await self._presence.start()

    async def stop(self) -> None:
        """Leave the registry and stop serving. Runs that others asked for are canceled, those of this process go on.

        A model that was given by name is closed; one that was passed stays the application's. A later run may use
        either.
        """
        await self._presence.stop()
        if self._owns_llm and self._llm is not None:
            await self._llm.aclose()

    def peer(self, target: str | AgentCard) -> AgentPeer:
        """Another agent, by its address, its card, or its name in the registry; its address says how it is reached."""
        from protolink.client import AgentClient, AgentPeer

        return AgentPeer(target, client=AgentClient(self._presence.outgoing), directory=self.registry)

    async def authorize_action(self, action: RunAction, context: RunContext | None = None) -> Authorization:
        """Have an action of the application's own judged, and approved where that is required.

        Raises `ActionDeniedError`, or `ApprovalRequiredError` where nobody is there to ask.
        """
        context = context or RunContext()
        decision = await decide_all(self._policies, action, context.copy(), context.permissions)
        if decision.effect is PolicyEffect.DENY:
            raise ActionDeniedError(decision.reason or f"{action.name} is denied", action_id=action.action_id)
        request, answer = None, None
        if decision.effect is PolicyEffect.REQUIRE_APPROVAL:
            request, answer = await self._approve(action, decision, context)
        return Authorization(
            action=action,
            policy_decision=decision,
            approval_request=request,
            approval_decision=answer,
            authorized_at=now_text(),
        )

    async def _approve(
        self, action: RunAction, decision: PolicyDecision, context: RunContext
    ) -> tuple[ApprovalRequest, ApprovalDecision]:
        handler = self._approval_handler
        if handler is None:
            raise ApprovalRequiredError(
                f"{action.name} requires approval, and the agent has no approval_handler to ask",
                action_id=action.action_id,
            )
        request = ApprovalRequest(action, decision, context.run_id, metadata={"agent_name": self.name})
        if is_async(handler):
            made: Any = handler(request, context.copy())
        else:
            made = await self.configuration().workers.run(handler, request, context.copy())
        answer = decision_of(await made if inspect.isawaitable(made) else made, request)
        if not answer.approved:
            raise ActionDeniedError(answer.reason or f"{action.name} was not approved", action_id=action.action_id)
        return request, answer

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON: declarations, no code, no secrets, no request values."""
        factory = None if self._llm_factory is None else {"reconnect_required": True}
        return {
            "card": self.card.to_dict(),
            "system_prompt": self._system_prompt,
            "llm": None if self._llm is None else self._llm.to_dict(),
            "llm_factory": factory,
            "tools": [{**tool.to_dict(), "reconnect_required": True} for tool in self._declared_tools()],
            "subagents": sorted(self._subagents),
            "subagent_limits": asdict(self._subagent_limits),
            "sync_execution": self._sync_execution,
            "max_sync_workers": self._max_sync_workers,
            "expose_tool_results": self._expose_tool_results,
            "policies": [policy_as_data(policy) for policy in self._policies],
            "completion_checks": validator_as_data(self._completion_validator),
            "state": list(self._state),
            "execution_version": self.execution_version,
            "tool_choice": self._tool_choice if isinstance(self._tool_choice, str) else {"reconnect_required": True},
            "max_answer_characters": self._max_answer_characters,
            "verbosity": self.verbosity,
        }

    def _declared_tools(self) -> Iterable[BaseTool]:
        """The tools that a configuration lists: all but those that come with `background=True`."""
        own = BACKGROUND_TOOL_NAMES if self._subagent_limits.background else frozenset[str]()
        return (tool for name, tool in self._tools.items() if name not in own)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], **overrides: Any) -> Agent:
        """Build an agent from its configuration; `overrides` are parameters of `Agent` and reconnect what is code.

        Tools need their functions again (`tools=[...]`, the same names and schemas), worker declarations
        their children (`subagents=[...]`), a factory needs `llm_factory=`, and a model that `create_llm`
        cannot make by name needs `llm=`. Raises
        `ConfigurationError` for what is missing or does not match. Unknown keys are ignored.
        """
        read = Reader(data, "Agent")
        settings: dict[str, Any] = {
            "card": AgentCard.from_dict(read.mapping("card")),
            "system_prompt": read.optional_text("system_prompt"),
            "sync_execution": read.text("sync_execution", "inline"),
            "max_sync_workers": read.integer("max_sync_workers", 4),
            "expose_tool_results": read.boolean("expose_tool_results", False),
            "state": read.texts("state"),
            "execution_version": read.text("execution_version", "1"),
            "max_answer_characters": read.any("max_answer_characters", None),
            "verbosity": read.integer("verbosity", 1),
        }
        if "tool_choice" not in overrides:
            if isinstance(data.get("tool_choice"), Mapping):
                raise ConfigurationError("this configuration has a tool_choice function; pass it with tool_choice=")
            settings["tool_choice"] = read.text("tool_choice", "auto")
        if "policy" not in overrides:
            settings["policy"] = [policy_from(entry) for entry in read.items("policies")]
        if "llm" not in overrides and "llm_factory" not in overrides:
            if data.get("llm_factory") is not None:
                raise ConfigurationError("this configuration has a model factory; pass it again with llm_factory=")
            settings["llm"] = model_from(read.optional_mapping("llm"))
        if read.items("completion_checks") and "completion_validator" not in overrides:
            raise ConfigurationError("this configuration has completion checks; pass them with completion_validator=")
        limits = read.optional_mapping("subagent_limits")
        if limits is not None:
            known = {field.name for field in fields(SubagentLimits)}
            given = {name: value for name, value in limits.items() if name in known}
            settings["subagent_limits"] = SubagentLimits(**given)
        agent = cls(**{**settings, **overrides})
        for entry in read.items("tools"):
            declared = Reader(entry, "a tool declaration")
            if declared.optional_mapping("worker_binding") is not None:
                _reconnect(agent, declared)
            _require_tool(agent, declared)
        return agent

    def __repr__(self) -> str:
        return f"<Agent {self.name!r} with {len(self._tools)} tools>"


_TOOL_OPTIONS: Final = (
    "input_schema",
    "output_schema",
    "tags",
    "examples",
    "capabilities",
    "action_builder",
    "sync_execution",
)


def _driver_of(journal: Journal, configuration: Configuration, environment: Environment) -> Driver:
    """The driver of a stored root."""
    run = journal.tree.runs[journal.tree.root_id]
    driver = Driver(configuration, RunContext.from_dict(run.started.context), journal, environment)
    driver.run = run
    return driver


def _reconnect(agent: Agent, declared: Reader) -> None:
    """Register a worker declaration of a configuration again, on a child that was passed."""
    binding = Reader(declared.mapping("worker_binding"), "a worker binding")
    agent.add_worker_tool(
        binding.text("worker"),
        name=declared.text("name"),
        tool=binding.optional_text("tool"),
        description=declared.text("description"),
        examples=declared.any("examples", list),
    )


def _require_tool(agent: Agent, declared: Reader) -> None:
    """A tool of a configuration has to be there again, with the schemas it had."""
    name = declared.text("name")
    tool = agent.tools.get(name)
    if tool is None:
        raise ConfigurationError(f"tool {name!r} of this configuration has to be passed again with tools=[...]")
    for field in ("input_schema", "output_schema"):
        if canonical(getattr(tool, field)) != canonical(declared.any(field, None)):
            raise ConfigurationError(f"tool {name!r} has another {field} than this configuration declares")


def _facade_description(description: str | None, child: Agent, bound: BaseTool | None) -> str:
    if description is not None:
        return description
    if bound is not None:
        return bound.description
    return child.description or f"Delegate a task to {child.name}."


class _Roster(dict[str, "Agent"]):
    """The children of one agent by name. Whoever changes it makes later runs read it anew."""

    def __init__(self, parent: Agent, children: Iterable[Agent]) -> None:
        super().__init__()
        self._parent = parent
        for child in children:
            if not isinstance(child, Agent):
                raise ConfigurationError(f"a subagent is an Agent, not {type(child).__name__}")
            if child.name in self:
                raise ConfigurationError(f"agent {parent.name!r} already has a child {child.name!r}; names are unique")
            self[child.name] = child

    def __setitem__(self, name: str, child: Agent) -> None:
        if child is self._parent:
            raise ConfigurationError(f"agent {name!r} cannot be its own child")
        super().__setitem__(name, child)
        self._parent.changed()

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._parent.changed()
