"""The application's checks look at the receipts before an answer is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protolink._core.records import CheckOutcome, CompletionChecked, Inference
from protolink._core.views.receipts import receipts_of
from protolink._json import thaw
from protolink._runtime.perform.calls import call
from protolink._runtime.scopes import PASSING
from protolink._text import describe_error, encodable
from protolink.completion import Completion, CompletionCheck

if TYPE_CHECKING:
    from protolink._runtime.driver import Driver

__all__ = ["check_completion", "complaint"]

_NOTHING_EXECUTED = "no tool call of this run has completed"
_NOT_SHOWN = "the receipts do not show it"
MAX_MESSAGE_CHARACTERS = 500
"""What is kept of what one check says."""


async def check_completion(driver: Driver, content: Any) -> CompletionChecked | None:
    """What the agent's checks say about its last answer; None where there is nothing to check."""
    validator = driver.configuration.completion_validator
    run = driver.run
    if validator is None or any(isinstance(work, Inference) for work in run.started.work[run.work_index + 1 :]):
        return None
    journal = driver.journal
    completion = Completion(
        output=thaw(content),
        receipts=receipts_of(tuple(journal.entries), journal.identities, driver.run_id),
        context=driver.shared_context,
    )
    return CompletionChecked(checks=tuple([await _outcome(driver, check, completion) for check in validator.checks]))


async def _outcome(driver: Driver, check: CompletionCheck, completion: Completion) -> CheckOutcome:
    problem = await _problem(driver, check, completion)
    return CheckOutcome(name=encodable(check.name), passed=problem is None, message=encodable(problem or ""))


async def _problem(driver: Driver, check: CompletionCheck, completion: Completion) -> str | None:
    """Why the check has failed; None where it has passed."""
    if check.require_execution and not completion.executed():
        return _NOTHING_EXECUTED
    try:
        passed = await call(driver, check.predicate, completion, in_thread=True)
    except PASSING:
        raise
    except BaseException as error:  # the predicate's own, SystemExit included
        driver.keep_cause(error)
        return f"the check raised {describe_error(error, MAX_MESSAGE_CHARACTERS)}"
    if passed is True:
        return None
    if passed is False:
        return check.message[:MAX_MESSAGE_CHARACTERS] or _NOT_SHOWN
    return f"the check returned {type(passed).__name__}, neither True nor False"


def complaint(checked: CompletionChecked) -> str | None:
    """What is wrong, as one sentence; None where every check has passed."""
    failed = [f"{check.name!r}: {check.message}" for check in checked.checks if not check.passed]
    return f"the answer is not borne out by what was executed; {'; '.join(failed)}" if failed else None
