"""What a report knows of an attempt's hardware: the node's samples, and how memory has grown with the steps."""

from collections.abc import Mapping

from jobs.protocol.hardware import AttemptSamples, SampleSeries
from jobs.splits.findings.hardware_findings import GROWING_SERIES, MemoryTrace
from shardyard.contract.hardware import DeviceHardware


class HardwareState:
    """Of bounded size. Samples come about once a second, each time all that there are."""

    def __init__(self) -> None:
        self.samples: AttemptSamples | None = None
        self._traces: dict[tuple[int, str], SampleSeries] = {}  # memory by step
        self._read_through = False
        self._counted = (0.0, 0)  # seconds since the epoch, and the steps that there were then

    def add(self, samples: AttemptSamples, steps: int, now: float, *, read_through: bool) -> None:
        """Take the newest samples, when so many steps have been counted. `read_through`: a pass over the data is over.

        How memory grows before that says little: the program may keep rows that it has read.
        """
        self.samples = samples
        (before, earlier), self._counted = self._counted, (now, steps)
        if not earlier:
            return
        share = min(1.0, max(0.0, (samples.at - before) / max(now - before, 1e-3)))
        at_sample = earlier + round((steps - earlier) * share)
        if read_through and not self._read_through:
            self._traces.clear()
        self._read_through = read_through
        for device in samples.devices:
            for name in GROWING_SERIES:
                if name in device.series:
                    trace = self._traces.setdefault((device.device, name), SampleSeries())
                    trace.add(at_sample, device.series[name].latest)

    @property
    def traces(self) -> Mapping[tuple[int, str], MemoryTrace]:
        return {key: MemoryTrace(one.buckets, self._read_through) for key, one in self._traces.items()}

    def summaries(self) -> tuple[DeviceHardware, ...]:
        """For each device that was sampled, in order."""
        if self.samples is None:
            return ()
        sampled = sorted((one for one in self.samples.devices if one.samples), key=lambda one: one.device)
        return tuple(one.summary() for one in sampled)
