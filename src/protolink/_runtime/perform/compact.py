"""Keeping a conversation within the model's context window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from protolink._core.records import HistoryCompacted
from protolink._core.state import RunState
from protolink._json import thaw
from protolink._runtime.perform.calls import call_hooks
from protolink._text import encodable
from protolink.errors import ConfigurationError
from protolink.hooks import Compaction
from protolink.llms.port import LLM

if TYPE_CHECKING:
    from protolink._runtime.driver import Driver

__all__ = ["keep_within_window"]

FEWEST_CHARACTERS_PER_TOKEN: Final = 3
"""Fewer than text has on average, because actions and results are JSON and too long a request fails."""

REPLY_SHARE: Final = 0.25
"""What of the window is left for the reply."""

KEPT_SHARE: Final = 0.5
"""What of its room the conversation may fill afterwards, so that not every turn after this one compacts again."""


async def keep_within_window(driver: Driver, llm: LLM, offered_characters: int) -> None:
    """Leave out the oldest exchanges where the window would not hold them all, and record that.

    The question that is being answered, and the last exchange, always stay. Raises what a hook raises.
    """
    if llm.context_window is None:
        return
    run = driver.run
    room = llm.context_window * (1 - REPLY_SHARE) * FEWEST_CHARACTERS_PER_TOKEN - offered_characters
    if run.history_characters <= room:
        return
    before = _cut(run, int(room * KEPT_SHARE))
    if before is None:
        return
    sent = run.sent
    kept = len(run.history) - before
    dropped = [message for message in sent[: len(sent) - kept] if message is not run.history[run.question_at]]
    summary = await _summary(driver, dropped) if driver.configuration.on_compaction else None
    await driver.append(HistoryCompacted(before=before, summary=summary))


def _cut(run: RunState, room: int) -> int | None:
    """The number of the first message that stays: the earliest start of an exchange from which on all fits."""
    characters, found = 0, None
    history, question = run.history, run.question_at
    first = 0 if run.compacted is None else run.compacted.before
    for number in range(len(history) - 1, first, -1):
        message = history[number]
        characters += len(message["content"])
        starts = message["role"] == ("assistant" if number > question else "user")
        if not starts:
            continue
        if found is not None and characters > room:
            break
        found = number
    if found is None or not any(number != question for number in range(first, found)):
        return None  # what is too long is all that there is
    return found


async def _summary(driver: Driver, dropped: list[dict[str, Any]]) -> str | None:
    compaction = Compaction(messages=thaw(dropped), context=driver.shared_context, step=driver.run.steps + 1)
    await call_hooks(driver, driver.configuration.on_compaction, compaction, "on_compaction")
    summary: object = compaction.summary
    if summary is not None and not isinstance(summary, str):
        raise ConfigurationError(f"an on_compaction hook leaves a text as the summary, not {type(summary).__name__}")
    return encodable(summary) if summary else None
