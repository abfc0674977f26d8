"""Time that passes only when a test says so."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from protolink import Agent, RunBudget, RunContext
from protolink.testing import ManualClock, collect, use_environment


def test_time_stands_still() -> None:
    """Two readings in a row are the same moment, and values made inside take it from the clock."""
    clock = ManualClock(start=0.0)

    with use_environment(clock):
        context = RunContext()

    assert (clock.now(), clock.monotonic()) == (0.0, 0.0)
    assert context.created_at == "1970-01-01T00:00:00.000000+00:00"


def test_ids_are_counted() -> None:
    """The same program has the same ids, so that a test can expect one."""
    with use_environment(ManualClock()):
        first, second = RunContext(), RunContext()

    assert (first.run_id, second.run_id) == (f"{1:032x}", f"{2:032x}")


def test_timers_run_in_the_order_of_their_moments() -> None:
    """Whatever the order they were set in; equals run as they were set."""
    clock = ManualClock()
    ran: list[tuple[str, float]] = []

    def note(name: str) -> None:
        ran.append((name, clock.monotonic()))

    for name, seconds in (("late", 3.0), ("first", 1.0), ("second", 1.0), ("never", 4.5)):
        clock.call_later(seconds, partial(note, name))

    clock.advance(4.0)

    assert ran == [("first", 1.0), ("second", 1.0), ("late", 3.0)]
    assert (clock.monotonic(), clock.waiting) == (4.0, 1)


def test_a_timer_that_sets_another_one_gets_both() -> None:
    """A repeating deadline inside one span is reached as often as in real time."""
    clock = ManualClock()
    ran: list[float] = []

    def again() -> None:
        ran.append(clock.monotonic())
        clock.call_later(1.0, again)

    clock.call_later(1.0, again)
    clock.advance(3.0)

    assert ran == [1.0, 2.0, 3.0]


def test_a_timer_that_was_called_off_does_not_run() -> None:
    """Not even when another one calls it off at the last moment."""
    clock = ManualClock()
    ran: list[str] = []
    clock.call_later(1.0, lambda: late.cancel())
    late = clock.call_later(1.0, lambda: ran.append("late"))

    clock.advance(2.0)
    late.cancel()

    assert (ran, clock.waiting) == ([], 0)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_time_never_goes_back(seconds: float) -> None:
    """Durations would become negative, and an endless span would never return."""
    clock = ManualClock()

    with pytest.raises(ValueError, match="finite"):
        clock.advance(seconds)


async def test_a_deadline_passes_when_the_clock_says_so() -> None:
    """A test of a deadline takes no time and cannot be early or late."""
    reached = asyncio.Event()

    async def dig() -> None:
        """Dig."""
        reached.set()
        await asyncio.Event().wait()

    agent = Agent(name="digger", tools=[dig], verbosity=0)
    clock = ManualClock()
    with use_environment(clock):
        call = asyncio.ensure_future(agent.invoke("", "tool_call", "dig", budget=RunBudget(max_runtime_seconds=3600)))
        await reached.wait()

    clock.advance(3600)

    with pytest.raises(Exception, match="max_runtime_seconds"):
        await call


async def test_a_run_keeps_the_clock_that_it_started_with() -> None:
    """The block may be left before the run has ended."""
    agent = Agent(name="keeper", llm="mock", verbosity=0)
    with use_environment(ManualClock(start=0.0)):
        handle = agent.start_run("Hello.")

    events, _ = await collect(handle)

    assert {event.timestamp for event in events} == {"1970-01-01T00:00:00.000000+00:00"}
