"""How often a small model gets a task with known answers right, with constrained actions and without.

`python -m benchmarks.small_models` asks five questions about a folder of twenty text records, in three ways, and prints
what came of each. Any other model can be named: `python -m benchmarks.small_models local:/path/to/model.gguf`, or
`ollama:qwen3:4b`. An answer counts when it holds the known word and the record that holds it was read.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from protolink import Agent, RunBudget
from protolink.llms import LLM, create_llm
from protolink.tools import Tool

Name = Literal[
    "kettle", "lamp", "chair", "table", "mug", "clock", "mirror", "carpet", "shelf", "vase",
    "bicycle", "guitar", "umbrella", "camera", "tent", "ladder", "hammer", "bucket", "candle", "pillow",
]  # fmt: skip

RECORDS: dict[str, str] = {
    "kettle": "The kettle is red. It was made in Lisbon.",
    "lamp": "The lamp is green. It was made in Oslo.",
    "chair": "The chair is blue. It was made in Madrid.",
    "table": "The table is black. It was made in Berlin.",
    "mug": "The mug is white. It was made in Dublin.",
    "clock": "The clock is silver. It was made in Geneva.",
    "mirror": "The mirror is round. It was made in Venice.",
    "carpet": "The carpet is purple. It was made in Tunis.",
    "shelf": "The shelf is brown. It was made in Malmo.",
    "vase": "The vase is yellow. It was made in Delft.",
    "bicycle": "The bicycle is orange. It was made in Utrecht.",
    "guitar": "The guitar is golden. It was made in Granada.",
    "umbrella": "The umbrella is pink. It was made in London.",
    "camera": "The camera is grey. It was made in Tokyo.",
    "tent": "The tent is striped. It was made in Bergen.",
    "ladder": "The ladder is short. It was made in Prague.",
    "hammer": "The hammer is heavy. It was made in Leeds.",
    "bucket": "The bucket is empty. It was made in Porto.",
    "candle": "The candle is thin. It was made in Vienna.",
    "pillow": "The pillow is soft. It was made in Turin.",
}

QUESTIONS: Sequence[tuple[str, str, str]] = (
    ("What colour is the bicycle?", "bicycle", "orange"),
    ("Where was the clock made?", "clock", "geneva"),
    ("What colour is the vase?", "vase", "yellow"),
    ("Where was the camera made?", "camera", "tokyo"),
    ("What colour is the carpet?", "carpet", "purple"),
)

WORDS = "Answer the question from what the record says."
SHOWN = {
    "question": "Where was the lamp made?",
    "args": {"name": "lamp"},
    "result": RECORDS["lamp"],
    "answer": "The lamp was made in Oslo.",
}


@dataclass(frozen=True)
class Way:
    """One way to ask a model."""

    name: str
    constrained: bool
    helped: bool
    """Whether it is shown an example, has to look first and is to answer briefly."""


WAYS = (
    Way("constrained, one demonstration, a look required first", constrained=True, helped=True),
    Way("the same without constraints", constrained=False, helped=True),
    Way("neither constraints nor help: the schema in words, a free choice", constrained=False, helped=False),
)


def look_first(step: int) -> str:
    """Read in the first turn, answer in the second."""
    return "required" if step == 1 else "none"


def reader(folder: Path, llm: LLM, way: Way) -> Agent:
    """An agent that may read the records of a folder."""

    def read_record(name: Name) -> str:
        """Read the record about one thing."""
        return (folder / f"{name}.txt").read_text(encoding="utf-8")

    helped: dict[str, Any] = {"tool_choice": look_first, "max_answer_characters": 100} if way.helped else {}
    tool = Tool(read_record, examples=[SHOWN] if way.helped else None)
    return Agent(
        name="reader", llm=llm, system_prompt=WORDS, tools=[tool], expose_tool_results=True, verbosity=0, **helped
    )


async def ask(agent: Agent, question: str, record: str, known: str) -> tuple[bool, str]:
    """Whether one question was answered, and what came of it."""
    result = await agent.start_run(question, budget=RunBudget(max_steps=4)).result()
    read = any(evidence.result == RECORDS[record] for evidence in result.tool_evidence)
    answer = str(result.output or result.error or "")
    return read and known in answer.lower(), answer


async def measure(model: str, ways: Sequence[Way]) -> None:
    """Ask everything in every way, and print it."""
    llm = create_llm(model)
    can_constrain = llm.constrained and not llm.native_tools
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for record, text in RECORDS.items():
            (folder / f"{record}.txt").write_text(text, encoding="utf-8")
        for way in ways:
            if way.constrained and not can_constrain:
                print(f"{way.name}: {llm!r} cannot be constrained")
                continue
            llm.constrained = way.constrained
            agent = reader(folder, llm, way)
            began, right = time.perf_counter(), 0
            for question, record, known in QUESTIONS:
                done, answer = await ask(agent, question, record, known)
                right += done
                print(f"  {'right' if done else 'wrong'}: {question} {' '.join(answer.split())[:90]}", flush=True)
            seconds = (time.perf_counter() - began) / len(QUESTIONS)
            print(f"{way.name}: {right} of {len(QUESTIONS)}, {seconds:.1f} s a question", flush=True)
    await llm.aclose()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure one model."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_models", description=__doc__)
    parser.add_argument("model", nargs="?", default="local", help="a specification for create_llm; local by default")
    parser.add_argument("--only", type=int, choices=range(1, len(WAYS) + 1), help="one of the ways, by its number")
    chosen = parser.parse_args(arguments)
    asyncio.run(measure(chosen.model, WAYS if chosen.only is None else WAYS[chosen.only - 1 : chosen.only]))


if __name__ == "__main__":
    main()
