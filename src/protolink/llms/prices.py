"""What model calls cost: the application's own table, or the published prices of providers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Protocol, cast, runtime_checkable

from protolink.errors import ConfigurationError
from protolink.llms.port import LLM, ModelUsage, Pricing

__all__ = ["Prices", "PublishedPrices", "cost_of", "has_price", "prices_of"]


@runtime_checkable
class Prices(Protocol):
    """Something that knows what models cost, by provider and model."""

    def pricing(self, provider: str, model: str) -> Pricing | None:
        """The price for a million tokens, or None where it is unknown."""
        ...


class _Table:
    """Prices by `"provider:model"`."""

    def __init__(self, prices: Mapping[str, Pricing]) -> None:
        self._prices = dict(prices)

    def pricing(self, provider: str, model: str) -> Pricing | None:
        return self._prices.get(f"{provider}:{model}")


_MILLION: Final = 1_000_000


class PublishedPrices:
    """The prices in dollars that `genai-prices` lists (`pip install 'protolink[prices]'`); nothing is fetched.

    They are those of short prompts, for providers that ask more for long ones. What is not listed stays unknown.
    """

    def __init__(self) -> None:
        if find_spec("genai_prices") is None:
            raise ConfigurationError("published prices need genai-prices: pip install 'protolink[prices]'")
        self._known: dict[tuple[str, str], Pricing | None] = {}

    def pricing(self, provider: str, model: str) -> Pricing | None:
        """The price that is published for a model, looked up once."""
        key = (provider, model)
        if key not in self._known:
            self._known[key] = self._look_up(provider, model)
        return self._known[key]

    def _look_up(self, provider: str, model: str) -> Pricing | None:
        listed: Any = import_module("genai_prices")

        def price(**usage: int) -> float:
            # A thousand tokens, because the price of a long prompt may be another one.
            return float(listed.calc_price(listed.Usage(**usage), model, provider_id=provider).total_price) * 1_000

        try:
            once = price(input_tokens=1_000)
            cached = price(input_tokens=1_000, cache_read_tokens=1_000)
            return Pricing(input=once, output=price(output_tokens=1_000), cached_input=cached)
        except LookupError:
            return None


def prices_of(prices: object) -> Prices | None:
    """The application's prices. Raises `ConfigurationError` for what is neither a table nor `"published"`."""
    if prices is None:
        return None
    if prices == "published":
        return PublishedPrices()
    if isinstance(prices, Mapping):
        table = cast("Mapping[Any, Any]", prices)
        for name, price in table.items():
            if not isinstance(name, str) or ":" not in name or not isinstance(price, Pricing):
                raise ConfigurationError("a table of prices maps 'provider:model' to a Pricing")
        return _Table(cast("Mapping[str, Pricing]", table))
    if isinstance(prices, Prices):
        return prices
    raise ConfigurationError(
        f"prices is a table of 'provider:model' to Pricing, or 'published', not {type(prices).__name__}"
    )


def _pricing(llm: LLM, prices: Prices | None) -> Pricing | None:
    """The model's own price, or else the application's."""
    if llm.pricing is not None or prices is None:
        return llm.pricing
    return prices.pricing(llm.provider, llm.model)


def has_price(llm: LLM, prices: Prices | None) -> bool:
    """Whether calls of a model can be counted in money."""
    return _pricing(llm, prices) is not None


def cost_of(llm: LLM, prices: Prices | None, usage: ModelUsage) -> float | None:
    """What a call has cost: what the provider said, else the price of its tokens, else unknown."""
    if usage.cost is not None:
        return usage.cost
    pricing = _pricing(llm, prices)
    if pricing is None or usage.input_tokens is None or usage.output_tokens is None:
        return None
    cached = 0 if pricing.cached_input is None else min(usage.cached_tokens or 0, usage.input_tokens)
    spent = (usage.input_tokens - cached) * pricing.input + usage.output_tokens * pricing.output
    return (spent + cached * (pricing.cached_input or 0.0)) / _MILLION
