"""Checkpoints that tests, benchmarks and the demo build for themselves: true formats and shapes, random weights."""
