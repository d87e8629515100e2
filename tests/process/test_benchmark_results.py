"""Results of benchmarks: written, read again and drawn."""

import json
from pathlib import Path

import pytest

from benchmarks.harness import results
from benchmarks.harness.comparing import Figure, times_better

WAIT = Figure(
    "POST to first step", "s", {"ours": [0.1, 0.2, 0.1], "theirs": [3.0, 4.0, 5.0]}, [times_better("theirs", 25)]
)
RATE = Figure("jobs a minute", "", {"ours": [600.0, 660.0], "theirs": [50.0, 60.0]}, lower_is_better=False)


def test_what_is_written_is_read_again_and_every_sample_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra `bench`")
    path = results.write("start", "How long", [WAIT, RATE], quick=True, seconds=1.5, into=tmp_path)
    content, figures = results.read(path)
    assert content["machine"]["cores"] >= 1
    assert figures[0].samples == WAIT.samples
    assert figures[0].met(figures[0].goals[0])
    results.pictures(tmp_path)
    assert "<svg" in (tmp_path / "start.svg").read_text()
    json.loads(path.read_text(), parse_constant=pytest.fail)
