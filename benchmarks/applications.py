"""What the workloads of HTTP ask, each served by a uvicorn of its own: a bare endpoint, and a group of agents."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from benchmarks.models import Scripted
from protolink import Agent, AgentGroup
from protolink.http import Application, create_app
from protolink.llms import LLM
from protolink.llms.port import LLMReply, LLMRequest

__all__ = ["FRAGMENTS", "bare", "team"]

FRAGMENTS: Final = 95
"""With what a run adds around them, a hundred events."""

_FRAGMENT_SECONDS: Final = 0.05
_ID: Final = "0" * 32


class Paced(LLM):
    """Streams fragments as fast as people read."""

    provider = "benchmark"
    model = "paced"
    streaming = True

    async def respond(self, request: LLMRequest) -> LLMReply:
        """Every fragment in its time."""
        for number in range(FRAGMENTS):
            await asyncio.sleep(_FRAGMENT_SECONDS)
            request.fragment(f"word {number} ")
        return LLMReply(text="answer")


class Silent(LLM):
    """Never answers."""

    provider = "benchmark"
    model = "silent"

    async def respond(self, request: LLMRequest) -> LLMReply:
        """Wait for ever."""
        await asyncio.Event().wait()
        return LLMReply(text="never")


def team() -> Application:
    """Agents that answer at once, in time, and never."""
    models = {"quick": Scripted(lambda step: "answer"), "paced": Paced(), "silent": Silent()}
    return create_app(AgentGroup([Agent(name=name, llm=llm) for name, llm in models.items()]))


def bare() -> Starlette:
    """An endpoint that takes the same bodies and gives answers of the same size: what `PUT` gave it, or an id."""
    lines: list[bytes] = []

    async def keep(request: Request) -> Response:
        lines[:] = [await request.body()]
        return Response()

    async def run(request: Request) -> Response:
        await request.json()
        if request.headers["accept"] == "application/x-ndjson":
            return Response(lines[0], media_type="application/x-ndjson")
        return JSONResponse({"run_id": _ID, "status": "working"}, 202, {"X-Run-ID": _ID, "Location": f"/runs/{_ID}"})

    return Starlette(routes=[Route("/runs", run, methods=["POST"]), Route("/runs", keep, methods=["PUT"])])
