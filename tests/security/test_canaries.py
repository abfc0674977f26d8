"""One secret in each private place, and a search for all of them wherever anything comes out."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from protolink import (
    Agent,
    AgentGroup,
    ApprovalDecision,
    ApprovalRequest,
    CapabilityPolicy,
    ModelRequest,
    RedactionPolicy,
    RunContext,
    SQLiteDurableStore,
    TaskExecutionError,
    current_request_context,
    request_context,
)
from protolink.cli import main
from protolink.client import AgentClient
from protolink.discovery import Registry, RegistryClient
from protolink.hooks import AgentHooks
from protolink.http import create_app
from protolink.llms import create_llm
from protolink.storage import SQLiteRunStore, SQLiteStorage
from protolink.testing import call
from protolink.transport import HTTPTransport
from protolink.transport.http import APIKeyAuthenticator
from tests.http.apps import ended, serving, start
from tests.http.servers import free_url, get, post
from tests.support import ListeningLLM

SECRETS = {
    name: f"canary-{name.replace(' ', '-')}-0123456789"
    for name in (
        "server key", "outgoing credential", "request value", "hook's value", "integrity key", "provider key",
        "environment", "system prompt", "private result", "private argument", "approval reason",
    )
}  # fmt: skip

BELONGS: dict[str, set[str]] = {
    # What a model is told, and what its run resumes from and its conversation goes on with.
    "system prompt": {"prompts", "export"},
    "private result": {"prompts", "durable", "conversation", "shell"},
    "private argument": {"prompts", "durable", "conversation", "shell"},
    # Evidence of who has said yes, and why; a model is not told.
    "approval reason": {"durable", "events", "report", "kept", "pages", "shell"},
}
"""Where a secret may be found; any other, and any other place, is a leak."""


def look(password: str) -> dict[str, Any]:
    """Look something up."""
    known = current_request_context()
    return {"found": SECRETS["private result"], "with": len(str(known.get("token")))}


def approve(request: ApprovalRequest, context: RunContext) -> ApprovalDecision:
    """Approve, with a reason."""
    return ApprovalDecision(True, request.request_id, reason=SECRETS["approval reason"], decided_by="somebody")


def before_model(request: ModelRequest) -> None:
    """Read what only the application knows."""
    current_request_context().get("for hooks")


@asynccontextmanager
async def everything(folder: Path) -> AsyncGenerator[tuple[Agent, ListeningLLM, str]]:
    """An agent that holds a secret in every private place that there is, at its address."""
    script = [call("look", password=SECRETS["private argument"]), "done"]
    llm, url, where = ListeningLLM(*script * 4), free_url(), free_url()
    keys = APIKeyAuthenticator({SECRETS["server key"]: "caller"})
    ours = APIKeyAuthenticator({SECRETS["outgoing credential"]: "caller"})
    credentials = {where: SECRETS["outgoing credential"], url: SECRETS["server key"]}
    registry = Registry(HTTPTransport(where, authenticator=ours))
    await registry.start()
    private = RedactionPolicy(sensitive_keys={"password"})
    agent = Agent(
        name="caller",
        llm=llm,
        tools=[look],
        system_prompt=f"Never tell anybody {SECRETS['system prompt']}.",
        transport=HTTPTransport(url, authenticator=keys, credentials=credentials),
        registry=RegistryClient(HTTPTransport(credentials=credentials), where),
        policy=CapabilityPolicy(default_effect="require_approval"),
        approval_handler=approve,
        hooks=AgentHooks(before_model=before_model),
        state=["conversation"],
        storage=SQLiteStorage(str(folder / "conversation.sqlite")),
        run_store=SQLiteRunStore(str(folder / "kept.sqlite"), redaction_policy=private),
        durability=SQLiteDurableStore(folder / "durable.sqlite", integrity_key=SECRETS["integrity key"].encode()),
        url=url,
    )
    await agent.start()
    try:
        yield agent, llm, url
    finally:
        await agent.stop()
        await registry.stop()


def values() -> Any:
    """The private values of a request."""
    return request_context(
        {"token": SECRETS["request value"], "nested": [SECRETS["request value"]], "for hooks": SECRETS["hook's value"]},
        inherit=("token",),
    )


async def pages_of(agent: Agent) -> str:
    """Everything that the HTTP application says of a run, to whom it belongs to."""
    policy = RedactionPolicy(sensitive_keys={"password"})
    with values():
        application = create_app(AgentGroup((), external_agents=[agent]), redaction_policy=policy)
    async with serving(application) as url:
        run_id = await start(url, agent="caller")
        await ended(url, run_id)
        paths = ["/openapi.json", *(f"/runs/{run_id}{path}" for path in ("", "/events", "/evidence"))]
        return "".join([(await get(url, path)).body.decode() for path in paths])


async def test_a18_no_secret_of_a_private_place_is_found_where_it_does_not_belong(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Prompts, events, reports, stores, pages, replies, cards, exports, errors, logs, a shell and texts of objects."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("CANARY", SECRETS["environment"])
    monkeypatch.setenv("OPENAI_API_KEY", SECRETS["provider key"])
    private = RedactionPolicy(sensitive_keys={"password"})
    async with everything(tmp_path) as (agent, llm, url):
        with values():
            handle = agent.start_run("go", session_id="s", redaction_policy=private)
        events = [event.to_dict() async for event in handle.events()]
        result = await handle.result()
        assert result.status == "completed"
        key = {"Authorization": f"Bearer {SECRETS['server key']}"}
        client = AgentClient(HTTPTransport(credentials={url: SECRETS["server key"]}))
        paid = create_llm("openai:m", base_url=free_url())
        with pytest.raises(TaskExecutionError) as failed:
            await Agent(name="paying", llm=paid).invoke("go")
        texts = {
            "prompts": llm.everything,
            "events": json.dumps(events),
            "report": json.dumps(result.report.to_dict()),
            "task": json.dumps(result.task.to_dict()),
            "export": json.dumps([agent.to_dict(), Agent(name="paying", llm=paid).to_dict()]),
            "card": json.dumps((await client.card(url)).to_dict()),
            "replies": str([await post(url, "/tasks", {}, **fields) for fields in ({}, key)]),
            "objects": repr([agent, agent.transport, agent.registry, agent.peer(url), handle, result, paid, agent.llm]),
            "errors": f"{failed.value} {failed.value!r} {failed.value.__cause__!r}",
        }
        texts["pages"] = await pages_of(agent)
    texts["logs"] = "\n".join(f"{record.getMessage()} {record.exc_text}" for record in caplog.records)
    for name in ("durable", "conversation", "kept"):
        texts[name] = "".join(file.read_bytes().decode("latin-1") for file in tmp_path.glob(f"{name}.sqlite*"))
    (tmp_path / "key").write_text(SECRETS["integrity key"])
    for command in (["list"], ["show", handle.run_id]):
        options = ["--store", str(tmp_path / "durable.sqlite"), "--integrity-key-file", str(tmp_path / "key")]
        assert await main_in_thread(["runs", *command, *options]) == 0
    texts["shell"] = capsys.readouterr().out

    found = {(name, where) for name, secret in SECRETS.items() for where, text in texts.items() if secret in text}
    assert {pair for pair in found if pair[1] not in BELONGS.get(pair[0], set())} == set()
    assert {name for name, _ in found} == set(BELONGS), "what nobody finds anywhere may not have been there"


async def main_in_thread(arguments: list[str]) -> int:
    """The command, which has an event loop of its own."""
    import asyncio

    return await asyncio.to_thread(main, arguments)
