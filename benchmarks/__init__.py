"""What the runtime costs, as ratios against the same calls without it: `python -m benchmarks`."""
