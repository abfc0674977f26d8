"""What an application needs to test its agents: no provider, no network, no waiting.

Nothing here needs a test framework; the conformance suites are plain classes whose methods pytest finds.
"""

from protolink._environment import use_environment
from protolink.testing.actions import call, calls, delegate
from protolink.testing.clock import ManualClock
from protolink.testing.conformance import LLMConformance, PolicyConformance
from protolink.testing.dying import DyingLog, LogDiedError
from protolink.testing.model import RecordedRequest, ScriptedLLM, ScriptExhaustedError
from protolink.testing.record_log import RecordLogConformance
from protolink.testing.runs import CollectedRun, collect, run_events

__all__ = [
    "CollectedRun",
    "DyingLog",
    "LLMConformance",
    "LogDiedError",
    "ManualClock",
    "PolicyConformance",
    "RecordLogConformance",
    "RecordedRequest",
    "ScriptExhaustedError",
    "ScriptedLLM",
    "call",
    "calls",
    "collect",
    "delegate",
    "run_events",
    "use_environment",
]
