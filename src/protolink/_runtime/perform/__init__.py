"""Performing commands: one module per kind, none of which knows the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from protolink._core.machine import (
    Answer,
    Ask,
    AskModel,
    CloseActions,
    Command,
    Continue,
    Deny,
    Drain,
    EndAttempt,
    Execute,
    Fail,
    Finish,
    Judge,
    Observe,
    Pause,
    Prepare,
    Repeat,
    Suspect,
)
from protolink._runtime.perform.answer import give_answer
from protolink._runtime.perform.approval import ask, deny
from protolink._runtime.perform.ending import close_actions, drain, fail, finish
from protolink._runtime.perform.execute import execute, repeat
from protolink._runtime.perform.judge import judge
from protolink._runtime.perform.model import ask_model
from protolink._runtime.perform.observe import observe
from protolink._runtime.perform.pause import continue_children, end_attempt, pause, suspect
from protolink._runtime.perform.prepare import prepare

if TYPE_CHECKING:
    from protolink._runtime.driver import Driver

__all__ = ["perform"]


async def perform(driver: Driver, command: Command) -> None:
    """Do what was decided and append what happened."""
    match command:
        case AskModel():
            await ask_model(driver, command)
        case Prepare():
            await prepare(driver, command)
        case Judge():
            await judge(driver, command)
        case Execute():
            await execute(driver, command)
        case Answer():
            await give_answer(driver)
        case Finish(record=record):
            await finish(driver, record)
        case Ask():
            await ask(driver, command)
        case Deny():
            await deny(driver, command)
        case Repeat():
            await repeat(driver, command)
        case Observe():
            await observe(driver, command)
        case Suspect():
            await suspect(driver, command)
        case Continue():
            await continue_children(driver, command)
        case Pause():
            await pause(driver, command)
        case EndAttempt():
            await end_attempt(driver, command)
        case Drain():
            await drain(driver)
        case CloseActions():
            await close_actions(driver, command)
        case Fail():
            await fail(driver, command)
        case unknown:
            assert_never(unknown)
