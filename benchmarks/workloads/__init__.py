"""Every workload by the name that `--only` takes, in the order in which they are printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.scale import Scale
from benchmarks.table import Row
from benchmarks.workloads.agents import idle_agents
from benchmarks.workloads.concurrency import concurrent_runs, cost_of_company
from benchmarks.workloads.durable import durable
from benchmarks.workloads.http import http
from benchmarks.workloads.providers import providers
from benchmarks.workloads.start import start
from benchmarks.workloads.steps import one_tool_step, one_turn
from benchmarks.workloads.streams import events
from benchmarks.workloads.threads import blocking_tools
from benchmarks.workloads.workers import workers

__all__ = ["WORKLOADS", "Workload"]

Workload = Callable[[Scale], list[Row]]

WORKLOADS: Mapping[str, Workload] = {
    "import": start,
    "one turn": one_turn,
    "one tool step": one_tool_step,
    "concurrent runs": concurrent_runs,
    "cost of company": cost_of_company,
    "blocking tools": blocking_tools,
    "events": events,
    "idle agents": idle_agents,
    "workers": workers,
    "durable": durable,
    "http": http,
    "providers": providers,
}
