"""Tools and what a running tool can ask about itself."""

from protolink.errors import ToolCorrectionLimitError, ToolDefinitionError, ToolRejectedError
from protolink.tools.execution import ToolExecution, current_execution, report_progress
from protolink.tools.prepared import PreparedTool
from protolink.tools.question import ask_user
from protolink.tools.tool import BaseTool, Tool

__all__ = [
    "BaseTool",
    "PreparedTool",
    "Tool",
    "ToolCorrectionLimitError",
    "ToolDefinitionError",
    "ToolExecution",
    "ToolRejectedError",
    "ask_user",
    "current_execution",
    "report_progress",
]
