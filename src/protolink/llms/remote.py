"""What every provider behind a network has in common: options, a client per event loop, and one kind of error."""

from __future__ import annotations

import asyncio
import importlib
import math
import os
import re
import threading
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, ClassVar, Final, Literal
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from protolink._environment import current_environment
from protolink._json import is_mapping, thaw
from protolink.errors import ConfigurationError, ProtolinkError
from protolink.llms.draft import Draft
from protolink.llms.grammar import grammar_schema
from protolink.llms.port import LLM, InThread, LLMReply, LLMRequest, ModelCallError, Pricing

__all__ = ["RemoteLLM", "fits_strictly", "is_transient", "tls"]

_TRANSIENT_STATUS: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
_PERMANENT_WORDS: Final = frozenset(
    {
        "authentication_error",
        "billing_error",
        "content_filter",
        "context_length_exceeded",
        "insufficient_quota",
        "invalid_api_key",
        "invalid_prompt",
        "invalid_request_error",
        "model_not_found",
        "not_found_error",
        "permission_error",
        "request_too_large",
    }
)
_STRICT_KEYWORDS: Final = frozenset(
    {
        "$defs",
        "$ref",
        "additionalProperties",
        "anyOf",
        "const",
        "description",
        "enum",
        "items",
        "properties",
        "required",
        "title",
        "type",
    }
)
_DECIDED: Final = {"true": True, "false": False}
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_SECONDS: Final = re.compile(r"(\d+(?:\.\d+)?)s?")
_REQUEST_ID_HEADERS: Final = ("x-request-id", "request-id")


class _Client:
    """An SDK's client and the generator that closes it with its loop."""

    __slots__ = ("close", "keeper", "sdk")

    def __init__(self, sdk: Any, close: Callable[[], Awaitable[object]]) -> None:
        self.sdk = sdk
        self.close = close
        self.keeper: AsyncGenerator[None] | None = None


class RemoteLLM(LLM):
    """A model of a provider that is reached over HTTP with the provider's own SDK.

    The SDK, the key and the connections come with the first turn: an instance costs nothing until then. Each event
    loop that uses it has one client, whose connections all runs share. The SDK's own retries are off; a call that
    may be made again is a `ModelCallError` with `retryable`, and the runtime decides.

    Parameters
    ----------
    model
        The provider's name of the model.
    api_key
        The key; None reads the provider's environment variable when the first turn is made.
    base_url
        Another address of the service, `http` or `https`.
    tool_calling
        `"native"` offers tools in the provider's format, `"json"` as JSON actions; None is the provider's default.
    constrained
        Whether answers, and actions in JSON, are constrained to their schema. None is the provider's default: both
        where schemas become grammars, answers alone where a hosted service enforces some schemas and refuses others.
    temperature, max_output_tokens
        Sent where given; of two bounds, this one and what a budget leaves, the smaller one.
    parallel_tool_calls
        Whether one reply may hold several calls; None leaves it to the provider.
    parameters
        Anything else that the provider's API takes, by its own names. It is sent as it is, and wins.
    connect_timeout, read_timeout
        Seconds for reaching the provider, and between two pieces of its reply.
    pricing, context_window
        What is known of the model.

    Raises `ConfigurationError` for a value that cannot be meant, and at the first turn for a missing SDK or key.
    """

    extra: ClassVar[str]
    """The extra of this package that installs the SDK."""

    module: ClassVar[str]
    """The SDK."""

    key_variables: ClassVar[tuple[str, ...]] = ()
    """Environment variables that may hold the key, the first one first."""

    default_base_url: ClassVar[str | None] = None
    """The address of the service; None is the SDK's own."""

    needs_key: ClassVar[bool] = True
    needs_base_url: ClassVar[bool] = False
    default_tool_calling: ClassVar[Literal["native", "json"]] = "native"
    default_constrained: ClassVar[bool] = False
    """Whether actions are constrained unless the application says otherwise."""

    makes_grammars: ClassVar[bool] = False
    """Whether the server is built on llama.cpp, which makes a grammar of a schema and refuses what it has none for."""

    default_constrained_answers: ClassVar[bool] = True
    default_read_timeout: ClassVar[float] = 120.0

    streaming = True

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        tool_calling: Literal["native", "json"] | None = None,
        constrained: bool | None = None,
        temperature: float | None = None,
        max_output_tokens: int | None = None,
        parallel_tool_calls: bool | None = None,
        parameters: Mapping[str, Any] | None = None,
        connect_timeout: float = 10.0,
        read_timeout: float | None = None,
        pricing: Pricing | None = None,
        context_window: int | None = None,
    ) -> None:
        if not isinstance(model, str) or not model.strip():
            raise ConfigurationError(f"{self.provider} needs the name of a model, as in '{self.provider}:<model>'")
        if api_key is not None and not (isinstance(api_key, str) and api_key.strip()):
            raise ConfigurationError("api_key is a text that is not blank, or None")
        if tool_calling not in (None, "native", "json"):
            raise ConfigurationError("tool_calling is 'native', 'json' or None")
        if parameters is not None and not is_mapping(parameters):
            raise ConfigurationError("parameters is a mapping of the provider's own names")
        _require_count("max_output_tokens", max_output_tokens)
        _require_count("context_window", context_window)
        self.model = model
        self.tool_calling_is_chosen: bool = tool_calling is not None
        self.native_tools: bool = (tool_calling or self.default_tool_calling) == "native"
        self.constrained: bool = self.default_constrained if constrained is None else bool(constrained)
        self.constrained_answers: bool = self.default_constrained_answers if constrained is None else bool(constrained)
        self.pricing = pricing
        self.context_window = context_window
        self.temperature = temperature
        self.max_output_tokens = max_output_tokens
        self.parallel_tool_calls = parallel_tool_calls
        self.parameters: dict[str, Any] = dict(parameters or {})
        self.base_url: str | None = None if base_url is None else _checked_url(base_url)
        if self.base_url is None and self.default_base_url is None and self.needs_base_url:
            raise ConfigurationError(f"{self.provider} needs base_url=, such as 'http://localhost:8000/v1'")
        self.connect_timeout: float = _seconds("connect_timeout", connect_timeout)
        self.read_timeout: float = _seconds(
            "read_timeout", self.default_read_timeout if read_timeout is None else read_timeout
        )
        self._api_key = api_key
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, _Client] = WeakKeyDictionary()
        self._lock = threading.Lock()

    async def respond(self, request: LLMRequest) -> LLMReply:
        """Make one turn, and only one call for it. Raises `ModelCallError` and `ConfigurationError`."""
        draft = Draft(self.provider, request)
        try:
            await self.fill(draft, await self.client(request.in_thread), request)
        except (ProtolinkError, ConnectionAbortedError):
            raise
        except Exception as error:  # the SDK's
            # A provider may quote what it was sent; its words go no further if the key is among them.
            raise self._translated(error, draft) from (None if self._is_told(error) else error)
        return draft.reply()

    async def aclose(self) -> None:
        """Close the connections of every event loop; the next turn opens new ones."""
        with self._lock:
            clients = dict(self._clients)
        here = asyncio.get_running_loop()
        for loop, client in clients.items():
            if client.keeper is None:
                continue
            if loop is here:
                await client.keeper.aclose()
            elif loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(client.keeper.aclose(), loop))

    def to_dict(self) -> dict[str, Any]:
        """What identifies the model; an address of one's own is not stored, for a key would be sent there."""
        stored = {**super().to_dict(), "tool_calling": "native" if self.native_tools else "json"}
        return stored if self.base_url is None else {**stored, "reconnect_required": True}

    @abstractmethod
    def open(self, sdk: Any, key: str | None) -> tuple[Any, Callable[[], Awaitable[object]]]:
        """A client of the SDK and what closes it. Called in a worker thread."""

    @abstractmethod
    async def fill(self, draft: Draft, client: Any, request: LLMRequest) -> None:
        """Make the call and put what arrives into `draft`."""

    @property
    def key_name(self) -> str:
        """How messages name the place of the key."""
        return " or ".join(self.key_variables)

    @property
    def address(self) -> str | None:
        """Where the service is; None is the SDK's own address."""
        return self.base_url or self.default_base_url

    def output_bound(self, request: LLMRequest) -> int | None:
        """The smaller one of the two bounds of a reply, where there is any."""
        bounds = [bound for bound in (self.max_output_tokens, request.max_output_tokens) if bound is not None]
        return min(bounds, default=None)

    def schema_for(self, request: LLMRequest, *, beside_tools: bool) -> dict[str, Any] | None:
        """The schema that this reply is to be constrained to.

        The schema of an answer cannot hold an action, so it applies only where no action can be said: where the
        provider keeps native calls apart from text (`beside_tools`), or where there are no tools.
        """
        if request.action_schema is not None and not request.native:
            return self._enforceable(request.action_schema) if self.constrained else None
        if request.output_schema is None or (request.tools and not (request.native and beside_tools)):
            return None
        return self._enforceable(request.output_schema) if self.constrained_answers else None

    def _enforceable(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        plain = _plain(schema)
        return grammar_schema(plain) if self.makes_grammars else plain

    def retry_after(self, headers: Mapping[str, str], details: object = None) -> float | None:
        """The provider's own wish, in seconds; `details` is what an error says besides."""
        milliseconds = _number(headers.get("retry-after-ms"))
        if milliseconds is not None:
            return milliseconds / 1000
        wish = headers.get("retry-after")
        seconds = _number(wish)
        if seconds is None and wish:
            with suppress(ValueError, TypeError):
                seconds = max(0.0, parsedate_to_datetime(wish).timestamp() - current_environment().now())
        return seconds

    async def client(self, in_thread: InThread) -> Any:
        """The client of the running loop. The SDK is imported in a thread, for that can take a second."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = await in_thread(self._open, loop)
        if client.keeper is None:
            client.keeper = self._keep(loop, client)
            await anext(client.keeper)
        return client.sdk

    def _open(self, loop: asyncio.AbstractEventLoop) -> _Client:
        with self._lock:
            client = self._clients.get(loop)
            if client is None:
                sdk = self._sdk()
                client = self._clients[loop] = _Client(*self.open(sdk, self._key()))
            return client

    async def _keep(self, loop: asyncio.AbstractEventLoop, client: _Client) -> AsyncGenerator[None]:
        """Hold a client until it is closed or its loop ends: a loop closes the generators that it leaves behind."""
        try:
            yield
        finally:
            if self._clients.get(loop) is client:
                del self._clients[loop]
            await client.close()

    def _sdk(self) -> Any:
        try:
            return importlib.import_module(self.module)
        except ImportError as error:
            raise ConfigurationError(
                f"{self.provider} needs its SDK, which cannot be imported: pip install 'protolink[{self.extra}]'"
            ) from error

    def _key(self) -> str | None:
        if self._api_key is not None:
            return self._api_key
        for variable in self.key_variables:
            key = os.environ.get(variable, "").strip()
            if key:
                return key
        if self.needs_key:
            raise ConfigurationError(f"{self.provider} needs a key: set {self.key_name}, or pass api_key=")
        return None

    def _is_told(self, error: Exception) -> bool:
        key = self._api_key or next((os.environ[name] for name in self.key_variables if os.environ.get(name)), None)
        return key is not None and key in str(error)

    def _translated(self, error: Exception, draft: Draft) -> ModelCallError:
        """An SDK's exception as ours: what happened and what may be done, none of its words."""
        if _is_kind(error, "TimeoutException", "APITimeoutError", "TimeoutError"):
            return draft.lost("did not answer in time")
        if _is_kind(error, "TransportError", "APIConnectionError", "ConnectionError"):
            return draft.lost(f"could not be reached, or the connection was lost ({_cause(error)})")
        status, word = _status(error), _word(error)
        if status is None and word is None:
            if _is_kind(error, "APIError", "ResponseError"):  # what the service says in the middle of a stream
                return draft.lost("failed in the middle of its reply")
            return draft.lost(
                f"could not be called, or its reply not be read ({type(error).__name__})", retryable=False
            )
        headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", None) or {}
        # A failure in the middle of a stream has a word and no status, or that of the stream.
        transient = status in _TRANSIENT_STATUS or status is None or status == 200
        decided = _DECIDED.get(headers.get("x-should-retry", ""))
        retryable = transient and word not in _PERMANENT_WORDS if decided is None else decided
        said = " ".join(str(part) for part in (status, word) if part is not None and part != 200)
        request_id = next((headers[name] for name in _REQUEST_ID_HEADERS if name in headers), draft.request_id)
        return ModelCallError(
            f"{self.provider} refused or lost the call: {said}",
            retryable=retryable,
            retry_after=self.retry_after(headers, getattr(error, "details", None)),
            status=None if status == 200 else status,
            request_id=request_id,
            usage=draft.usage,
        )


@cache
def tls(library: str) -> Any:
    """What one of the HTTP libraries trusts. Reading the certificates takes longer than all the rest of a client."""
    return importlib.import_module(library).create_ssl_context()


def is_transient(status: int) -> bool:
    """Whether a call that ended with this HTTP status may succeed later."""
    return status in _TRANSIENT_STATUS


def fits_strictly(schema: Mapping[str, Any]) -> bool:
    """Whether a schema is in the subset that hosted services can enforce; they refuse any other.

    That is an object whose objects are closed and require all of their properties, in few keywords.
    """
    return schema.get("type") == "object" and _fits(schema)


def _fits(schema: object) -> bool:
    if not is_mapping(schema) or not schema.keys() <= _STRICT_KEYWORDS:
        return False
    properties: Mapping[str, Any] = schema.get("properties") or {}
    if schema.get("type") == "object":
        required: list[str] = schema.get("required") or []
        if schema.get("additionalProperties") is not False or properties.keys() != set(required):
            return False
    definitions: Mapping[str, Any] = schema.get("$defs") or {}
    options: list[Any] = schema.get("anyOf") or []
    within: list[object] = [*properties.values(), *definitions.values(), *options]
    if "items" in schema:
        within.append(schema["items"])
    return all(map(_fits, within))


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = thaw(dict(schema))
    return plain


def _is_kind(error: BaseException, *names: str) -> bool:
    # The SDKs use two HTTP libraries of the same make under different names; the classes' names are the same.
    return any(kind.__name__ in names for kind in type(error).__mro__)


def _cause(error: BaseException) -> str:
    return type(error.__cause__ or error).__name__


def _status(error: Exception) -> int | None:
    for name in ("status_code", "code"):
        value = getattr(error, name, None)
        if isinstance(value, int) and 100 <= value < 600:
            return value
    return None


def _word(error: Exception) -> str | None:
    """The provider's own word for the failure, such as `overloaded_error`; never a sentence, which could quote."""
    body = getattr(error, "body", None)
    inner = body.get("error") if is_mapping(body) else None
    candidates = [getattr(error, "code", None), getattr(error, "type", None), getattr(error, "status", None)]
    for source in (inner, body):
        if is_mapping(source):
            candidates += [source.get("code"), source.get("type"), source.get("status")]
    return next((word for word in candidates if isinstance(word, str) and _WORD.fullmatch(word)), None)


def _number(text: str | None) -> float | None:
    match = _SECONDS.fullmatch(text.strip()) if text else None
    return float(match[1]) if match else None


def _checked_url(url: object) -> str:
    if not isinstance(url, str):
        raise ConfigurationError("base_url is a text")
    try:
        parts = urlsplit(url)
        plain = parts.username is None and parts.password is None and not parts.query
    except ValueError:
        raise ConfigurationError("base_url is not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
        raise ConfigurationError("base_url is an http or https URL with a host, without credentials and query")
    return url


def _seconds(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 < value < math.inf):
        raise ConfigurationError(f"{name} is a positive number of seconds")
    return float(value)


def _require_count(name: str, value: object) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ConfigurationError(f"{name} is a positive whole number or None")
