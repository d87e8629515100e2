"""What records with impossible values do to a supervisor: nothing. Its report can be made, and nothing raises."""

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from jobs.files import paths
from jobs.model.spec_rules import parse_spec
from jobs.protocol.packets import AnyRecord, PacketDecoder, batch_steps, encode_packet
from jobs.protocol.records import Outcome, Record, Returned, Step
from jobs.splits.plan import predict_splits
from jobs.store import AttemptId
from shardyard.contract.report import Report
from tests.support.samples.forged_records import KINDS, forge, forge_split, forge_step
from tests.support.samples.record_streams import lease
from workers.supervisor.limits.record_bounds import MAX_TRACEBACK, bound_record
from workers.supervisor.report.aggregator import Aggregator
from workers.supervisor.report.recipe_aggregator import RecipeAggregator
from workers.supervisor.report.script_aggregator import ScriptAggregator
from workers.supervisor.telemetry.publisher import TelemetryPublisher
from workers.supervisor.telemetry.report_publisher import UNFINISHED

RECIPE = (
    '{"program": {"model": {"ref": "linear", "args": {"in_features": 5, "out_features": 2}}, "data": {"ref":'
    ' "random_vectors", "args": {"rows": 100, "features": 5}}, "loss": {"ref": "cross_entropy"}, "optimizer":'
    ' {"ref": "sgd", "args": {"lr": 0.1}}}, "resources": {"devices": %d}, "parallelism": {"strategy": "%s"}}'
)
SCRIPT = (
    '{"program": {"kind": "script", "bundle": "sha256:%064d", "entrypoint": "train.py"},'
    ' "resources": {"devices": %d}, "parallelism": {"strategy": "%s"}}'
)
PROGRAMS: dict[str, tuple[str, type[ScriptAggregator | RecipeAggregator], int]] = {
    "script": (SCRIPT % (0, 2, "single"), ScriptAggregator, 2),
    "script of ranks": (SCRIPT % (0, 3, "ddp"), ScriptAggregator, 3),
    "recipe": (RECIPE % (3, "dp"), RecipeAggregator, 3),
    "recipe of ranks": (RECIPE % (2, "ddp"), RecipeAggregator, 2),
}
#: Bars of tqdm whose numbers are none.
BARS = (b"1%|x| " + b"9" * 400 + b"/10 [00:01<00:02, 1.0it/s]\r", b"x: " + b"9" * 400 + b"it [00:01, 2.00it/s]\r")


class KeptBlobs:
    """What a shipper would send."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def put_blob(self, key: str, blob: bytes, ttl: int) -> None:
        self.blobs[key] = blob

    def ship_log(self, device: int, path: Path, end: int) -> None:
        pass

    def ship_metrics(self, path: Path, end: int) -> None:
        pass

    def close(self, timeout: float) -> list[str]:
        return []


class Receiver:
    """All that a supervisor does with records, without its loop."""

    def __init__(self, directory: Path, program: str) -> None:
        text, kind, self.devices = PROGRAMS[program]
        chosen = parse_spec(text)
        self.world_size = chosen.world_size
        self._attempt = directory
        aggregator = kind("job-1", 1, chosen, lease(self.devices), predict_splits(chosen, None, None))
        attempt, samples = AttemptId("default", "job-1", 1), directory / "none"
        self.shipper = KeptBlobs()
        self.publisher = TelemetryPublisher(directory, attempt, self.devices, self.shipper, aggregator, chosen, samples)  # type: ignore[arg-type]

    def take(self, record: AnyRecord, rank: int, source: int) -> None:
        """Take a record as it comes through a channel. One that does not decode would end its sender."""
        try:
            (packet,) = PacketDecoder().feed(encode_packet([record]))
        except ValueError:
            return
        for one in batch_steps(packet):
            self.publisher.add_record(rank, bound_record(one), source)

    def final_report(self) -> Report:
        assert self.publisher.write_final_report() == ""
        self.publisher.seal()
        return msgspec.json.decode(paths.report_file(self._attempt).read_bytes(), type=Report)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_report_is_made_of_records_with_any_values(program: str, tmp_path: Path) -> None:
    dice = random.Random(7)
    receiver = Receiver(tmp_path, program)
    makers: list[Callable[[], AnyRecord]] = [
        lambda: forge_split(dice.randrange(8), receiver.devices, dice),
        lambda: forge_step(dice),
        lambda: forge(dice.choice(KINDS), dice),
    ]
    for turn in range(2000):
        receiver.take(dice.choice(makers)(), dice.randrange(receiver.world_size), dice.choice((0, 0, 0, 1, 2)))
        if turn % 100 == 0:
            receiver.publisher.add_output(0, "stdout", 0, dice.choice(BARS), None)
            receiver.publisher.flush_due(0.0)
    report = receiver.final_report()
    assert report.final
    assert report.patterns
    assert UNFINISHED not in report.notes.values()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_kind_of_record_leaves_an_attempt_without_a_report(kind: type[Record], tmp_path: Path) -> None:
    dice = random.Random(1)
    receiver = Receiver(tmp_path, "script")
    for _ in range(300):
        receiver.take(forge(kind, dice), 0, dice.choice((0, 1)))
    receiver.take(forge_split(0, 2, random.Random(0)), 0, 0)
    assert receiver.final_report().final


def test_an_attempt_whose_final_report_cannot_be_made_keeps_the_last_that_could(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(aggregator: Aggregator) -> None:
        raise ZeroDivisionError

    receiver = Receiver(tmp_path, "script")
    receiver.take(forge_split(0, 2, random.Random(0)), 0, 0)
    receiver.take(Step(0, 0, "train", (0,), 1.0, 1.0), 0, 0)
    receiver.publisher.flush_due(0.0)
    monkeypatch.setattr(Aggregator, "_describe_work", fail)
    report = receiver.final_report()
    assert report.final
    assert report.notes["patterns"] == UNFINISHED


def test_texts_of_any_length_are_cut_and_a_traceback_keeps_its_end() -> None:
    outcome = Outcome(0, 1, "code_error" * 1000, "m" * 10**6, "begin" + "t" * 10**6 + "end", "a" * 10**6)
    for record in (bound_record(outcome), bound_record(Returned(outcome, "threads")).outcome):  # type: ignore[union-attr]
        assert isinstance(record, Outcome)
        assert (len(record.kind), len(record.message), len(record.advice)) == (512, 2000, 2000)
        assert len(record.traceback) == MAX_TRACEBACK
        assert record.traceback.endswith("end")
