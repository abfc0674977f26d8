"""What clients get wrong: each has its status code and a problem document, and nothing is lost or begun."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protolink import AgentGroup
from protolink.http import create_app
from protolink.testing import call
from tests.http.apps import ALICE, BOB, KEYS, SSE, agent, delete, ended, served, serving, start
from tests.http.servers import Reply, exchange, get, post, request_bytes
from tests.http.test_app_runs import GO, Gate
from tests.support import ListeningLLM

DEEP = b'{"agent": "reader", "prompt": ' + b"[" * 100 + b"]" * 100 + b"}"


def assert_problem(reply: Reply, status: int) -> None:
    """A refusal, as a document that a program can read, with nothing of the inside."""
    assert reply.status == status, reply.body
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json["status"] == status
    assert {"type", "title", "status", "detail"} <= set(reply.json) <= {"type", "title", "status", "detail", "id"}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"agent=reader", 400),
        (b'{"agent": "reader", "prompt": "go"} x', 400),
        (b'{"agent": "reader", "prompt": "\xff"}', 400),
        (b'{"agent": "reader", "prompt": "\\ud800"}', 400),
        (b'{"agent": "reader", "prompt": "go", "prompt": "go"}', 400),
        (b'{"agent": "reader", "prompt": "go", "budget": {"max_cost": NaN}}', 400),
        (b'{"agent": "reader", "prompt": "go", "budget": {"max_steps": ' + b"9" * 5000 + b"}}", 400),
        (DEEP, 400),
        (b"null", 422),
        (b"[]", 422),
        (b"{}", 422),
        (b'{"agent": "reader"}', 422),
        (b'{"prompt": "go"}', 422),
    ],
)
async def test_a_body_that_is_no_request_is_refused(body: bytes, status: int) -> None:
    """Before anything is begun."""
    llm = ListeningLLM()
    async with served(agent(llm=llm)) as url:
        assert_problem(await exchange(url, request_bytes(url, "/runs", body)), status)

    assert not llm.requests


@pytest.mark.parametrize(
    "fields",
    [
        {"agent": 7},
        {"agent": None},
        {"agent": ""},
        {"agent": "x" * 201},
        {"prompt": 7},
        {"prompt": ["go"]},
        {"prompt": ""},
        {"prompt": " \n"},
        {"session_id": 7},
        {"session_id": ""},
        {"session_id": "a\x00b"},
        {"session_id": "a\nb"},
        {"session_id": "x" * 201},
        {"budget": 7},
        {"budget": []},
        {"budget": {"max_steps": "3"}},
        {"budget": {"max_steps": True}},
        {"budget": {"max_steps": 1.5}},
        {"budget": {"max_steps": -1}},
        {"budget": {"max_steps": 2**53}},
        {"budget": {"max_runtime_seconds": 1e300}},
        {"budget": {"max_wishes": 3}},
        {"budget": {"metadata": {}}},
        {"budget": {"max_calls": []}},
        {"budget": {"max_calls": {"tool": -1}}},
        {"budget": {"max_calls": dict.fromkeys(map(str, range(101)), 1)}},
        {"run_id": "mine"},
        {"principal": "local"},
        {"context": {"permissions": {}}},
    ],
)
async def test_a_field_that_does_not_fit_is_refused(fields: dict[str, Any]) -> None:
    """Wrong types, limits that are none, and fields that nobody knows."""
    llm = ListeningLLM()
    async with served(agent(llm=llm)) as url:
        assert_problem(await post(url, "/runs", {**GO, **fields}), 422)

    assert not llm.requests


async def test_a_number_may_be_written_in_either_way() -> None:
    """In JSON 3.0 is a whole number, and null is nothing said."""
    async with served(agent("answer")) as url:
        budget = {"max_steps": 3.0, "max_cost": 1, "max_calls": None, "max_llm_calls": None}
        assert (await post(url, "/runs", {**GO, "session_id": None, "budget": budget})).status == 202


async def test_an_unknown_agent_is_not_there() -> None:
    """And which there are is not told on the way."""
    async with served(agent("answer")) as url:
        reply = await post(url, "/runs", {**GO, "agent": "nobody"})

    assert_problem(reply, 404)
    assert b"reader" not in reply.body


@pytest.mark.parametrize(
    "run_id", ["0" * 32, "no-such-run", "%00", "%2e%2e", "x" * 300, "%ff", "%0d%0aX-Injected:1", "%C3%A9", "a b"]
)
async def test_an_unknown_run_is_not_there(run_id: str, tmp_path: Path) -> None:
    """Whatever is asked of it, and whatever its name looks like."""
    run_id = run_id.replace(" ", "%20")
    async with served(agent("answer", durability=tmp_path / "runs.sqlite")) as url:
        for method, path, body in (
            ("GET", "", None),
            ("GET", "/events", None),
            ("GET", "/evidence", None),
            ("DELETE", "", None),
            ("POST", "/resume", b"{}"),
            ("POST", "/decisions", b'{"request_id": "r", "approved": true}'),
        ):
            assert_problem(await exchange(url, request_bytes(url, f"/runs/{run_id}{path}", body, method=method)), 404)


@pytest.mark.parametrize(
    "path", ["/", "/run", "/runs/", "/runs//events", "/runs/x/", "/runs/x/else", "/runs/a%2Fb/events", "//runs"]
)
async def test_a_path_that_is_none_is_not_there(path: str) -> None:
    """The application has its routes and nothing else."""
    async with served(agent("answer")) as url:
        assert_problem(await get(url, path), 404)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/runs", "POST"),
        ("PUT", "/runs/x", "DELETE, GET"),
        ("POST", "/runs/x/events", "GET"),
        ("GET", "/runs/x/resume", "POST"),
        ("OPTIONS", "/runs", "POST"),
        ("BREW", "/runs", "POST"),
    ],
)
async def test_another_method_is_refused(method: str, path: str, allowed: str) -> None:
    """With those that there are."""
    async with served(agent("answer")) as url:
        reply = await exchange(url, request_bytes(url, path, method=method))

    assert_problem(reply, 405)
    assert reply.headers["allow"] == allowed


async def test_a_body_that_is_too_large_is_refused() -> None:
    """Before it is read, and before it is parsed; the limit is the application's."""
    body = json.dumps({**GO, "prompt": "x" * 2000}).encode()
    async with served(agent("answer"), max_body_bytes=1000) as url:
        assert_problem(await exchange(url, request_bytes(url, "/runs", body)), 413)
        chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        request = request_bytes(url, "/runs", b"", Content_Length=None, Transfer_Encoding="chunked") + chunked
        assert_problem(await exchange(url, request), 413)


@pytest.mark.parametrize(
    "media", [None, "text/plain", "application/x-www-form-urlencoded", "application/json; charset=x"]
)
async def test_a_body_of_another_kind_is_refused(media: str | None) -> None:
    """What a form of a web page can send among them."""
    async with served(agent("answer")) as url:
        reply = await post(url, "/runs", GO, Content_Type=media)

    assert_problem(reply, 415)


async def test_a_form_of_answer_that_is_not_spoken_is_refused() -> None:
    """Before anything is begun; an answer that nobody can read would be lost."""
    llm = ListeningLLM()
    async with served(agent(llm=llm)) as url:
        assert_problem(await post(url, "/runs", GO, Accept="text/html"), 406)
        assert_problem(await get(url, "/runs/x/events", Accept="application/json"), 406)

    assert not llm.requests


async def test_a_session_of_another_user_is_out_of_reach() -> None:
    """The same name is another session, and its runs are not there for the other."""
    llm = ListeningLLM("one", "two")
    async with served(agent(llm=llm, state=["conversation"]), authenticator=KEYS) as url:
        run_id = await start(url, "a secret of Alice's", key=ALICE, session_id="main")
        await ended(url, run_id, X_API_Key=ALICE)
        for name in ("main", "alice:main", "../alice:main"):
            theirs = await start(url, "what was said?", key=BOB, session_id=name)
            await ended(url, theirs, X_API_Key=BOB)
        reply = await get(url, f"/runs/{run_id}", X_API_Key=BOB)

    assert_problem(reply, 404)
    assert not any("secret" in json.dumps(heard) for heard in llm.heard[1:])


async def test_a_run_that_has_ended_is_not_canceled() -> None:
    """It stays as it is."""
    async with served(agent("answer")) as url:
        run_id = await start(url)
        before = await ended(url, run_id)
        assert_problem(await delete(url, f"/runs/{run_id}"), 409)
        assert (await get(url, f"/runs/{run_id}")).json == before


async def test_a_run_at_work_is_neither_resumed_nor_answered() -> None:
    """It waits for nothing of its client's."""
    gate = Gate()
    async with served(agent(call("hold"), tools=[gate.hold])) as url:
        run_id = await start(url)
        await gate.entered.wait()
        assert_problem(await post(url, f"/runs/{run_id}/resume", {}), 409)
        assert_problem(await post(url, f"/runs/{run_id}/decisions", {"request_id": "r", "approved": True}), 409)
        gate.go.set()
        assert (await ended(url, run_id))["status"] == "completed"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"request_id": "r"},
        {"request_id": "r", "approved": True, "answer": 1},
        {"request_id": "r", "approved": "yes"},
        {"request_id": "r", "approved": None},
        {"request_id": "", "approved": True},
        {"request_id": 7, "approved": True},
        {"request_id": "r", "approved": True, "fingerprint": 7},
        {"request_id": "r", "approved": True, "decided_by": "somebody"},
        {"approved": True},
        [],
    ],
)
async def test_a_decision_that_is_none_is_refused(body: Any) -> None:
    """Silence and contradictions are no consent."""
    async with served(agent("answer")) as url:
        run_id = await start(url)
        assert_problem(await post(url, f"/runs/{run_id}/decisions", body), 422)


@pytest.mark.parametrize("body", [[], {"approved": True}, {"accept_changes": True}, "resume"])
async def test_a_resumption_says_nothing(body: Any) -> None:
    """What a run was started under is the application's to change, not a client's."""
    async with served(agent("answer")) as url:
        assert_problem(await post(url, f"/runs/{await start(url)}/resume", body), 422)


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 201, "é"])
async def test_a_key_that_is_none_is_refused(key: str) -> None:
    """Before anything is begun."""
    async with served(agent("answer")) as url:
        assert_problem(await post(url, "/runs", GO, Idempotency_Key=key), 400)


async def test_two_keys_are_none() -> None:
    """Which of them would count?"""
    async with served(agent("answer")) as url:
        request = request_bytes(url, "/runs", json.dumps(GO).encode(), Idempotency_Key="a")
        reply = await exchange(url, request.replace(b"Idempotency-Key: a", b"Idempotency-Key: a\r\nIdempotency-Key: b"))

    assert_problem(reply, 400)


async def test_a_parameter_that_does_not_fit_is_refused() -> None:
    """Rather than taken for the one value or the other."""
    async with served(agent("answer")) as url:
        assert_problem(await post(url, "/runs?cancel_on_disconnect=maybe", GO, Accept=SSE), 400)


async def test_a_group_that_is_not_running_says_so() -> None:
    """As under a host that has forgotten to start it."""
    async with serving(create_app(AgentGroup([agent("answer")])), lifespan="off") as url:
        reply = await post(url, "/runs", GO)

    assert_problem(reply, 503)
    assert reply.headers["retry-after"] == "1"
