"""`python -m tools.record_doc_reports` runs the jobs of the documents again and shows their new reports there.

It starts a service of its own with virtual devices, stores each report in docs/examples, and puts its text where the
documents show it: each piece of a text (between lines of `...`) from the same section to the same section. Names of
jobs limit it to these; `--paste` only shows what docs/examples has.
"""

import argparse
import json
import re
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.service import linear_spec, service
from shardyard.client import Client
from shardyard.contract.report import decode_report
from shardyard.contract.report_diff import compare_reports
from shardyard.render.diff_text import render_diff
from shardyard.render.report_text import render_report

ROOT: Final = Path(__file__).parents[1]
EXAMPLES: Final = ROOT / "docs" / "examples"
DOCUMENTS: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
#: More than any of the jobs takes.
JOB_SECONDS: Final = 300.0
#: What a document shows of one report or of two, and of a report's JSON.
SHOWN: Final = re.compile(r"(<!-- reports?: (.+?) -->\n```text\n)(.*?)(```)", re.DOTALL)
SHOWN_JSON: Final = re.compile(r"(<!-- part of (\S+) -->\n```json\n)(.*?)(```)", re.DOTALL)
REST: Final = "...\n"

#: Rehearsed: it was written for GPUs.
SCRIPT: Final = """
import torch
from torch import nn

model = nn.DataParallel(nn.Sequential(nn.Linear(5, 2))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(100, 5), batch_size=30)
for _ in range(3):
    for rows in loader:
        optimizer.zero_grad()
        model(rows.cuda()).sum().backward()
        optimizer.step()
"""
#: Under ddp, with four faults: no `set_epoch`, one evaluation that every rank makes by itself, another with rows that
#: count twice, and dropout that is the same on all ranks.
FAULTY_SCRIPT: Final = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, random_split, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
rows = torch.randn(600, 12)
labels = (rows.sum(1) > 0).long()
training, validation, test = random_split(TensorDataset(rows, labels), [400, 99, 101])
loader = DataLoader(training, batch_size=25, sampler=DistributedSampler(training))
evaluations = [
    DataLoader(validation, batch_size=25),
    DataLoader(test, batch_size=25, sampler=DistributedSampler(test, shuffle=False)),
]
model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for evaluation in evaluations:
            correct = sum((model.module(x).argmax(1) == y).sum() for x, y in evaluation)
            dist.all_reduce(correct)
dist.destroy_process_group()
"""
#: Scripts, and how they are submitted.
SCRIPTS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "rehearsed-script": (SCRIPT, {"strategy": "dp", "devices": 3, "rehearse": True}),
    "faults-of-data": (FAULTY_SCRIPT, {"strategy": "ddp", "devices": 2}),
}
#: Of jobs that have no file of their own in examples/jobs.
SPECS: Final[dict[str, dict[str, Any]]] = {
    "ten-for-eight": linear_spec(
        "dp",
        8,
        data={"ref": "random_vectors", "args": {"rows": 100, "features": 5}, "batch_size": 10},
        max_steps=None,
    ),
    "two-ranks": linear_spec(
        "ddp",
        2,
        data={"ref": "random_vectors", "args": {"rows": 101, "features": 5}, "batch_size": 15},
        max_steps=None,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.record_doc_reports", description=__doc__)
    parser.add_argument("names", nargs="*", help="of reports in docs/examples (all)")
    parser.add_argument("--paste", action="store_true", help="run nothing")
    chosen = parser.parse_args()
    if not chosen.paste:
        record(chosen.names or sorted(path.stem for path in EXAMPLES.glob("*.json")))
    for document in DOCUMENTS:
        text = document.read_text()
        fresh = SHOWN_JSON.sub(_show_json, SHOWN.sub(_show_text, text))
        if fresh != text:
            document.write_text(fresh)
            print(f"{document.relative_to(ROOT)}: written")


def record(names: list[str]) -> None:
    """Run the jobs one by one, and store their reports."""
    with service("cpu:8") as started:
        for name in names:
            report = json.loads(run_job(started.client, name))
            (EXAMPLES / f"{name}.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
            print(f"docs/examples/{name}.json: job {report['job_id']}")


def run_job(client: Client, name: str) -> bytes:
    """Its report. Raises RuntimeError where it fails."""
    if name in SCRIPTS:
        source, how = SCRIPTS[name]
        with tempfile.TemporaryDirectory() as directory:
            script = Path(directory) / "train.py"
            script.write_text(source)
            job = client.submit_script(script, **how)
    else:
        job = client.submit(read_spec(name))
    job.wait(JOB_SECONDS)
    if job.status.state != "succeeded":
        raise RuntimeError(f"{name}: the job {job.status.state}")
    return job.report().to_json()


def read_spec(name: str) -> dict[str, Any]:
    """The README's job, that of examples/jobs, or one of `SPECS`."""
    if name in SPECS:
        return SPECS[name]
    if name == "three-of-thirty":
        (shown,) = re.findall(r"job.json <<'EOF'\n(\{.*?\n\})\nEOF", (ROOT / "README.md").read_text(), re.DOTALL)
        spec = json.loads(shown)
    else:
        spec = json.loads((ROOT / "examples" / "jobs" / f"{name}.json").read_bytes())
    assert isinstance(spec, dict)
    return spec


# -- in the documents ------------------------------------------------------------------------------


def _show_text(match: re.Match[str]) -> str:
    head, sources, shown, end = match.groups()
    sides = [decode_report((ROOT / source).read_bytes()) for source in sources.split()]
    whole = render_report(sides[0]) if len(sides) == 1 else render_diff(compare_reports(*sides))
    return f"{head}{REST.join(show_piece(piece, whole) for piece in shown.split(REST))}{end}"


def show_piece(piece: str, whole: str) -> str:
    """The same part of a text: from the section that the piece begins with to the one that it ends with, and of that
    one the entries that the piece has. A piece that begins within a section is left as it is."""
    if not piece.strip():
        return piece
    sections, wanted = _sections(whole), _sections(piece)
    if wanted[0].startswith("  "):
        return piece
    places = [[_title(section) for section in sections].index(_title(one)) for one in (wanted[0], wanted[-1])]
    shown = sections[places[0] : places[1] + 1]
    shown[-1] = "".join(_same_entries(wanted[-1].splitlines(), shown[-1].splitlines(keepends=True)))
    return "\n".join(shown)


def _sections(text: str) -> list[str]:
    return [section.strip("\n") + "\n" for section in re.split(r"\n\n+", text) if section.strip()]


def _title(section: str) -> str:
    """The first words of a section: further on there may be a job's id."""
    return " ".join(section.split("\n", 1)[0].split(" ")[:3])


def _same_entries(wanted: list[str], lines: list[str]) -> list[str]:
    """Of findings those that were shown; of all else every line."""
    if not wanted[0].startswith("Findings"):
        return lines
    keys = {key for line in wanted if (key := _entry_key(line))}
    kept, keep = [], True
    for line in lines:
        key = _entry_key(line)
        keep = key in keys if key else keep
        if keep:
            kept.append(line)
    return kept


def _entry_key(line: str) -> str:
    """A finding's code."""
    found = re.match(r"  (\[\w+\] [\w-]+):", line)
    return found[1] if found else ""


def _show_json(match: re.Match[str]) -> str:
    head, source, shown, end = match.groups()
    whole, part = json.loads((ROOT / source).read_bytes()), json.loads(shown)
    fields = ",\n".join(f'  "{field}": {_field_text(whole[field])}' for field in part)
    return f"{head}{{\n{fields}\n}}\n{end}"


def _field_text(value: Any) -> str:
    """A list of objects has a line for each of them."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        lines = ",\n".join(f"    {json.dumps(one, ensure_ascii=False)}" for one in value)
        return f"[\n{lines}\n  ]"
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    main()
