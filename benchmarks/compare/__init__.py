"""The same work by other agent libraries, each measured against the same floor: `python -m benchmarks.compare`."""
