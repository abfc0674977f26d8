"""Several models as one: the first that works."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any, ClassVar

from protolink.errors import ConfigurationError
from protolink.llms.create import create_llm
from protolink.llms.port import LLM, LLMReply, LLMRequest

__all__ = ["RoutedLLM"]


class RoutedLLM(LLM):
    """Models in the order of preference; a run goes on with the next one when a call of the one before fails.

    The runtime makes the change: before the first piece of a reply was shown, without a pause, as a record
    and an `llm.call.retried` event, with the request as the next model takes it (its tool format, its context
    window, its price). A reply that breaks off in the middle is no reason to change the model; it is retried like
    any other. A run stays with the model that it has come to until its attempt ends; other runs begin with
    the first one. Each keeps its own `max_tool_corrections`. Models may be given as specifications such as
    `"openai:gpt-…"`.
    """

    provider = "routed"
    blocking: ClassVar[bool] = False

    def __init__(self, models: Iterable[LLM | str]) -> None:
        if isinstance(models, str | LLM):
            raise ConfigurationError("RoutedLLM takes a list of models")
        made = [create_llm(model) if isinstance(model, str) else model for model in models]
        if not made:
            raise ConfigurationError("RoutedLLM needs at least one model")
        for model in made:
            if not isinstance(model, LLM):
                raise ConfigurationError(f"RoutedLLM routes to models, not {type(model).__name__}")
        self._routes = tuple(route for model in made for route in model.routes)
        self.model: str = ",".join(f"{route.provider}:{route.model}" for route in self._routes)

    @property
    def routes(self) -> tuple[LLM, ...]:
        """The models, those of nested routes in their places."""
        return self._routes

    def respond(self, request: LLMRequest) -> LLMReply | Awaitable[LLMReply]:
        """Ask the first model; the runtime asks each of the `routes` itself."""
        return self._routes[0].respond(request)

    async def aclose(self) -> None:
        """Close every model."""
        for route in self._routes:
            await route.aclose()

    def to_dict(self) -> dict[str, Any]:
        """What identifies the models in a configuration; no secrets."""
        return {"provider": self.provider, "model": self.model, "routes": [route.to_dict() for route in self._routes]}
