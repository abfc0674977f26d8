"""The OpenAPI description: complete, and true."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from protolink.http.routes import ROUTES
from tests.http.apps import agent, served
from tests.http.servers import get
from tests.http.stored_app import process

METHODS = ("get", "put", "post", "delete", "patch", "head", "options")


async def described() -> Any:
    """The description as a client gets it."""
    async with served(agent("answer"), agent("answer", name="writer")) as url:
        reply = await get(url, "/openapi.json")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    return reply.json


async def test_every_route_is_described_and_no_other() -> None:
    """A route that is not described is one that nobody tests."""
    document = await described()
    listed = {
        (method.upper(), path) for path, item in document["paths"].items() for method in item if method in METHODS
    }

    assert listed == {(route.method, route.path) for route in ROUTES}
    assert len(
        {item[method]["operationId"] for item in document["paths"].values() for method in item if method in METHODS}
    ) == len(ROUTES)


async def test_every_reference_leads_somewhere() -> None:
    """So that clients can be generated from it."""
    document = await described()

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if "$ref" in value else set[str]()
            return own.union(*map(references, value.values()))
        return set[str]().union(*map(references, value)) if isinstance(value, list) else set()

    found = references(document)
    assert found == {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}


async def test_the_agents_are_those_of_the_group() -> None:
    """Whoever may read the description may run them."""
    document = await described()

    assert document["components"]["schemas"]["NewRun"]["properties"]["agent"]["enum"] == ["reader", "writer"]


def test_no_generated_request_contradicts_the_description(tmp_path: Path) -> None:
    """Requests that fit and that do not, one by one and in sequences, against a real server.

    One check is left out: a deleted run can be read afterwards, because deleting it is canceling it.
    """
    status, output = asyncio.run(generated(tmp_path))

    assert status == 0, output


async def generated(folder: Path) -> tuple[int | None, str]:
    """What becomes of requests that are made from the description; the same ones each time."""
    async with process(folder / "runs.sqlite") as (url, _):
        tool = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("schemathesis")),
            *("run", f"{url}/openapi.json", "--checks", "all", "--exclude-checks", "use_after_free"),
            *("--max-examples", "5", "--generation-deterministic", "--no-color"),
            cwd=folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await tool.communicate()
        return tool.returncode, output.decode()
