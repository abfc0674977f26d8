"""Models by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from protolink.errors import ConfigurationError
from protolink.llms.mock import MockLLM
from protolink.llms.port import LLM

__all__ = ["create_llm"]


def _mock(model: str | None, options: dict[str, Any]) -> LLM:
    return MockLLM(**options) if model is None else MockLLM(model, **options)


def _local(model: str | None, options: dict[str, Any]) -> LLM:
    from protolink.llms.local import LocalLLM  # an extra

    return LocalLLM(model, **options)


_PROVIDERS: Final[dict[str, Callable[[str | None, dict[str, Any]], LLM]]] = {"local": _local, "mock": _mock}


def create_llm(provider: str, **options: Any) -> LLM:
    """A model from `"provider"` or `"provider:model"`; the options are those of the provider's class.

    Raises `ConfigurationError`, a `ValueError`, for an unknown provider; it lists the known ones.
    """
    if not isinstance(provider, str):
        raise ConfigurationError(f"a model specification is a text like 'mock', not {type(provider).__name__}")
    name, _, model = provider.partition(":")
    maker = _PROVIDERS.get(name)
    if maker is None:
        raise ConfigurationError(f"no provider {name[:100]!r} is known; known are: {', '.join(sorted(_PROVIDERS))}")
    return maker(model or None, options)
