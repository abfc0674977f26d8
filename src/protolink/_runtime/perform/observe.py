"""Hooks see a result on its way to the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protolink._core.machine import Observe
from protolink._core.records import ActionCompleted, ActionObserved
from protolink._json import render, thaw
from protolink._runtime.perform.calls import call_hooks
from protolink._runtime.scopes import PASSING
from protolink._text import describe_error
from protolink.hooks import ToolObservation

if TYPE_CHECKING:
    from protolink._runtime.driver import Driver

__all__ = ["observe"]


async def observe(driver: Driver, command: Observe) -> None:
    """Record what the model will see instead, where a hook changed it."""
    action = driver.run.action(command.action_id)
    if not isinstance(action.ending, ActionCompleted):
        raise TypeError("only a completed action is observed")
    result = action.ending.result
    observation = ToolObservation(
        name=action.proposal.name, result=thaw(result), context=driver.shared_context, step=driver.run.steps
    )
    try:
        await call_hooks(driver, driver.configuration.after_tool, observation, "after_tool")
    except PASSING:
        raise
    except BaseException as error:  # a hook's
        await driver.fail("hook_failed", f"after_tool failed: {describe_error(error)}", error)
        return
    seen, _ = render(observation.result)
    if seen == result:
        await driver.append(ActionObserved(action_id=command.action_id, changed=False))
    else:
        await driver.append(ActionObserved(action_id=command.action_id, changed=True, result=seen))
