"""Blocks of steps in an attempt on several nodes: how large they are, and who puts steps into them.

The leader counts the steps of its first rank and says how large blocks are to be from now on. It and the followers each
put the steps of their own ranks into blocks (`workers.supervisor.report.step_blocks`).
"""

from collections.abc import Callable, Iterable
from time import monotonic

from jobs.protocol.packets import (
    RANK_PACKET_BYTES,
    AnyRecord,
    PacketDecoder,
    SingleRecord,
    StepBatch,
    batch_steps,
    encode_packets,
)
from jobs.protocol.records import Step
from workers.supervisor.link.messages import Message, RankBlock, RankBytes, split
from workers.supervisor.report.step_blocks import BlockMaker, StepBlock, choose_block_size

CleanPacket = Callable[[bytes, tuple[AnyRecord, ...]], tuple[AnyRecord, ...]]

#: Over how long the leader counts steps before it chooses.
PACE_SECONDS = 1.0
#: Blocks get smaller where they could have a fourth of their size: each change costs a few blocks that do not match.
_MUCH_SMALLER = 4


class BlockPace:
    """Chooses the size of blocks for `ranks` ranks; `add_steps` counts those of one of them."""

    def __init__(self, ranks: int, clock: Callable[[], float] = monotonic) -> None:
        self.size = 1
        self._ranks = ranks
        self._clock = clock
        self._since = clock()
        self._steps = 0

    def add_steps(self, count: int) -> None:
        self._steps += count

    def has_changed(self) -> bool:
        """Whether `size` is another one from now on; to be asked often."""
        seconds = self._clock() - self._since
        if seconds < PACE_SECONDS:
            return False
        size = choose_block_size(self._steps / seconds, self._ranks)
        self._since, self._steps = self._clock(), 0
        if self.size // _MUCH_SMALLER < size <= self.size:
            return False
        self.size = size
        return True


class LeaderSteps:
    """The steps of the leader's own ranks, `ranks`, which are put into blocks as those of `all_ranks` are. Without any,
    steps stay as they are."""

    def __init__(self, ranks: Iterable[int], all_ranks: int) -> None:
        self._makers = {rank: BlockMaker() for rank in ranks}
        self._pace = BlockPace(all_ranks)

    def add(self, rank: int, steps: list[Step]) -> list[Step | StepBlock]:
        """The next steps of a rank, as they are to be counted."""
        maker = self._makers.get(rank)
        if maker is None:
            return list(steps)
        if rank == min(self._makers):
            self._pace.add_steps(len(steps))
        return maker.add(steps)

    def flush(self, rank: int) -> list[Step | StepBlock]:
        """What is held of a rank: something else follows."""
        maker = self._makers.get(rank)
        return [] if maker is None else maker.flush()

    def change_size(self) -> tuple[int, dict[int, list[Step | StepBlock]]] | None:
        """Where blocks are to have another size from now on: that, and what was held of each rank."""
        if not self._makers or not self._pace.has_changed():
            return None
        return self._pace.size, {rank: maker.set_size(self._pace.size) for rank, maker in self._makers.items()}


class RecordRelay:
    """Passes what a follower's rank writes on to the leader: its steps in blocks, everything else as it is."""

    def __init__(
        self,
        rank: int,
        send: Callable[[Message], None],
        take: Callable[[int, StepBatch | SingleRecord], None] = lambda rank, record: None,
        clean: CleanPacket | None = None,
    ) -> None:
        """`take` gets each record before it is sent, and `clean` takes values of secrets out of a packet."""
        self._rank = rank
        self._send = send
        self._take = take
        self._decoder = PacketDecoder()
        self._decoder.clean = clean
        self._maker = BlockMaker()

    def add(self, data: bytes) -> None:
        """Take bytes that the rank has written, cut anywhere.

        Raises:
            ValueError: these are no records.
        """
        pieces: list[AnyRecord | StepBlock] = []
        try:
            for packet in self._decoder.feed(data):
                for record in batch_steps(packet):
                    self._take(self._rank, record)
                    if isinstance(record, StepBatch):
                        pieces += [*self._maker.add(record.steps), *record.metrics]
                    else:
                        pieces += [*self._maker.flush(), record]
        finally:
            self._send_pieces(pieces)

    def flush(self) -> None:
        """Send what is held: the rank is dead."""
        self._send_pieces(self._maker.flush())

    def set_size(self, size: int) -> None:
        self._send_pieces(self._maker.set_size(size))

    def _send_pieces(self, pieces: Iterable[AnyRecord | StepBlock]) -> None:
        records: list[AnyRecord] = []
        for piece in pieces:
            if isinstance(piece, StepBlock):
                self._send_records(records)
                records = []
                self._send(RankBlock(self._rank, piece))
            else:
                records.append(piece)
        self._send_records(records)

    def _send_records(self, records: list[AnyRecord]) -> None:
        for packet in encode_packets(records, RANK_PACKET_BYTES) if records else ():
            for message in split(RankBytes(self._rank, packet)):
                self._send(message)
