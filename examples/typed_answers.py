"""Answers as Python values: any type that pydantic understands, with a second chance for the model. Offline.

Run it with `python examples/typed_answers.py`.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from pydantic import BaseModel, Field

from protolink import Agent, InferParseError
from protolink.llms import MockLLM


class Review(BaseModel):
    """What is wanted of the model."""

    mood: Literal["good", "bad"]
    stars: int = Field(ge=1, le=5)


def critic(*script: str) -> Agent:
    return Agent(name="critic", llm=MockLLM(sequential_responses=script), verbosity=0)


async def main() -> None:
    review = await critic('{"mood": "good", "stars": 4}').invoke_typed("How was the film?", Review)
    print(f"{review.mood}, {review.stars} stars")

    # The first answer does not fit; the model is told why and answers again.
    patient = critic('{"mood": "good", "stars": 9}', '{"mood": "good", "stars": 5}')
    review = await patient.invoke_typed("How was the film?", Review, max_attempts=2)
    print(f"{review.mood}, {review.stars} stars, at the second attempt")

    names = await critic('["Ada", "Grace"]').invoke_typed("Who was there?", list[str])
    print(", ".join(names))

    try:
        await critic("It was fine.").invoke_typed("How was the film?", Review)
    except InferParseError as error:
        print(f"no answer: {error}")


if __name__ == "__main__":
    asyncio.run(main())
