"""Observers of a training run: clocks, and the recorder that sends telemetry."""
