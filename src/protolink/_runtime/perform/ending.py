"""Endings that are nobody's work: actions that will not start, and runs that cannot go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protolink._core.machine import CloseActions, Fail
from protolink._core.records import ActionCanceled, BudgetExceeded, RunFailed

if TYPE_CHECKING:
    from protolink._runtime.driver import Driver

__all__ = ["close_actions", "fail"]


async def close_actions(driver: Driver, command: CloseActions) -> None:
    """End every open action. One that was entered and whose own ending is missing may still be running."""
    actions = driver.run.actions
    await driver.append(
        *(
            ActionCanceled(action_id=action_id, unsettled=actions[action_id].stage == "started")
            for action_id in command.action_ids
        )
    )


async def fail(driver: Driver, command: Fail) -> None:
    """Record the limit, or the mistake, that ends the run."""
    reason = command.reason
    await driver.append(reason if isinstance(reason, BudgetExceeded) else RunFailed(error=reason))
