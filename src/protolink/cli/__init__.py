"""The command `protolink`: looking after stored runs from a shell.

Exit codes: 0 done, 1 refused (the reason is on stderr), 2 not understood, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from protolink._json import JSONError, parse

__all__ = ["main"]

REFUSED: Final = 1
INTERRUPTED: Final = 130
"""What shells expect of a program that the keyboard has interrupted."""

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says and give the exit code."""
    options = _parser().parse_args(arguments)
    # Asking for help loads no database.
    from protolink.cli.runs import Refused, perform

    try:
        perform(options, sys.stdout)
        sys.stdout.flush()
    except Refused as refused:
        sys.stderr.write(f"protolink: {refused}\n")
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read along has left. What was asked is done, and the interpreter must not complain at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="protolink", description="Look after the stored runs of agents.")
    areas = parser.add_subparsers(metavar="AREA", required=True)
    runs = areas.add_parser("runs", help="stored runs")
    commands = runs.add_subparsers(dest="command", metavar="COMMAND", required=True)

    listing = _command(commands, "list", "list runs; executes nothing")
    listing.add_argument("--status", help="only runs of this status, such as paused or uncertain")
    listing.add_argument("--agent-name", help="only runs of this agent")
    listing.add_argument("--limit", type=_positive, default=20, help="at most so many (20)")

    showing = _command(commands, "show", "show a run's records with the decision after each; executes nothing")
    showing.add_argument("run", help="the id of a root run")

    resuming = _command(commands, "resume", "take a run up again, with an answer where it waits for one")
    resuming.add_argument("run", help="the id of a root run")
    _agent(resuming, required=True)
    resuming.add_argument("--request-id", help="the request that is answered; `show` lists what a run waits for")
    answers = resuming.add_mutually_exclusive_group()
    answers.add_argument("--approve", action="store_const", const=True, dest="approved", help="approve an action")
    answers.add_argument("--decline", action="store_const", const=False, dest="approved", help="decline an action")
    answers.add_argument("--answer", type=_json, metavar="JSON", help="answer a question; a text is written '\"so\"'")
    resuming.add_argument("--fingerprint", help="refuse unless this is the fingerprint of what waits")
    resuming.add_argument(
        "--accept-changes", action="store_true", help="go on although the agent's configuration has changed"
    )

    settling = _command(commands, "reconcile", "say what became of an uncertain action; executes nothing")
    settling.add_argument("run", help="the id of a root run")
    settling.add_argument("action", help="the id of the action; `show` lists what is uncertain")
    outcome = settling.add_mutually_exclusive_group(required=True)
    outcome.add_argument("--result", type=_json, metavar="JSON", help="it happened, and this is its result")
    outcome.add_argument("--not-happened", action="store_true", help="it did not happen; the model decides again")

    ending = _command(commands, "cancel", "end a run that nobody drives; executes nothing")
    ending.add_argument("run", help="the id of a root run")
    _agent(ending, required=False)
    ending.add_argument("--reason", default="canceled on the command line", help="why, for the record")

    pruning = _command(commands, "prune", "delete runs that have ended and that nobody drives; executes nothing")
    pruning.add_argument("--older-than", type=_seconds, metavar="AGE", help="unchanged for so long: 90s, 15m, 12h, 30d")
    pruning.add_argument("--keep", type=_whole, help="leave the latest so many")
    pruning.add_argument(
        "--status",
        action="append",
        help="runs of this status, instead of completed, failed and canceled; can be given again",
    )
    pruning.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
    return parser


def _command(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("--store", required=True, metavar="FILE", help="the file of the runs")
    parser.add_argument(
        "--integrity-key-file", metavar="FILE", help="a file whose bytes, all of them, are the key of the store"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _agent(parser: argparse.ArgumentParser, *, required: bool) -> None:
    more = "" if required else "; with it, the agent's own stores learn of the end"
    parser.add_argument(
        "--agent",
        type=_reference,
        required=required,
        metavar="MODULE:ATTRIBUTE",
        help=f"the agent that the run belongs to; the module is imported, from this folder too{more}",
    )


def _reference(text: str) -> tuple[str, str]:
    module, separator, attribute = text.partition(":")
    if not (separator and all(name.isidentifier() for name in (*module.split("."), *attribute.split(".")))):
        raise argparse.ArgumentTypeError("an agent is named as module:attribute")
    return module, attribute


def _json(text: str) -> tuple[Any]:
    """In a tuple of one, because null is a value as well."""
    try:
        return (parse(text),)
    except JSONError as error:
        raise argparse.ArgumentTypeError(f"that is no JSON: {error.reason}") from None


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError("a whole number from 0 is needed")
    return int(text)


def _positive(text: str) -> int:
    if not _whole(text):
        raise argparse.ArgumentTypeError("a whole number from 1 is needed")
    return int(text)


def _seconds(text: str) -> float:
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "s")
    if not number.isdecimal():
        raise argparse.ArgumentTypeError("an age is a whole number with a unit: 90s, 15m, 12h or 30d")
    return float(int(number) * _UNITS[unit])
