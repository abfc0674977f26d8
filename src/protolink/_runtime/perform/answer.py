"""The final reply becomes the answer, once hooks, the requested schema and the application's checks agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protolink._core.records import AnswerGiven, ErrorInfo, Inference, ReplyRefused, RunFailed
from protolink._json import render
from protolink._runtime.perform.calls import call_hooks
from protolink._runtime.perform.completion import check_completion, complaint
from protolink._runtime.scopes import PASSING
from protolink._text import describe_error
from protolink.errors import ConfigurationError
from protolink.hooks import FinalResponse

if TYPE_CHECKING:
    from protolink._runtime.driver import Driver

__all__ = ["give_answer"]


async def give_answer(driver: Driver) -> None:
    """Record the answer, or tell the model why it does not fit; or fail when it may not try again."""
    content: Any = driver.run.pending_answer
    try:
        content = await _hooked(driver, content)
    except PASSING:
        raise
    except BaseException as error:  # a hook's
        await driver.fail("hook_failed", f"before_complete failed: {describe_error(error)}", error)
        return
    work = driver.run.work
    value = content
    if isinstance(work, Inference) and work.output_schema is not None:
        from protolink.typed import schema_validator  # only typed answers need it

        try:
            validate = driver.validator or schema_validator(work.output_schema)
            content, value = validate(content)
        except ConfigurationError as error:
            await driver.fail("configuration", str(error), error)
            return
        except ValueError as error:
            await _refuse(driver, work, str(error))
            return
    checked = await check_completion(driver, content)
    wrong = None if checked is None else complaint(checked)
    if checked is not None and wrong is not None:
        await driver.append(checked, RunFailed(error=ErrorInfo(code="completion_failed", message=wrong)))
        return
    driver.live_result = value
    # In one commit with the answer, so that neither is ever stored without the other.
    await driver.append(*(() if checked is None else (checked,)), AnswerGiven(content=content))


async def _hooked(driver: Driver, content: Any) -> Any:
    if not driver.configuration.before_complete:
        return content
    response = FinalResponse(content=content, context=driver.shared_context, step=driver.run.steps)
    await call_hooks(driver, driver.configuration.before_complete, response, "before_complete")
    seen, _ = render(response.content)
    return seen


async def _refuse(driver: Driver, work: Inference, problem: str) -> None:
    if driver.run.answer_attempts + 1 < work.max_attempts:
        await driver.append(ReplyRefused(message=problem, of_answer=True))
    else:
        await driver.fail("infer_parse_error", f"the answer does not fit the requested schema: {problem}")
