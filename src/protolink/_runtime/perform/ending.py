"""Endings that are nobody's work: actions that will not start, and runs that cannot go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from protolink._core.machine import CloseActions, Fail
from protolink._core.records import ActionCanceled, BudgetExceeded, RunFailed, RunFinished

if TYPE_CHECKING:
    from protolink._runtime.driver import Driver

__all__ = ["close_actions", "drain", "fail", "finish"]


async def close_actions(driver: Driver, command: CloseActions) -> None:
    """End every open action. One that was entered and whose own ending is missing may still be running."""
    # Whoever was canceled from outside has left its children without awaiting their end.
    for action_id, child in tuple(driver.children.items()):
        await child.wait()
        driver.children.pop(action_id, None)
    actions = driver.run.actions
    await driver.append(
        *(
            ActionCanceled(action_id=action_id, unsettled=actions[action_id].stage == "started")
            for action_id in command.action_ids
        )
    )


async def drain(driver: Driver) -> None:
    """Stop the workers in the background and await that they have ended."""
    driver.ending = True
    driver.stop_children("the run that started this work has ended")
    await asyncio.gather(*driver.background.values(), return_exceptions=True)
    left = [action_id for action_id, action in driver.run.background.items() if action.is_open]
    await driver.append(*(ActionCanceled(action_id=action_id) for action_id in left))


async def finish(driver: Driver, record: RunFinished) -> None:
    """Save the conversation and record the end, with the time that the attempt took."""
    canceled: asyncio.CancelledError | None = None
    if driver.keeper is not None:
        await driver.journal.settle()  # nothing is said in the session that the stored run does not know
        try:
            await driver.keeper.keep_conversation(driver)
        except asyncio.CancelledError as error:  # whoever drives the run; what became of it is clear by now
            canceled = error
    await driver.append(
        RunFinished(status=record.status, error=record.error, reason=record.reason, seconds=driver.elapsed_seconds)
    )
    if canceled is not None:
        raise canceled


async def fail(driver: Driver, command: Fail) -> None:
    """Record the limit, or the mistake, that ends the run."""
    reason = command.reason
    await driver.append(reason if isinstance(reason, BudgetExceeded) else RunFailed(error=reason))
