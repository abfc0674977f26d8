"""What a client is told about an error of the runtime: what it can do about it, and nothing of the inside."""

from __future__ import annotations

import logging
from typing import Final

from protolink._text import describe_error, visible
from protolink._values import new_id
from protolink.errors import (
    CheckpointMismatchError,
    DurableExecutionError,
    RunBusyError,
    RunExistsError,
    StoreError,
    UncertainExecutionError,
    UnknownRunError,
)
from protolink.transport.http.problems import Problem, not_found

__all__ = ["left_unfinished", "problem_of"]

_logger: Final = logging.getLogger("protolink")


def problem_of(error: Exception) -> Problem | None:
    """The answer to an error that a client can have caused, or None for any other."""
    match error:
        case UnknownRunError():
            return not_found()
        case RunBusyError():
            return Problem(409, "the run is at work", headers={"Retry-After": "1"})
        case RunExistsError():
            return Problem(409, "a run of that id exists already")
        case CheckpointMismatchError():
            return Problem(409, "the run was started under another configuration of its agent")
        case UncertainExecutionError():
            return Problem(409, "nobody knows whether an operation of the run had its effect; see uncertain_actions")
        case StoreError():
            return left_unfinished(error)
        case DurableExecutionError():
            return Problem(409, visible(str(error), limit=500))
        case _:
            return None


def left_unfinished(error: Exception) -> Problem:
    """The answer where the store of runs failed: the log says why, under the id that the client is told."""
    identifier = new_id()
    _logger.error("a run could not be stored or read (%s): %s", identifier, visible(describe_error(error)))
    return Problem(503, "the store of runs did not answer as it should", id=identifier, headers={"Retry-After": "1"})
