"""The task as the list says it stands."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protolink import Message, Part, RunContext, Task, TaskState
from protolink._core.records import (
    ActionCanceled,
    ActionRepeated,
    AnswerGiven,
    ErrorInfo,
    Inference,
    Record,
    RunFailed,
    RunFinished,
    RunStarted,
    ToolRequest,
)
from protolink._core.views.snapshot import task_snapshot
from tests.unit.core.facts import (
    RUN,
    act,
    answered,
    asked,
    authorized,
    canceled,
    completed,
    entered,
    listed,
    proposed,
    rejected,
    started,
    uncertain,
)

RUNNING = (started(), asked(), proposed("note"), *authorized(1), entered(1))
TOOL = ToolRequest(tool="note", args={}, call_id="call")


async def snapshot(*records: Record) -> Task:
    return task_snapshot((await listed(*records)).entries, RUN)


def receipt(task: Task, number: int = 0) -> dict[str, Any]:
    content: dict[str, Any] = task.artifacts[number].parts[0].content
    return content


async def test_a_running_task_is_working() -> None:
    """A snapshot can be taken at any time and says nothing that is not recorded yet."""
    task = await snapshot(*RUNNING)

    assert (task.state, task.artifacts, task.get_output()) == (TaskState.WORKING, [], None)
    assert RunContext.from_task(task).run_id == RUN


async def test_the_submitted_messages_come_first() -> None:
    """The task that comes back is the one that was handed in, with its outputs behind."""
    given = Task(messages=[Message(parts=[Part("infer", {"prompt": "What is stored?"})])])
    start = started()
    start = RunStarted(
        task=given.to_dict(), agent_name="keeper", work=(Inference(prompt="What is stored?"),), context=start.context
    )

    task = await snapshot(start, asked(), answered(), AnswerGiven(content="Milk."), RunFinished(status="completed"))

    assert (task.id, task.created_at, task.messages[0]) == (given.id, given.created_at, given.messages[0])
    assert [part.type for message in task.messages for part in message.parts] == ["infer", "infer_output"]
    assert (task.state, task.get_output()) == (TaskState.COMPLETED, "Milk.")


async def test_a_direct_call_gives_a_tool_output() -> None:
    """Under the id of the call, so that several can be told apart."""
    task = await snapshot(started(TOOL), *authorized(1, public=True), entered(1), completed(1, {"kept": 1}))

    assert task.messages[-1].parts == [
        Part("tool_output", {"call_id": "call", "result": {"kept": 1}, "error": None}),
    ]
    assert task.messages[-1].role == "agent"


async def test_a_direct_call_that_is_repeated_gives_its_output_again() -> None:
    """Each call that the application made has an answer under its own id."""
    same = {"item": "milk"}
    again = ToolRequest(tool="note", args=same, call_id="again")
    first = (started(TOOL, again), *authorized(1, arguments=same), entered(1), completed(1, "kept"))

    task = await snapshot(*first, ActionRepeated(action_id=act(2), repeat_of=act(1), arguments=same))

    assert [part.content for message in task.messages for part in message.parts] == [
        {"call_id": "call", "result": "kept", "error": None},
        {"call_id": "again", "result": "kept", "error": None},
    ]


@pytest.mark.parametrize("public", [True, False])
async def test_a_completed_action_has_a_receipt(public: bool) -> None:
    """With its result where that is public, and saying that it is left out where it is not."""
    ready = (started(), asked(), proposed("note"), *authorized(1, public=public), entered(1))

    task = await snapshot(*ready, completed(1, "hunter2"))

    assert (task.artifacts[0].kind, task.artifacts[0].action_id) == ("action_result", act(1))
    head = {"status": "completed", "action_id": act(1), "action_kind": "tool.call", "name": "note"}
    assert head.items() <= receipt(task).items()
    assert receipt(task)["result_omitted"] is not public
    assert ("hunter2" in json.dumps(task.to_dict())) is public


async def test_a_rejection_has_a_receipt() -> None:
    """It says that nothing changed, and in which phase."""
    task = await snapshot(started(), asked(), proposed("note"), rejected(1))

    assert (task.artifacts[0].kind, task.artifacts[0].action_id) == ("action_rejection", act(1))
    assert (receipt(task)["status"], receipt(task)["phase"], receipt(task)["changes_made"]) == (
        "rejected",
        "validation",
        False,
    )


async def test_a_stored_conversation_does_not_come_through() -> None:
    """The session's messages are the store's, not the task's."""
    start = started(conversation=({"role": "user", "content": "hunter2"},))

    task = await snapshot(start, asked(), answered(), AnswerGiven(content="Milk."))

    assert "hunter2" not in json.dumps(task.to_dict())


async def test_a_failed_task_says_why() -> None:
    """`raise_for_status` finds it there."""
    error = ErrorInfo(code="no_model", message="there is none", type="ValueError")

    task = await snapshot(started(), RunFailed(error=error), RunFinished(status="failed", error=error))

    assert task.state is TaskState.FAILED
    assert task.metadata["error"] == {"code": "no_model", "message": "there is none", "type": "ValueError"}


async def test_a_canceled_task_says_why() -> None:
    """In its metadata and in its context, which travels on its own."""
    ended = (canceled("enough"), ActionCanceled(action_id=act(1)), RunFinished(status="canceled", reason="enough"))

    task = await snapshot(*RUNNING, *ended)

    context = RunContext.from_task(task)
    assert (task.state, task.metadata["cancel_reason"]) == (TaskState.CANCELED, "enough")
    assert (context.canceled, context.cancel_reason) == (True, "enough")


async def test_an_uncertain_action_stays_visible() -> None:
    """Whatever the status says, somebody has to look at it; it has no receipt that could be taken for one."""
    task = await snapshot(*RUNNING, uncertain(1), RunFinished(status="failed"))

    assert task.metadata["uncertain_actions"] == [act(1)]
    assert task.artifacts == []


async def test_a_snapshot_belongs_to_its_reader() -> None:
    """Changing one changes no other, and no record."""
    ready = (started(), asked(), proposed("note"), *authorized(1, public=True), entered(1), completed(1, {"kept": 1}))
    journal = await listed(*ready)
    before = task_snapshot(journal.entries, RUN).to_dict()
    before = json.loads(json.dumps(before))

    task = task_snapshot(journal.entries, RUN)
    task.metadata["run_context"].clear()
    receipt(task)["result"].clear()
    task.artifacts.clear()

    assert task_snapshot(journal.entries, RUN).to_dict() == before


async def test_records_of_another_run_are_not_its_business() -> None:
    """A child's answer is not the parent's."""
    child = [("child", record) for record in (started(run_id="child"), asked(), answered(), AnswerGiven(content="No."))]
    journal = await listed(started(), *child)

    assert task_snapshot(journal.entries, RUN).get_output() is None
    assert task_snapshot(journal.entries, "child").get_output() == "No."


async def test_a_run_that_is_not_in_the_list_has_no_task() -> None:
    """An empty task would look like one that has not begun."""
    with pytest.raises(ValueError, match="holds no run 'other'"):
        task_snapshot((await listed(started())).entries, "other")
