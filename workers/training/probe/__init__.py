"""Observers of a training run: clocks, shard lines, and the recorder that sends telemetry."""
