"""What one agent brings to a run, frozen when the run starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, cast

from protolink._core.records import ToolRequest, Work
from protolink._runtime.keeping import Keeper
from protolink._runtime.offers import Offers
from protolink._runtime.peers import Peers
from protolink._runtime.threads import Workers
from protolink.completion import CompletionValidator
from protolink.durable.port import RecordLog
from protolink.hooks import AgentHooks
from protolink.limits import SubagentLimits
from protolink.llms.choice import AUTO, ToolChoice
from protolink.llms.port import LLM, ToolDeclaration
from protolink.llms.prices import Prices
from protolink.llms.prompt import WorkerDescription, agent_call_declaration
from protolink.llms.retry import RetryPolicy
from protolink.policy.approvals import ApprovalHandler
from protolink.policy.policies import Policy
from protolink.tools.tool import BaseTool, SyncExecution
from protolink.tools.worker import WorkerTool

__all__ = ["Configuration", "LLMFactory", "Subagent"]

LLMFactory = Callable[[], "LLM | str | Awaitable[LLM | str]"]


class Subagent(Protocol):
    """An agent as its parent's runs see it."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def description(self) -> str:
        """What it is for."""
        ...

    def configuration(self) -> Configuration:
        """What a run of it, started now, would use."""
        ...


@dataclass(frozen=True, eq=False)
class Configuration:
    """The parts of an agent that its runs use. Changing the agent makes a new one for later runs."""

    agent_name: str
    words: str | None
    """The application's own system prompt."""

    tools: Mapping[str, BaseTool]
    policies: tuple[Policy, ...]
    approval_handler: ApprovalHandler | None
    hooks: tuple[AgentHooks, ...]
    llm: LLM | None
    llm_factory: LLMFactory | None
    workers: Workers
    sync_execution: SyncExecution
    expose_tool_results: bool
    execution_version: str
    slice_steps: int | None
    log: RecordLog | None
    """Where runs that start here are stored."""

    owner: Subagent
    """The agent itself."""

    subagents: Mapping[str, Subagent]
    subagent_limits: SubagentLimits
    completion_validator: CompletionValidator | None = None
    """What the answers have to pass."""

    peers: Peers | None = None
    """The agents of the registry, where the agent has one."""

    tool_choice: ToolChoice = AUTO
    """What the agent says about the use of tools, where a run says nothing."""

    max_answer_characters: int | None = None
    """The length that an answer of text may have."""

    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    prices: Prices | None = None
    """What models cost that do not know it themselves."""

    keeper: Keeper | None = None
    """The stores for conversations, tasks and reports, where the agent has any."""

    @property
    def has_model(self) -> bool:
        """Whether inference is possible."""
        return self.llm is not None or self.llm_factory is not None

    @cached_property
    def workers_offered(self) -> tuple[WorkerDescription, ...]:
        """The owned workers as a model is told of them, for delegations without a declaration of their own."""
        described: list[WorkerDescription] = []
        for name, worker in self.subagents.items():
            configuration = worker.configuration()
            tools = configuration.declarations if self.subagent_limits.max_depth else ()
            described.append(WorkerDescription(name, worker.description, configuration.has_model, tools))
        return tuple(described)

    @cached_property
    def native_declarations(self) -> tuple[ToolDeclaration, ...]:
        """The tools in a provider's own format, delegation among them."""
        if not self.workers_offered:
            return self.declarations
        return (*self.declarations, agent_call_declaration(self.workers_offered))

    @cached_property
    def declarations(self) -> tuple[ToolDeclaration, ...]:
        """The tools as a model is offered them."""
        return tuple(
            ToolDeclaration(
                name=tool.name,
                description=tool.description,
                input_schema=tool.arguments.schema,
                examples=tuple(tool.examples),
            )
            for tool in self.tools.values()
        )

    @cached_property
    def offers(self) -> Offers:
        """What models are offered in a turn, each form made once."""
        return Offers(self)

    @cached_property
    def before_model(self) -> tuple[Callable[..., Any], ...]:
        """The hooks that see a request before the model does."""
        return tuple(hook.before_model for hook in self.hooks if hook.before_model is not None)

    @cached_property
    def after_tool(self) -> tuple[Callable[..., Any], ...]:
        """The hooks that see a result before the model does."""
        return tuple(hook.after_tool for hook in self.hooks if hook.after_tool is not None)

    @cached_property
    def before_complete(self) -> tuple[Callable[..., Any], ...]:
        """The hooks that see an answer before the application does."""
        return tuple(hook.before_complete for hook in self.hooks if hook.before_complete is not None)

    @cached_property
    def on_compaction(self) -> tuple[Callable[..., Any], ...]:
        """The hooks that may summarize what is not sent any more."""
        return tuple(hook.on_compaction for hook in self.hooks if hook.on_compaction is not None)

    def resolve(self, work: tuple[Work, ...]) -> tuple[Work, ...]:
        """The work with every facade replaced by the delegation that it stands for."""
        return tuple(self._resolved(item) for item in work)

    def _resolved(self, item: Work) -> Work:
        facade = self.tools.get(item.tool) if isinstance(item, ToolRequest) else None
        if not isinstance(item, ToolRequest) or not isinstance(facade, WorkerTool):
            return item
        return ToolRequest(
            tool=item.tool,
            args=item.args,
            call_id=item.call_id,
            agent=facade.worker.name,
            agent_tool=facade.tool,
        )

    def runs_in_thread(self, tool: BaseTool) -> bool:
        """Whether a plain function of `tool` runs in a worker thread here."""
        own = cast("SyncExecution | None", getattr(tool, "sync_execution", None))
        return (own or self.sync_execution) == "thread"
