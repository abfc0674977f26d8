"""What a turn and a tool step cost in CPU, and how that grows with the length of the run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from benchmarks.floors import ANSWER, bare_loop, bare_turn, lookup, script
from benchmarks.measure import alternate, alternate_sizes, cpu_seconds, growth
from benchmarks.models import Scripted
from benchmarks.scale import Scale
from benchmarks.table import AtMost, AtMostTimes, Row
from protolink import Agent, RunBudget
from protolink.llms import LLM, MockLLM

__all__ = ["one_tool_step", "one_turn"]

_TURN: Final = AtMostTimes(21.7)
_STEP: Final = AtMostTimes(11.8)
_EXPONENT: Final = AtMost(1.05)

LENGTHS: Final = (1, 10, 50, 200, 1000)
"""Tool calls of one run. The growth is fitted from 50 on, where the fixed cost of a run hardly counts."""

_Model = Callable[[int], LLM]


def one_turn(scale: Scale) -> list[Row]:
    """One question and one answer, by a model that is a coroutine and by the scripted model of the library."""
    return asyncio.run(_turns(scale))


async def _turns(scale: Scale) -> list[Row]:
    models = {"one turn": Scripted(script(0)), "one turn, scripted model": MockLLM(default_response=ANSWER)}
    rows: list[Row] = []
    for name, model in models.items():
        agent = Agent(name="researcher", llm=model, tools=[lookup])
        times = 300 if scale.quick else 1_000

        turn = partial(agent.invoke, "go")
        await cpu_seconds(times, turn)
        by_hand, by_runtime = partial(cpu_seconds, 5 * times, bare_turn), partial(cpu_seconds, times, turn)
        floors, ours = await alternate(scale.rounds(9), by_hand, by_runtime)
        rows.append(Row(workload=name, unit="us", floor=min(floors) * 1e6, protolink=min(ours) * 1e6, target=_TURN))
    return rows


def one_tool_step(scale: Scale) -> list[Row]:
    """A run of K tool calls with arguments of their own, divided by K; then how the whole grows with K."""
    return asyncio.run(_steps(scale))


async def _steps(scale: Scale) -> list[Row]:
    rows = await _lengths(scale, "one tool step", lambda calls: Scripted(script(calls)), LENGTHS)
    return rows + await _lengths(scale, "one tool step, scripted model", _mock, (200,))


def _mock(calls: int) -> LLM:
    say = script(calls)
    return MockLLM(
        sequential_responses=[json.loads(say(step)) for step in range(1, calls + 1)], default_response=ANSWER
    )


async def _lengths(scale: Scale, name: str, model: _Model, lengths: Sequence[int]) -> list[Row]:
    """CPU seconds of whole runs of so many tool calls, by hand and by the runtime: the best of several rounds."""
    by_hand, by_runtime = await alternate_sizes(scale.rounds(15), lengths, _by_hand, partial(_by_runtime, model))
    rows = [
        Row(
            workload=f"{name}, K={length:,}",
            unit="us",
            floor=min(by_hand[length]) / length * 1e6,
            protolink=min(by_runtime[length]) / length * 1e6,
            target=_STEP if length == 200 else None,
        )
        for length in lengths
    ]
    fitted = [(length, min(by_runtime[length])) for length in lengths if length >= 50]
    if len(fitted) > 1:
        rows.append(Row(workload=f"{name}, growth exponent", unit="", protolink=growth(fitted), target=_EXPONENT))
    return rows


async def _by_hand(length: int) -> float:
    say = script(length)

    async def model(step: int) -> str:
        return say(step)

    return await cpu_seconds(max(1, 1_000 // length), partial(bare_loop, model, length))


async def _by_runtime(model: _Model, length: int) -> float:
    times = max(1, 200 // length)
    budget = RunBudget(max_steps=length + 1)
    # A scripted model plays its script once, so each run has an agent of its own, made before the clock starts.
    agents = iter([Agent(name="researcher", llm=model(length), tools=[lookup]) for _ in range(times)])
    return await cpu_seconds(times, lambda: next(agents).invoke("go", budget=budget))
