"""`protolink runs ...`: each command as one function of its options."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TextIO, cast

from protolink._environment import iso
from protolink._json import dumps
from protolink._text import describe_error, visible, visible_lines
from protolink.agent import Agent
from protolink.cli.history import Moment, history
from protolink.cli.tables import write_table
from protolink.durable.port import RunInfo
from protolink.durable.sqlite import SQLiteRecordLog
from protolink.errors import ConfigurationError, ProtolinkError
from protolink.manager import ENDED, RunManager, UncertainAction
from protolink.task import Task

__all__ = ["Refused", "perform"]


class Refused(Exception):  # noqa: N818 - it is an answer, not a fault
    """What was asked was not done; the message says why, fit for a terminal."""


def perform(options: argparse.Namespace, out: TextIO) -> None:
    """Do one command. Raises `Refused`."""
    try:
        if not os.path.exists(options.store):
            raise ConfigurationError(f"there is no store {options.store!r}")
        asyncio.run(_performed(options, out))
    except (ProtolinkError, ValueError) as error:
        raise Refused(visible(str(error))) from error


async def _performed(options: argparse.Namespace, out: TextIO) -> None:
    log = SQLiteRecordLog(
        options.store,
        read_only=options.command in _READING or getattr(options, "dry_run", False),
        integrity_key=_key(options.integrity_key_file),
    )
    try:
        await _COMMANDS[options.command](options, log, out)
    finally:
        await log.close()


def _key(file: str | None) -> bytes | None:
    """The key in a file: what stands on a command line can be seen by every user of the machine."""
    if file is None:
        return None
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"the key file {file!r} cannot be read: {error.strerror}") from error


async def _list(options: argparse.Namespace, log: SQLiteRecordLog, out: TextIO) -> None:
    manager = RunManager(stores=[log])
    runs = await manager.list(status=options.status, agent_name=options.agent_name, limit=options.limit)
    _write_runs(options, [run.info for run in runs], out)


async def _prune(options: argparse.Namespace, log: SQLiteRecordLog, out: TextIO) -> None:
    runs = await RunManager(stores=[log]).prune(
        older_than_seconds=options.older_than,
        keep=options.keep,
        statuses=options.status or ENDED,
        dry_run=options.dry_run,
    )
    _write_runs(options, [run.info for run in runs], out)
    if not options.json:
        out.write(f"{'would be deleted' if options.dry_run else 'deleted'}: {len(runs)}\n")


def _write_runs(options: argparse.Namespace, infos: list[RunInfo], out: TextIO) -> None:
    if options.json:
        _write_json([_as_json(info) for info in infos], out)
        return
    rows = [
        (
            visible(info.root_id, limit=100),
            visible(info.agent_name, limit=60),
            info.status,
            str(info.attempts),
            str(info.records),
            iso(info.updated_at)[:19],
            "" if info.owner is None else visible(info.owner, limit=100),
            "; ".join(_waits(info)),
        )
        for info in infos
    ]
    write_table(out, ("RUN", "AGENT", "STATUS", "ATTEMPTS", "RECORDS", "UPDATED", "DRIVEN BY", "WAITS FOR"), rows)


def _as_json(info: RunInfo) -> dict[str, Any]:
    return {
        "run_id": info.root_id,
        "agent_name": info.agent_name,
        "status": info.status,
        "principal": info.principal,
        "session_id": info.session_id,
        "attempts": info.attempts,
        "records": info.records,
        "created_at": iso(info.created_at),
        "updated_at": iso(info.updated_at),
        "owner": info.owner,
        "waits_for": dict(info.summary),
    }


def _waits(info: RunInfo) -> list[str]:
    """What somebody has to say, in one line each."""
    lines: list[str] = []
    for item in _items(info, "interruptions"):
        request: dict[str, Any] = item.get("request") or {}
        kind, request_id = item.get("kind"), item.get("request_id")
        if kind == "input":
            choices = f" {dumps(request['choices'])}" if request.get("choices") else ""
            lines.append(f"answer {request_id}: {request.get('question')}{choices}")
        elif kind == "approval":
            action: dict[str, Any] = request.get("action") or {}
            lines.append(f"approval {request_id}: {action.get('name')} {dumps(action.get('payload'))}")
        else:
            lines.append("another slice")
    lines += [
        f"reconcile {item.get('action_id')}: {item.get('name')} {dumps(item.get('arguments'))}"
        for item in _items(info, "uncertain")
    ]
    return [visible(line, limit=500) for line in lines]


def _items(info: RunInfo, key: str) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", info.summary.get(key) or [])


async def _show(options: argparse.Namespace, log: SQLiteRecordLog, out: TextIO) -> None:
    moments = list(history(options.run, await log.read(options.run)))
    uncertain = await RunManager(stores=[log]).list_uncertain(options.run)
    info = await log.get(options.run)
    if info is None:
        raise ConfigurationError(f"run {options.run!r} was deleted meanwhile")
    if options.json:
        shown = [{key: value for key, value in asdict(moment).items() if key != "facts"} for moment in moments]
        document = {**_as_json(info), "uncertain": [asdict(action) for action in uncertain], "history": shown}
        _write_json(document, out)
        return
    out.write(f"run {visible(info.root_id, limit=100)} of {visible(info.agent_name, limit=100)}: {info.status}\n")
    if info.owner is not None:
        out.write(f"driven by {visible(info.owner, limit=200)}\n")
    out.write("\n")
    names = {moment.run_id: moment.record.get("agent_name", "") for moment in moments if moment.kind == "RunStarted"}
    rows = [
        (
            str(moment.number),
            moment.at[11:23],
            visible(str(names.get(moment.run_id, "")), limit=40),
            moment.kind,
            _brief(moment, moment.facts),
            f"→ {_brief(moment, moment.decision)}" if moment.decision else "",
        )
        for moment in moments
    ]
    write_table(out, ("#", "AT", "AGENT", "RECORD", "FACTS", "DECISION"), rows)
    _write_waiting(info, uncertain, out)


def _brief(moment: Moment, text: str) -> str:
    """An action's id without the id of its run, which every line would repeat."""
    return text.replace(f"{moment.run_id}.", "run.")


def _write_waiting(info: RunInfo, uncertain: list[UncertainAction], out: TextIO) -> None:
    lost = [
        visible(f"reconcile {action.action_id}: {action.tool_name} {dumps(action.arguments)}, since {action.since}")
        for action in uncertain
    ]
    lines = lost or ([] if info.status in ENDED else _waits(info))
    if lines:
        out.write("\nwaits for\n")
        out.writelines(f"  {line}\n" for line in lines)


async def _resume(options: argparse.Namespace, log: SQLiteRecordLog, out: TextIO) -> None:
    agent = _agent(options, log)
    response: dict[str, Any] = {
        "request_id": options.request_id,
        "approved": options.approved,
        "fingerprint": options.fingerprint,
        "accept_changes": options.accept_changes,
    }
    if options.answer is not None:
        response["answer"] = options.answer[0]
    _write_task(options, await RunManager(agent).resume(options.run, **response), out)


async def _reconcile(options: argparse.Namespace, log: SQLiteRecordLog, out: TextIO) -> None:
    settlement: dict[str, Any] = {"happened": False} if options.not_happened else {"result": options.result[0]}
    task = await RunManager(stores=[log]).reconcile(options.run, options.action, **settlement)
    if options.json:
        _write_json(task.to_dict(), out)
    else:
        out.write("recorded; resume the run to go on\n")


async def _cancel(options: argparse.Namespace, log: SQLiteRecordLog, out: TextIO) -> None:
    agents = () if options.agent is None else (_agent(options, log),)
    task = await RunManager(agents, stores=[log]).cancel(options.run, options.reason)
    _write_task(options, task, out)


def _agent(options: argparse.Namespace, log: SQLiteRecordLog) -> Agent:
    """The agent that the command line names. Its module is imported, because somebody has asked for exactly that."""
    module, attribute = options.agent
    name = f"{module}:{attribute}"
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever the module does while it is imported
        raise Refused(f"{name} cannot be loaded: {visible(describe_error(error))}") from error
    if not isinstance(found, Agent):
        raise ConfigurationError(f"{name} is no Agent but a {type(found).__name__}")
    place = getattr(found.configuration().log, "path", None)
    if place is None or os.path.realpath(place) != os.path.realpath(log.path):
        raise ConfigurationError(f"{name} stores its runs in {place or 'no file'!r}, not in {log.path!r}")
    return found


def _write_task(options: argparse.Namespace, task: Task, out: TextIO) -> None:
    if options.json:
        _write_json(task.to_dict(), out)
        return
    out.write(f"{task.state.value}\n")
    error: Any = task.metadata.get("error")
    if error is not None:
        out.write(f"error: {visible(str(error.get('message')))}\n")
    output: Any = task.get_output()
    if output is not None:
        out.write(visible_lines(output if isinstance(output, str) else dumps(output)) + "\n")


def _write_json(value: object, out: TextIO) -> None:
    out.write(dumps(value) + "\n")


_Perform = Callable[[argparse.Namespace, SQLiteRecordLog, TextIO], Awaitable[None]]

_COMMANDS: Final[Mapping[str, _Perform]] = {
    "list": _list,
    "show": _show,
    "resume": _resume,
    "reconcile": _reconcile,
    "cancel": _cancel,
    "prune": _prune,
}
_READING: Final = ("list", "show")
