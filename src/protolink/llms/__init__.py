"""Models: the port that providers implement, and the scripted one."""

from protolink.errors import InferParseError
from protolink.llms.choice import ToolChoice
from protolink.llms.create import create_llm
from protolink.llms.mock import MockLLM, MockTurn
from protolink.llms.port import (
    LLM,
    LLMReply,
    LLMRequest,
    ModelCallError,
    ModelUsage,
    Pricing,
    ToolCall,
    ToolDeclaration,
)
from protolink.llms.prices import Prices
from protolink.llms.retry import RetryPolicy
from protolink.llms.routing import RoutedLLM

__all__ = [
    "LLM",
    "InferParseError",
    "LLMReply",
    "LLMRequest",
    "MockLLM",
    "MockTurn",
    "ModelCallError",
    "ModelUsage",
    "Prices",
    "Pricing",
    "RetryPolicy",
    "RoutedLLM",
    "ToolCall",
    "ToolChoice",
    "ToolDeclaration",
    "create_llm",
]
