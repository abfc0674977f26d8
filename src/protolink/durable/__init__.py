"""Where durable runs are stored: the port, and the implementations that come with the package."""

from protolink.durable.port import Lease, RecordLog, Row, RunInfo, RunStatus

__all__ = ["Lease", "RecordLog", "Row", "RunInfo", "RunStatus"]
