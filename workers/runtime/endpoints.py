"""A rank's place in its attempt: which one it is, its devices, and the descriptors that lead to the supervisor.

Everything in here can be written down, since a rank that starts cold is told in a file. No torch, and nothing but
the standard library and our records.
"""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workers.runtime import commands, profile_request, stacks
from workers.runtime.collectives import CallsReporter
from workers.runtime.context import ChannelSink, CheckpointAccess, DeviceStreams, RankContext, RankDevice, RankPlace


@dataclass(frozen=True, slots=True)
class RankEndpoints(RankPlace):
    channel: int  # records go in here
    command: int  # words of the supervisor come from here
    streams: tuple[tuple[int, int], ...]  # stdout and stderr of each device
    profile_request: int  # memory in which the supervisor asks for a profile

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self.channel, self.command, self.profile_request, *(fd for pair in self.streams for fd in pair))

    def open(
        self, stopping: Callable[[], bool] = lambda: False, data_root: Path | None = None
    ) -> tuple[RankContext, ChannelSink]:
        """Begin to send records, and take over what is printed."""
        sink = ChannelSink(self.channel)
        routed = DeviceStreams(self.streams)
        routed.install()
        stacks.show_stacks_on_signal()
        request = profile_request.map_request(self.profile_request)
        sink.before_send.append(CallsReporter(request, sink.emit).answer_request)
        return RankContext(*self.place(), sink, routed, stopping, data_root, profile_request=request), sink

    def checkpoint_access(self, drafts: Path | None, resume: Path | None) -> CheckpointAccess | None:
        """None where none are asked for: there are no `drafts`."""
        return CheckpointAccess(drafts, resume, self._read_command) if drafts is not None else None

    def _read_command(self) -> bytes:
        """The supervisor's next word; its end is LEAVE. The supervisor has the deadline."""
        try:
            return os.read(self.command, 1) or commands.LEAVE
        except OSError:  # the program has closed what is not its own
            return commands.LEAVE

    def encode(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)

    @classmethod
    def decode(cls, found: dict[str, Any]) -> "RankEndpoints":
        devices = tuple(RankDevice(**device) for device in found["devices"])
        streams = tuple((out, err) for out, err in found["streams"])
        return cls(**found | {"devices": devices, "streams": streams})
