"""A server for every test, and one adapter after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from protolink.llms import LLM
from tests.providers.dialects import DIALECTS, Dialect
from tests.providers.wire import WireServer

Make = Callable[..., LLM]


@pytest.fixture
def server() -> Iterator[WireServer]:
    with WireServer() as running:
        yield running


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.name)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    found: Dialect = request.param
    return found


@pytest.fixture
async def make(server: WireServer, dialect: Dialect) -> AsyncIterator[Make]:
    """Makes adapters for the server, and closes them."""
    made: list[LLM] = []

    def making(**options: Any) -> LLM:
        made.append(dialect.llm(server.url, **options))
        return made[-1]

    yield making
    for llm in made:
        await llm.aclose()


@pytest.fixture
def llm(make: Make) -> LLM:
    return make()
