"""Models by name."""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Final

from protolink.errors import ConfigurationError
from protolink.llms.port import LLM

__all__ = ["create_llm"]

_PROVIDERS: Final = {
    "anthropic": "anthropic:AnthropicLLM",
    "deepseek": "openai_chat:DeepSeekLLM",
    "gemini": "google:GoogleLLM",
    "google": "google:GoogleLLM",
    "llamacpp": "openai_chat:LlamaCppLLM",
    "lmstudio": "openai_chat:LMStudioLLM",
    "local": "local:LocalLLM",
    "mistral": "openai_chat:MistralLLM",
    "mock": "mock:MockLLM",
    "ollama": "ollama:OllamaLLM",
    "openai": "openai:OpenAILLM",
    "openai-chat": "openai_chat:OpenAIChatLLM",
    "openai-compatible": "openai_chat:OpenAICompatibleLLM",
    "vllm": "openai_chat:VLLM",
    "xai": "openai_chat:XAILLM",
}
"""The modules beside this one, loaded with the first model of theirs, and their classes."""


def create_llm(provider: str, **options: Any) -> LLM:
    """A model from `"provider"` or `"provider:model"`; the options are those of the provider's class.

    Raises `ConfigurationError`, a `ValueError`, for an unknown provider or option; it lists the known ones.
    """
    if not isinstance(provider, str):
        raise ConfigurationError(f"a model specification is a text like 'mock', not {type(provider).__name__}")
    name, _, model = provider.partition(":")
    place = _PROVIDERS.get(name)
    if place is None:
        raise ConfigurationError(f"no provider {name[:100]!r} is known; known are: {', '.join(sorted(_PROVIDERS))}")
    module, _, title = place.partition(":")
    make: type[LLM] = getattr(importlib.import_module(f"protolink.llms.{module}"), title)
    parameters = inspect.signature(make).parameters
    if unknown := sorted(options.keys() - parameters.keys()):
        known = ", ".join(option for option in parameters if option != "model")
        raise ConfigurationError(f"{name} has no option {', '.join(unknown)[:100]!r}; its options are: {known}")
    if model:
        return make(model, **options)  # type: ignore[call-arg]
    if parameters["model"].default is inspect.Parameter.empty and "model" not in options:
        raise ConfigurationError(f"{name} needs the name of a model, as in '{name}:<model>'")
    return make(**options)
