"""What outlives a run: its session's conversation, its task and its report. No store is ever called on the event loop.

One worker thread per agent and kind of store, so that what was asked first is done first: a run that starts
when another of its session has just ended reads what that one has said.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from protolink._core.records import ConversationLoaded, Inference
from protolink._environment import Environment
from protolink._json import render
from protolink._runtime.principal import session_of
from protolink._runtime.scopes import Interrupted, Scope, TimedOut, in_spite_of_cancellation
from protolink._runtime.threads import ThreadCall, Workers
from protolink._runtime.views import Views
from protolink._text import describe_error, visible
from protolink.errors import ConfigurationError
from protolink.storage.port import RunStore, Storage, StorageError

if TYPE_CHECKING:
    from protolink._runtime.driver import Driver

__all__ = ["Keeper", "keeper_of", "recording_in"]

STORE_SECONDS: Final = 30.0
"""How long a store may take; a run whose store hangs ends without it."""

GRACE_SECONDS: Final = 2.0
"""How long a store may still take when whoever drives the run is canceled."""

_logger: Final = logging.getLogger("protolink")


class Keeper:
    """The stores of one agent, as its runs use them. A store that fails is logged and hangs no run."""

    def __init__(self, storage: Storage | None, run_store: RunStore | None) -> None:
        self._storage = storage
        self._run_store = run_store
        self._reading_and_saying = Workers(1)
        self._recording = Workers(1)

    def recording_in(self, run_store: RunStore) -> Keeper:
        """The same conversations, with tasks and reports kept elsewhere."""
        other = Keeper(self._storage, run_store)
        other._reading_and_saying = self._reading_and_saying
        return other

    async def prepare(self, driver: Driver) -> None:
        """Put the session's earlier messages before the question, or record why the run cannot have them."""
        storage, session_id, run = self._storage, driver.context.session_id, driver.run
        asks = any(isinstance(work, Inference) for work in run.started.work)
        if storage is None or session_id is None or not asks or run.earlier is not None or run.stop is not None:
            return
        call = self._reading_and_saying.call(storage.load_session, session_of(driver.run.started.principal, session_id))
        try:
            messages = _messages(await driver.scope.call_in_thread(call, STORE_SECONDS))
        except TimedOut:
            await self._unreadable(driver, StorageError(f"the storage did not answer within {STORE_SECONDS:g} seconds"))
        except Interrupted:
            return  # the loop records why, and ends the run
        except Exception as error:  # the application's storage
            await self._unreadable(driver, error)
        else:
            await driver.append(ConversationLoaded(messages=messages))

    async def _unreadable(self, driver: Driver, error: Exception) -> None:
        _log("read the conversation", driver, error)
        await driver.fail("storage_failed", f"the conversation cannot be read: {describe_error(error, 500)}", error)

    async def keep_conversation(self, driver: Driver) -> None:
        """Add what was said to the session; returns when it is stored, or when it is clear that it cannot be.

        It comes before the run's end is recorded: a process that dies in between leaves a run that is taken
        up again, and saving under the run's id a second time adds nothing.
        """
        run, session_id = driver.run, driver.context.session_id
        if self._storage is None or session_id is None or run.earlier is None:
            return  # a run that never had the conversation has nothing to add to it
        added = [render(message)[0] for message in run.conversation_at_the_end[run.earlier :]]
        session = session_of(driver.run.started.principal, session_id)
        append = functools.partial(self._storage.append_session, key=driver.run_id)
        await self._do(driver, self._reading_and_saying, "save the conversation", append, session, added)

    async def keep(self, driver: Driver) -> None:
        """Keep the task and the report of an attempt; returns when they are kept, or clearly cannot be."""
        store = self._run_store
        if store is None:
            return
        # Made in the thread as well: nothing is added to the list any more, and it may be long.
        views = Views(driver.journal, driver.run_id, None)
        await self._do(driver, self._recording, "save the task", lambda: store.save_task(views.task))
        await self._do(driver, self._recording, "save the report", lambda: store.save_report(views.report))

    async def has(self, environment: Environment, task_id: str, run_id: str | None) -> bool:
        """Whether a task or a report is kept under one of these ids already. Raises what the store raises."""
        store, scope = self._run_store, Scope(environment)
        if store is None:
            return False
        if await scope.call_in_thread(self._recording.call(store.get_task, task_id), STORE_SECONDS) is not None:
            return True
        if run_id is None:
            return False
        return await scope.call_in_thread(self._recording.call(store.get_report, run_id), STORE_SECONDS) is not None

    async def _do(
        self, driver: Driver, workers: Workers, what: str, store: Callable[..., object], *arguments: object
    ) -> None:
        # A scope of its own: that the run was told to stop is no reason not to store how it ended.
        scope = Scope(driver.environment)
        call = functools.partial(workers.call, store, *arguments)
        task = asyncio.ensure_future(_stored(driver, what, scope, call))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:  # whoever drives the run: the store gets a little time to finish
            grace = driver.environment.call_later(GRACE_SECONDS, scope.interrupt)
            try:
                await in_spite_of_cancellation(task)
            finally:
                grace.cancel()
            raise


async def _stored(driver: Driver, what: str, scope: Scope, call: Callable[[], ThreadCall]) -> None:
    try:
        await scope.call_in_thread(call(), STORE_SECONDS)
    except TimedOut:
        _log(what, driver, StorageError(f"the store did not answer within {STORE_SECONDS:g} seconds"))
    except Interrupted:
        _log(what, driver, StorageError("the program was stopped before the store answered"))
    except Exception as error:  # the application's store
        _log(what, driver, error)


def keeper_of(
    agent_name: str, storage: Storage | None, has_conversation: bool, run_store: RunStore | None
) -> Keeper | None:
    """What keeps an agent's runs; None where nothing does. Conversations without a storage are kept in memory."""
    if storage is not None and not isinstance(storage, Storage):
        raise ConfigurationError(f"storage must be a Storage, not {type(storage).__name__}")
    _require_run_store(run_store, "run_store")
    if not has_conversation:
        storage = None
    elif storage is None:
        from protolink.storage.memory import InMemoryStorage  # most agents keep no conversation

        storage = InMemoryStorage(agent_name)
    return None if storage is None and run_store is None else Keeper(storage, run_store)


def recording_in(keeper: Keeper | None, run_store: RunStore) -> Keeper:
    """What keeps one run: the agent's conversations, and this store's tasks and reports."""
    _require_run_store(run_store, "store")
    return Keeper(None, run_store) if keeper is None else keeper.recording_in(run_store)


def _require_run_store(run_store: object, what: str) -> None:
    if run_store is not None and not isinstance(run_store, RunStore):
        raise ConfigurationError(f"{what} must be a RunStore, not {type(run_store).__name__}")


def _log(what: str, driver: Driver, error: Exception) -> None:
    name = visible(driver.configuration.agent_name, limit=100)
    _logger.error("agent %s could not %s of run %s: %s", name, what, driver.run_id, visible(describe_error(error)))


def _messages(loaded: Iterable[Any]) -> tuple[dict[str, Any], ...]:
    """The loaded messages, each of which a model could be shown."""
    messages = tuple(loaded)
    for message in messages:
        if not isinstance(message, dict) or not isinstance(cast("dict[str, Any]", message).get("content"), str):
            raise StorageError("a stored message has no text")
    return messages
