"""What a stored run must find again: the configuration, as a digest per named component."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protolink._json import canonical, digest
from protolink._runtime.configuration import Configuration
from protolink.llms.choice import AUTO
from protolink.policy.policies import CapabilityPolicy
from protolink.tools.tool import BaseTool
from protolink.tools.worker import WorkerTool

__all__ = ["differences", "fingerprint_of"]


def fingerprint_of(configuration: Configuration) -> dict[str, str]:
    """Digests by component, those of the children included. The code behind a tool cannot be part of it."""
    parts: dict[str, Any] = {
        "name": configuration.agent_name,
        "system_prompt": configuration.words,
        "model": _model(configuration),
        "execution_version": configuration.execution_version,
        "yield_after_steps": configuration.slice_steps,
        "policies": [_policy(policy) for policy in configuration.policies],
    }
    # What is not used is left out, so that runs stored before it existed are found again.
    if configuration.tool_choice != AUTO:
        choice = configuration.tool_choice
        parts["tool_choice"] = choice if isinstance(choice, str) else "function"
    if configuration.max_answer_characters is not None:
        parts["max_answer_characters"] = configuration.max_answer_characters
    for name, tool in configuration.tools.items():
        parts[f"tool {name}"] = _tool(tool)
    validator = configuration.completion_validator
    if validator is not None:
        # The predicates are code, like that of the tools. Agents without checks keep the fingerprint that they had.
        parts["completion_checks"] = [[check.name, check.require_execution] for check in validator.checks]
    found = {name: digest(canonical(part)) for name, part in parts.items()}
    for name, worker in configuration.subagents.items():
        for part, value in fingerprint_of(worker.configuration()).items():
            found[f"child {name}: {part}"] = value
    return found


def differences(stored: Mapping[str, str], present: Mapping[str, str]) -> tuple[str, ...]:
    """The components that are not what they were, in the order of their names."""
    return tuple(sorted(name for name in {*stored, *present} if stored.get(name) != present.get(name)))


def _model(configuration: Configuration) -> Any:
    if configuration.llm_factory is not None:
        return "factory"
    llm = configuration.llm
    return None if llm is None else [llm.provider, llm.model]


def _policy(policy: object) -> Any:
    if isinstance(policy, CapabilityPolicy):
        return policy.to_dict()
    return f"{type(policy).__module__}.{type(policy).__qualname__}"


def _tool(tool: BaseTool) -> Any:
    declared: dict[str, Any] = {
        "description": tool.description,
        "input_schema": tool.arguments.schema,
        "output_schema": tool.output_schema,
        "capabilities": sorted(tool.capabilities),
        "read_only": tool.read_only,
        "idempotent": tool.idempotent,
        "repeatable": tool.repeatable,
        "kind": type(tool).__name__,
    }
    if isinstance(tool, WorkerTool):
        declared["worker"] = [tool.worker.name, tool.tool]
    return declared
