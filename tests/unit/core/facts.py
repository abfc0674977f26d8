"""Records in short, for tests that write a run's list by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from protolink._core.entries import Entry
from protolink._core.evolve import evolve
from protolink._core.machine import Command, decide
from protolink._core.records import (
    ActionCompleted,
    ActionJudged,
    ActionPrepared,
    ActionRejected,
    ActionStarted,
    ActionUncertain,
    ApprovalAnswered,
    ApprovalAsked,
    CancelRequested,
    Inference,
    ModelAsked,
    ModelReplied,
    ModelUsage,
    Proposal,
    Record,
    RunStarted,
    Work,
)
from protolink._core.state import RunState, TreeState
from protolink._core.views.parts import Identity
from protolink._core.views.project import project
from protolink._runtime.journal import Journal
from protolink.action import action_fingerprint
from protolink.context import RunBudget, RunContext
from protolink.events import RunEvent
from protolink.testing import ManualClock

RUN: Final = "run"
LONG_AGO: Final = "2026-01-01T00:00:00.000000+00:00"
QUESTION: Final = Inference(prompt="What is stored?")


def started(
    *work: Work,
    run_id: str = RUN,
    budget: RunBudget | None = None,
    conversation: tuple[dict[str, Any], ...] = (),
    **changes: Any,
) -> RunStarted:
    """A run about `work`, one question if none is given."""
    context = RunContext(run_id=run_id, budget=budget or RunBudget(), created_at=LONG_AGO)
    return RunStarted(
        task={"id": f"task of {run_id}", "state": "submitted", "created_at": LONG_AGO},
        agent_name="keeper",
        work=work or (QUESTION,),
        context=context.to_dict(),
        conversation=conversation,
        **changes,
    )


def asked(step: int = 1, *, corrections: int = 2, tokens: int = 10, native: bool = True) -> ModelAsked:
    """A model turn that was reserved."""
    return ModelAsked(
        step=step,
        provider="mock",
        model="mock-gpt",
        native=native,
        streaming=False,
        corrections_allowed=corrections,
        estimated_input_tokens=tokens,
    )


def answered(text: str = "Milk.", usage: ModelUsage | None = None) -> ModelReplied:
    """A final reply."""
    return ModelReplied(text=text, answer=text, usage=usage or ModelUsage())


def proposed(*tools: str, first: int = 1, args: Any = None) -> ModelReplied:
    """A reply with one call of each tool, numbered from `first`."""
    return ModelReplied(
        text="",
        proposals=tuple(
            Proposal(action_id=act(number), call_id=f"call_{number}", tool=tool, args=args)
            for number, tool in enumerate(tools, first)
        ),
    )


def act(number: int) -> str:
    """The id of an action of the run."""
    return f"{RUN}.{number}"


def prepared(
    number: int, tool: str = "note", arguments: dict[str, Any] | None = None, **changes: Any
) -> ActionPrepared:
    """The exact operation of a call; each has arguments of its own unless some are given."""
    given = {"number": number} if arguments is None else arguments
    return ActionPrepared(
        action_id=act(number),
        kind="tool.call",
        name=tool,
        tool=tool,
        arguments=given,
        payload={"arguments": given},
        capabilities=(),
        fingerprint=action_fingerprint("tool.call", tool, {"arguments": given}, ()),
        **changes,
    )


def judged(number: int, effect: Literal["allow", "deny", "require_approval"] = "allow") -> ActionJudged:
    """The policies' word."""
    return ActionJudged(action_id=act(number), effect=effect, reason="because")


def asks(number: int) -> tuple[Record, ...]:
    """A judgement that requires approval, with the request that follows it."""
    return judged(number, "require_approval"), ApprovalAsked(action_id=act(number), request_id=f"request {number}")


def decided(number: int, approved: bool) -> ApprovalAnswered:
    """Somebody's answer to the request about an action."""
    return ApprovalAnswered(action_id=act(number), request_id=f"request {number}", approved=approved)


def authorized(number: int, tool: str = "note", **changes: Any) -> tuple[Record, ...]:
    """An action that may run."""
    return prepared(number, tool, **changes), judged(number)


def entered(number: int) -> ActionStarted:
    """An action that runs."""
    return ActionStarted(action_id=act(number))


def completed(number: int, result: Any = "stored") -> ActionCompleted:
    """An action that returned."""
    return ActionCompleted(action_id=act(number), result=result)


def uncertain(number: int) -> ActionUncertain:
    """An action whose outcome nobody knows."""
    return ActionUncertain(action_id=act(number), reason="the reply was lost")


def rejected(number: int, phase: Literal["validation", "preparation", "execution"] = "validation") -> ActionRejected:
    """An action that was refused in a correctable way."""
    return ActionRejected(action_id=act(number), phase=phase, code="no", message="nothing changed")


def canceled(reason: str = "enough") -> CancelRequested:
    """Somebody's wish that the run ends."""
    return CancelRequested(reason=reason)


def fold(*records: Record, run_id: str = RUN) -> tuple[TreeState, RunState]:
    """The state after a list of records of one run."""
    tree = TreeState(run_id)
    for record in records:
        evolve(tree, run_id, record)
    return tree, tree.runs[run_id]


def following(*records: Record) -> Command | None:
    """What is decided after a list of records."""
    return decide(*fold(*records))


async def listed(*records: Record | tuple[str, Record]) -> Journal:
    """The list itself, as readers see it; a record of another run stands in a pair with its id."""
    journal = Journal(RUN, ManualClock(start=0.0))
    for item in records:
        run_id, record = item if isinstance(item, tuple) else (RUN, item)
        await journal.append(run_id, record)
    return journal


def seen(journal: Journal, viewpoint: str = RUN, who: Mapping[str, Identity] | None = None) -> Sequence[RunEvent]:
    """The events that a reader of one run gets."""
    found = (project(item, who or journal.identities, viewpoint) for item in journal.entries)
    return [event for event in found if event is not None]


def entry(journal: Journal, number: int) -> Entry:
    """One record in its place."""
    return next(item for item in journal.entries if isinstance(item, Entry) and item.number == number)
