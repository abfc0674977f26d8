"""Models: the port that providers implement, and the scripted one."""

from protolink.errors import InferParseError
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

__all__ = [
    "LLM",
    "InferParseError",
    "LLMReply",
    "LLMRequest",
    "MockLLM",
    "MockTurn",
    "ModelCallError",
    "ModelUsage",
    "Pricing",
    "ToolCall",
    "ToolDeclaration",
    "create_llm",
]
