"""Readers: late, slow, leaving or many, they all see one list, and none of them can hurt the run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from protolink import Agent, RunEvent, RunReport, collect_tool_evidence
from protolink.testing import call
from tests.support import ListeningLLM, model, observe, of_type, turns


def note(number: int) -> dict[str, Any]:
    """Return something nested."""
    return {"numbers": [number], "inner": {"deep": [number]}}


def _agent(*script: Any, **options: Any) -> Agent:
    script = script or (call("note", number=1), call("note", number=2), "the answer")
    return Agent(name="a", tools=[note], llm=model(*script, fragment_size=4), expose_tool_results=True, **options)


async def _ids(handle: Any, after: int = 0) -> list[str]:
    return [event.event_id async for event in handle.events(after)]


async def test_sequences_are_one_to_n_without_a_gap() -> None:
    """So a reader can say where it was, and notice if something were missing."""
    events, _ = await observe(_agent())

    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert len({event.event_id for event in events}) == len(events)


async def test_every_reader_sees_the_same_events() -> None:
    """Before, during and after the run, and in the report."""
    handle = _agent().start_run("go")
    early = asyncio.create_task(_ids(handle))
    await turns(3)
    middle = asyncio.create_task(_ids(handle))
    await handle.result()

    late = await _ids(handle)
    assert await early == await middle == late == [event.event_id for event in handle.report.events]


async def test_a_reader_continues_where_it_left() -> None:
    """`after=` is a sequence number: nothing twice, nothing left out, at any place."""
    events, _ = await observe(agent := _agent())
    handle = agent.start_run("go")
    await handle.result()
    everything = [event async for event in handle.events()]

    for place in range(len(everything) + 1):
        rest = [event async for event in handle.events(after=place)]
        assert rest == everything[place:]
    assert len(events) > 5


async def test_a_place_behind_the_end_gives_nothing() -> None:
    """And does not wait for ever for a run that has ended."""
    handle = _agent().start_run("go")
    await handle.result()

    assert [event async for event in handle.events(after=10_000)] == []


@pytest.mark.parametrize("place", [-1, True])
async def test_a_place_that_is_none_is_refused(place: Any) -> None:
    """At the call, not at the first event."""
    handle = _agent().start_run("go")

    with pytest.raises(ValueError, match="after"):
        handle.events(after=place)

    await handle.result()


async def test_leaving_a_reader_does_not_stop_the_run() -> None:
    """Nor does a reader that raises."""
    handle = _agent().start_run("go")
    async for _event in handle.events():
        break

    async def fail() -> None:
        async for _event in handle.events():
            raise LookupError("reader broke")

    with pytest.raises(LookupError):
        await fail()

    assert (await handle.result()).status == "completed"


async def test_a_canceled_reader_does_not_stop_the_run() -> None:
    """It was only looking."""
    handle = _agent().start_run("go")
    reader = asyncio.create_task(_ids(handle))
    await turns(2)

    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)

    assert (await handle.result()).status == "completed"


async def test_a_run_goes_on_without_any_reader() -> None:
    """Nothing has to be consumed."""
    result = await _agent().start_run("go").result()

    assert result.output == "the answer"


async def test_a_slow_reader_gets_joined_fragments_and_never_a_gap_in_the_numbered_events() -> None:
    """It reads nothing while thousands of pieces arrive; the text is whole, and every record is there."""
    text = "abcdefghij" * 500
    handle = Agent(name="a", llm=model(text, fragment_size=1)).start_run("go")
    events = handle.events()
    first = await anext(events)
    await handle.result()
    late = [first] + [event async for event in events]

    chunks = [event for event in late if event.payload.get("llm_event_type") == "llm_chunk"]
    assert "".join(event.payload["content"] for event in chunks) == text
    assert len(chunks) < 1000
    sequences = [event.sequence for event in late]
    assert sequences == sorted(set(sequences))
    kinds = [event.type for event in late if event not in chunks]
    assert kinds == ["task.status", "llm.call.started", "llm.call.completed", "llm.stream", "task.status"]


async def test_events_of_two_readers_share_no_mutable_state() -> None:
    """What one changes in its copies, arguments and results included, nobody else sees."""
    handle = _agent().start_run("go")
    await handle.result()

    mine = [event async for event in handle.events()]
    untouched = [event.to_dict() for event in [event async for event in handle.events()]]
    for event in mine:
        _spoil(event.payload)
        _spoil(event.metadata)

    assert [event.to_dict() for event in [event async for event in handle.events()]] == untouched


def _spoil(value: Any) -> None:
    if isinstance(value, dict):
        for item in list(value.values()):
            _spoil(item)
        value.clear()
    elif isinstance(value, list):
        for item in value:
            _spoil(item)
        value.clear()


async def test_two_tasks_share_no_mutable_state() -> None:
    """`handle.task` is a snapshot that belongs to whoever asked."""
    handle = _agent().start_run("go")
    await handle.result()
    before = handle.task.to_dict()

    spoiled = handle.task
    for message in spoiled.messages:
        for part in message.parts:
            _spoil(part.content)
    for artifact in spoiled.artifacts:
        for part in artifact.parts:
            _spoil(part.content)
    _spoil(spoiled.metadata)

    assert handle.task.to_dict() == before


async def test_what_a_reader_changes_does_not_reach_the_model() -> None:
    """A reader of a live run cannot rewrite the conversation."""
    llm = ListeningLLM(call("note", number=1))
    handle = Agent(name="a", tools=[note], llm=llm, expose_tool_results=True).start_run("go")

    async for event in handle.events():
        _spoil(event.payload)

    assert '"numbers":[1]' in llm.heard[1][-1]["content"]


async def test_evidence_is_the_same_for_every_way_of_collecting_it() -> None:
    """Live, from the result, from the report, and from stored events."""
    handle = _agent().start_run("go")
    live = [record async for record in handle.tool_evidence()]
    result = await handle.result()

    stored = [RunEvent.from_dict(event.to_dict()) for event in result.report.events]
    assert tuple(live) == result.tool_evidence == result.report.tool_evidence == collect_tool_evidence(stored)
    assert RunReport.from_dict(result.report.to_dict()).tool_evidence == result.tool_evidence


async def test_snapshots_of_a_running_run_are_readable() -> None:
    """Task and report can be asked for at any moment."""
    entered = asyncio.Event()
    go = asyncio.Event()

    async def wait() -> None:
        entered.set()
        await go.wait()

    handle = Agent(name="a", tools=[wait], llm=model(call("wait"))).start_run("go", session_id="s")
    early = handle.task.state.value
    await entered.wait()
    middle = handle.report
    go.set()
    await handle.result()

    assert early == "working"
    assert middle.final_task is not None
    assert middle.final_task.state.value == "working"
    assert of_type(list(middle.events), "action.started")
    assert handle.context.session_id == "s"
    assert len(handle.report.events) > len(middle.events)


async def test_the_last_event_is_the_runs_own_final_status() -> None:
    """Nothing follows it, and it is the only status that is final."""
    events, _ = await observe(_agent())

    final = [event for event in events if event.type == "task.status" and event.final]
    assert final == [events[-1]]
    assert events[-1].payload["new_state"] == "completed"


async def test_every_event_names_its_agent_run_and_task() -> None:
    """And carries its identity in the payload as well."""
    handle = _agent().start_run("go")

    async for event in handle.events():
        assert (event.agent_name, event.run_id, event.task_id) == ("a", handle.run_id, handle.task.id)
        assert event.payload["event_id"] == event.event_id
        assert event.payload["type"] == event.type
        assert event.timestamp == event.payload["timestamp"]


async def test_reports_survive_a_round_trip() -> None:
    """Through JSON text, not only through dictionaries."""
    import json

    _, result = await observe(_agent())

    stored = json.loads(json.dumps(result.report.to_dict()))
    assert RunReport.from_dict(stored).to_dict() == result.report.to_dict()


async def test_a_thousand_readers_cost_the_run_nothing_it_notices() -> None:
    """A reader is a cursor on the list."""
    handle = _agent().start_run("go")
    readers = [asyncio.create_task(_ids(handle)) for _ in range(1000)]

    ids = await asyncio.gather(*readers)

    assert all(item == ids[0] for item in ids)
