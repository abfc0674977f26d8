"""What one agent brings to a run, frozen when the run starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from protolink._runtime.threads import Workers
from protolink.hooks import AgentHooks
from protolink.llms.port import LLM, ToolDeclaration
from protolink.llms.prompt import system_prompt
from protolink.policy.approvals import ApprovalHandler
from protolink.policy.policies import Policy
from protolink.tools.tool import BaseTool, SyncExecution

__all__ = ["Configuration", "LLMFactory"]

LLMFactory = Callable[[], "LLM | str | Awaitable[LLM | str]"]


@dataclass(frozen=True)
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
    def prompt_for_json(self) -> str:
        """The system prompt that explains the actions in words."""
        return system_prompt(self.words, self.declarations, native=False)

    @cached_property
    def prompt_for_native(self) -> str:
        """The system prompt beside natively offered tools."""
        return system_prompt(self.words, self.declarations, native=True)

    @cached_property
    def native_schema_characters(self) -> int:
        """The length of the declarations, for estimates where they are not part of the prompt."""
        return len(self.prompt_for_json) - len(self.prompt_for_native)

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

    def runs_in_thread(self, tool: BaseTool) -> bool:
        """Whether a plain function of `tool` runs in a worker thread here."""
        own = cast("SyncExecution | None", getattr(tool, "sync_execution", None))
        return (own or self.sync_execution) == "thread"
