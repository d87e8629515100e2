"""What training programs print, made up: `python training_output.py RANK LINES` writes it, the same for the same rank.

Four programs' habits in turn (a loop that prints, the logging module, a progress bar, a trainer that prints
dictionaries), with warnings, tables, checkpoints and tracebacks between. Numbers, times and hashes differ from line to
line, as in the logs of real runs: what compresses here is what compresses there, the words around them.
"""

import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice

LINES_OF_A_HABIT = (80, 400)
EPOCH_STEPS = 782


class Run:
    """Where a made-up run stands: its step, its clock, its loss."""

    def __init__(self, rank: int) -> None:
        self.chance = random.Random(1000 + rank)
        self.rank = rank
        self.step = 0
        self.clock = 36_000.0 + self.chance.random()
        self.rate = self.chance.uniform(20, 40)

    def advance(self) -> None:
        self.step += 1
        self.clock += self.chance.gauss(1, 0.05) / self.rate

    @property
    def epoch(self) -> int:
        return self.step // EPOCH_STEPS

    @property
    def loss(self) -> float:
        return 2.3 * math.exp(-self.step / 4000) + 0.3 + abs(self.chance.gauss(0, 0.08))

    @property
    def time(self) -> str:
        whole, part = divmod(self.clock, 1)
        return f"2026-11-21 {time.strftime('%H:%M:%S', time.gmtime(whole))},{int(part * 1000):03d}"


def printed(run: Run) -> Iterator[str]:
    run.advance()
    chance = run.chance
    yield (
        f"step {run.step:6d} | loss {run.loss:.4f} | lr {3e-4 * math.exp(-run.step / 9000):.3e} | "
        f"grad norm {chance.lognormvariate(0, 0.4):.3f} | {1e3 / run.rate + chance.gauss(0, 2):.1f} ms | "
        f"{run.rate * 64 * chance.gauss(1, 0.04):.1f} samples/s"
    )
    if run.step % 100 == 0:
        yield from evaluated(run)


def logged(run: Run) -> Iterator[str]:
    run.advance()
    chance = run.chance
    yield (
        f"{run.time} - trainer - INFO - Epoch: [{run.epoch}][{run.step % EPOCH_STEPS:>4}/{EPOCH_STEPS}]  "
        f"Time {1 / run.rate + chance.gauss(0, 0.002):.3f} ({1 / run.rate:.3f})  Data {chance.expovariate(400):.4f}  "
        f"Loss {run.loss:.4e}  Acc@1 {100 * math.exp(-run.loss) + chance.gauss(0, 2):6.2f}  "
        f"mem {chance.randrange(9000, 9400)}MB"
    )
    if run.step % 250 == 0:
        digest = f"{chance.getrandbits(64):016x}"
        size = f"{chance.uniform(95, 99):.1f} MB"
        yield f"{run.time} - trainer - INFO - saved /data/runs/r50/step_{run.step:07d}.pt ({size}, {digest})"


def barred(run: Run) -> Iterator[str]:
    run.advance()
    done = run.step % EPOCH_STEPS / EPOCH_STEPS
    blocks, rest = divmod(int(done * 80), 8)
    bar = ("█" * blocks + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(10)
    spent = done * EPOCH_STEPS / run.rate
    left = (1 - done) * EPOCH_STEPS / run.rate
    yield (
        f"Epoch {run.epoch}: {done:4.0%}|{bar}| {run.step % EPOCH_STEPS}/{EPOCH_STEPS} "
        f"[{int(spent // 60):02d}:{int(spent % 60):02d}<{int(left // 60):02d}:{int(left % 60):02d}, "
        f"{run.rate * run.chance.gauss(1, 0.03):.2f}it/s, loss={run.loss:.3g}, v_num=3]"
    )


def as_dictionaries(run: Run) -> Iterator[str]:
    run.advance()
    chance = run.chance
    yield str(
        {
            "loss": round(run.loss, 4),
            "grad_norm": chance.lognormvariate(0, 0.4),
            "learning_rate": 5e-05 * max(0.0, 1 - run.step / 1e6),
            "epoch": round(run.step / EPOCH_STEPS, 2),
        }
    )


def evaluated(run: Run) -> Iterator[str]:
    yield f"evaluation at step {run.step}"
    yield "class        precision    recall  f1-score   support"
    for name in ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"):
        a, b = run.chance.uniform(0.5, 0.99), run.chance.uniform(0.5, 0.99)
        yield f"{name:<12} {a:9.4f} {b:9.4f} {2 * a * b / (a + b):9.4f} {run.chance.randrange(900, 1100):9d}"


def complained(run: Run) -> Iterator[str]:
    yield (
        f"/usr/lib/python3.11/site-packages/torch/nn/modules/module.py:{run.chance.randrange(900, 1900)}: UserWarning: "
        "Using a non-full backward hook when the forward contains multiple autograd Nodes is deprecated."
    )
    yield "  self._maybe_warn_non_full_backward_hook(args, result, grad_fn)"


def failed(run: Run) -> Iterator[str]:
    rows, columns = run.chance.randrange(2, 4096), run.chance.randrange(2, 4096)
    yield f"[rank{run.rank}]: batch {run.step} was left out:"
    yield "Traceback (most recent call last):"
    for _ in range(run.chance.randrange(3, 7)):
        place = run.chance.choice(("train.py", "model/attention.py", "data/loader.py", "model/blocks.py"))
        name = run.chance.choice(("forward", "step", "collate", "attend"))
        yield f'  File "/workspace/{place}", line {run.chance.randrange(20, 900)}, in {name}'
        yield f"    x = self.{name}_{run.chance.randrange(12)}(x, mask=mask[:, :{run.chance.randrange(64, 2048)}])"
    yield f"RuntimeError: mat1 and mat2 shapes cannot be multiplied ({rows}x{columns} and {columns + 1}x{rows})"


HABITS: tuple[Callable[[Run], Iterator[str]], ...] = (printed, logged, barred, as_dictionaries)


def lines(rank: int) -> Iterator[str]:
    """Without an end, and without newlines."""
    run = Run(rank)
    while True:
        habit = run.chance.choice(HABITS)
        for _ in range(run.chance.randrange(*LINES_OF_A_HABIT)):
            yield from habit(run)
            if run.chance.random() < 0.004:
                yield from run.chance.choice((complained, failed))(run)


def text(rank: int, count: int) -> bytes:
    """So many lines, each with its newline."""
    return "".join(f"{line}\n" for line in islice(lines(rank), count)).encode()


if __name__ == "__main__":
    sys.stdout.buffer.write(text(int(sys.argv[1]), int(sys.argv[2])))
