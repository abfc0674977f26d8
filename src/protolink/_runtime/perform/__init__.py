"""Performing commands: one module per kind, none of which knows the others."""

from __future__ import annotations

from collections.abc import Awaitable
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
    Warn,
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


def perform(driver: Driver, command: Command) -> Awaitable[None]:
    """Do what was decided and append what happened, once it is awaited."""
    match command:
        case AskModel():
            return ask_model(driver, command)
        case Prepare():
            return prepare(driver, command)
        case Judge():
            return judge(driver, command)
        case Execute():
            return execute(driver, command)
        case Answer():
            return give_answer(driver)
        case Finish(record=record):
            return finish(driver, record)
        case Ask():
            return ask(driver, command)
        case Deny():
            return deny(driver, command)
        case Repeat():
            return repeat(driver, command)
        case Observe():
            return observe(driver, command)
        case Suspect():
            return suspect(driver, command)
        case Continue():
            return continue_children(driver, command)
        case Pause():
            return pause(driver, command)
        case EndAttempt():
            return end_attempt(driver, command)
        case Drain():
            return drain(driver)
        case CloseActions():
            return close_actions(driver, command)
        case Fail():
            return fail(driver, command)
        case Warn(record=record):
            return driver.append(record)
        case unknown:
            assert_never(unknown)
