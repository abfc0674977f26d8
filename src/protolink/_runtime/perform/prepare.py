"""A proposal becomes the exact operation that everything after it refers to, or is rejected."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

from protolink._core.machine import Prepare
from protolink._core.records import (
    ActionFailed,
    ActionPrepared,
    ActionRejected,
    ActionRepeated,
    ErrorInfo,
    Proposal,
    ToolRequest,
)
from protolink._core.state import call_key
from protolink._json import canonical, render, thaw
from protolink._runtime.perform.calls import call
from protolink._runtime.perform.delegate import prepare_delegation
from protolink._runtime.scopes import PASSING
from protolink._text import describe_error
from protolink.action import RunAction, action_fingerprint
from protolink.errors import ToolRejectedError
from protolink.tools.arguments import ArgumentsError
from protolink.tools.prepared import PreparedTool
from protolink.tools.question import QuestionTool
from protolink.tools.tool import BaseTool, Tool

if TYPE_CHECKING:
    from protolink._runtime.driver import Driver

__all__ = ["prepare"]

MAX_NAMES_LISTED: Final = 50


async def prepare(driver: Driver, command: Prepare) -> None:
    """Validate, let the tool prepare, and record the exact operation; or record why there is none."""
    proposal = driver.run.action(command.action_id).proposal
    if proposal.agent is not None:
        await prepare_delegation(driver, proposal)
        return
    tool = _offered_tool(driver, proposal)
    if tool is None:
        await driver.append(_unknown(driver, proposal))
        return
    try:
        arguments, text, values = _validated(driver, tool, proposal)
    except ArgumentsError as error:
        await driver.append(_invalid(tool, proposal, error))
        return
    repeated = _repeated(driver, tool, text)
    if repeated is not None:
        await driver.append(ActionRepeated(action_id=proposal.action_id, repeat_of=repeated, arguments=arguments))
        return
    try:
        prepared = await _prepared(driver, tool, proposal, arguments)
    except PASSING:
        raise
    except ToolRejectedError as error:
        driver.keep_cause_of_direct(error)
        await driver.append(
            ActionRejected(
                action_id=proposal.action_id,
                phase="preparation",
                code=error.code,
                message=error.message,
                details=error.details,
                suggestion=error.suggestion,
                arguments=arguments,
            )
        )
        return
    except BaseException as error:  # the tool's preparation
        driver.keep_cause(error)
        message = f"preparing tool {tool.name!r} failed: {describe_error(error)}"
        info = ErrorInfo(code="preparation_failed", message=message, type=type(error).__name__)
        await driver.append(ActionFailed(action_id=proposal.action_id, error=info))
        return
    driver.arguments[proposal.action_id] = values
    await driver.append(prepared)


def _offered_tool(driver: Driver, proposal: Proposal) -> BaseTool | None:
    """The declared tool of exactly this name, unless a hook left it out of this turn."""
    if proposal.tool is None:
        return None
    if driver.offered is not None and all(tool.name != proposal.tool for tool in driver.offered):
        return None
    return driver.configuration.tools.get(proposal.tool)


def _unknown(driver: Driver, proposal: Proposal) -> ActionRejected:
    offered = driver.configuration.declarations if driver.offered is None else driver.offered
    names = sorted(tool.name for tool in offered)
    import difflib  # needed for mistakes only

    near = difflib.get_close_matches(proposal.name[:100], names[:1000], n=1)
    return ActionRejected(
        action_id=proposal.action_id,
        phase="validation",
        code="unknown_tool",
        message="There is no tool of this name; nothing was executed.",
        details={"available": names[:MAX_NAMES_LISTED]},
        suggestion=f"Did you mean {near[0]}?" if near else None,
    )


def _validated(driver: Driver, tool: BaseTool, proposal: Proposal) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """The arguments as JSON, as canonical text, and as the Python values that the function will get."""
    arguments: Any = proposal.args
    if isinstance(driver.run.work, ToolRequest):
        # An application may pass Python values; what JSON cannot carry will not fit the schema either.
        arguments, _ = render(arguments)
    text = canonical(arguments)
    values = tool.arguments.validate(text)
    return arguments, text, values


def _invalid(tool: BaseTool, proposal: Proposal, error: ArgumentsError) -> ActionRejected:
    return ActionRejected(
        action_id=proposal.action_id,
        phase="validation",
        code="invalid_arguments",
        message=f"The arguments do not fit the schema of {tool.name}: {error}",
        details={"problems": [{"path": problem.path, "message": problem.message} for problem in error.problems]},
        suggestion="Send arguments that fit the declared schema.",
    )


def _repeated(driver: Driver, tool: BaseTool, text: str) -> str | None:
    """The completed call that this one would repeat."""
    if tool.read_only or tool.repeatable or not driver.run.succeeded:
        return None
    found = driver.run.succeeded.get(call_key(tool.name, text))
    return None if found is None else found[0]


async def _prepared(driver: Driver, tool: BaseTool, proposal: Proposal, arguments: dict[str, Any]) -> ActionPrepared:
    """The operation as data: the plain call, or what the tool's own preparation made of it."""
    builder = _builder(tool)
    if builder is None:
        return _operation(driver, tool, proposal, arguments, name=tool.name, payload={"arguments": arguments})
    action = await _built(driver, tool, builder, arguments)
    payload = thaw(action.payload)
    if not isinstance(tool, PreparedTool):
        payload["arguments"] = arguments
    return _operation(
        driver,
        tool,
        proposal,
        arguments,
        kind=action.kind,
        name=action.name,
        payload=payload,
        capabilities=action.capabilities,
        description=action.description,
        metadata=thaw(action.metadata),
        artifacts=tuple(artifact.to_dict() for artifact in action.artifacts),
    )


def _operation(
    driver: Driver,
    tool: BaseTool,
    proposal: Proposal,
    arguments: dict[str, Any],
    *,
    name: str,
    payload: dict[str, Any],
    kind: str = "tool.call",
    capabilities: frozenset[str] = frozenset(),
    description: str = "",
    metadata: dict[str, Any] | None = None,
    artifacts: tuple[dict[str, Any], ...] = (),
) -> ActionPrepared:
    """The record of an exact operation; the tool's own capabilities always belong to it."""
    direct = isinstance(driver.run.work, ToolRequest)
    wanted = tuple(sorted(tool.capabilities | capabilities))
    return ActionPrepared(
        action_id=proposal.action_id,
        kind=kind,
        name=name,
        tool=tool.name,
        arguments=arguments,
        payload=payload,
        capabilities=wanted,
        fingerprint=action_fingerprint(kind, name, payload, wanted),
        description=description,
        metadata=metadata or {},
        artifacts=artifacts,
        read_only=tool.read_only,
        idempotent=tool.idempotent,
        repeatable=tool.repeatable,
        public=direct or driver.configuration.expose_tool_results,
        hooked=not direct and bool(driver.configuration.after_tool),
        question=isinstance(tool, QuestionTool),
    )


def _builder(tool: BaseTool) -> Any:
    if isinstance(tool, PreparedTool):
        return tool.prepare
    return tool.action_builder if isinstance(tool, Tool) else None


async def _built(driver: Driver, tool: BaseTool, builder: Any, arguments: dict[str, Any]) -> RunAction:
    """What the application's preparation returns for a copy of the arguments."""
    in_thread = driver.configuration.runs_in_thread(tool)
    made = await call(driver, builder, copy.deepcopy(arguments), driver.shared_context, in_thread=in_thread)
    if not isinstance(made, RunAction):
        raise TypeError(f"a preparation returns a RunAction, not {type(made).__name__}")
    return made
