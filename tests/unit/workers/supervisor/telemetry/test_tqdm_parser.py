"""Progress bars are read from what tqdm really printed: the texts here have the forms that tqdm 4.70 gives."""

import pytest

from workers.supervisor.telemetry.output_tail import KEPT_BYTES, OutputTails
from workers.supervisor.telemetry.tqdm_parser import TqdmBar, TqdmBars, parse_bar

PLAIN = (
    "\r  0%|          | 0/4 [00:00<?, ?it/s]\r 25%|██▌       | 1/4 [00:00<00:00, 19.96it/s]"
    "\r 50%|█████     | 2/4 [00:00<00:00, 19.93it/s]"
)
NESTED = (
    "\repochs:   0%|          | 0/2 [00:00<?, ?it/s]\n\rtrain:   0%|          | 0/3 [00:00<?, ?it/s]\x1b[A"
    "\n\rtrain:  33%|███▎      | 1/3 [00:00<00:00, 19.96it/s]\x1b[A"
)
INNER_CLOSED = f"\n\r{' ' * 52}\x1b[A\repochs:  50%|█████     | 1/2 [00:02<00:02,  6.62it/s]"


@pytest.mark.parametrize(
    ("line", "bar"),
    [
        (" 25%|██▌       | 1/4 [00:00<00:07, 19.96it/s]", TqdmBar(1, 4, "it", 7)),
        (" 25%|##5       | 1/4 [00:00<00:00, 19.94it/s]", TqdmBar(1, 4, "it", 0)),
        ("  0%|          | 0/4 [00:00<?, ?batch/s]", TqdmBar(0, 4, "batch", None)),
        (" 25% 1/4 [00:00<00:00, 19.96it/s]", TqdmBar(1, 4, "it", 0)),
        ("Epoch 1/3:  50%|▌| 2/4 [00:00<00:00, 19.", TqdmBar(2, 4, "it", 0)),
        (
            "train:  40%|####      | 4/10 [1:00:01<1 day, 2:00:02,  1.50s/batch, loss=0.5]",
            TqdmBar(4, 10, "batch", 93_602),
        ),
        (
            " 50%|█████     | 2.00M/4.00M [00:00<00:00, 572GB/s, acc=3/4, loss=0.5]",
            TqdmBar(2_000_000, 4_000_000, "B", 0),
        ),
        (" 50%|#####     | 2/4 [00:01<00:01,  1.00 rows/s]", TqdmBar(2, 4, "rows", 1)),
        ("3it [00:00, 19.81it/s]", TqdmBar(3, None, "it", None)),
        ("reading: 12rows [00:10, ?rows/s]", TqdmBar(12, None, "rows", None)),
    ],
)
def test_a_bar_is_read_in_every_form_that_tqdm_gives_it(line: str, bar: TqdmBar) -> None:
    assert parse_bar(line) == bar


@pytest.mark.parametrize(
    "line",
    [
        "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.300000",
        "accuracy 40% | 4/10 correct",
        "step 4/10 [ok]",
        "100%",
        "",
    ],
)
def test_what_only_looks_like_a_bar_is_none(line: str) -> None:
    assert parse_bar(line) is None


def read(*texts: str) -> tuple[TqdmBar, ...]:
    bars = TqdmBars()
    for text in texts:
        bars.read_text(text)
    return bars.open_bars


def test_the_latest_state_of_a_bar_counts() -> None:
    assert read(PLAIN) == (TqdmBar(2, 4, "it", 0),)


def test_a_bar_inside_another_is_told_from_it() -> None:
    assert read(NESTED) == (TqdmBar(0, 2, "it", None), TqdmBar(1, 3, "it", 0))


def test_the_outer_bar_stays_known_while_only_the_inner_one_moves() -> None:
    moved = "\n\rtrain:  67%|██████▋   | 2/3 [00:00<00:00, 19.91it/s]\x1b[A"
    assert read(NESTED, moved) == (TqdmBar(0, 2, "it", None), TqdmBar(2, 3, "it", 0))


def test_an_inner_bar_ends_when_the_outer_one_moves_on() -> None:
    assert read(NESTED, INNER_CLOSED) == (TqdmBar(1, 2, "it", 2),)


def test_a_terminal_ends_lines_in_its_own_way() -> None:
    assert read(NESTED.replace("\n", "\r\n")) == read(NESTED)


# -- the end of the output -------------------------------------------------------------------------


def tails(*pieces: tuple[str, bytes]) -> OutputTails:
    told = OutputTails()
    for stream, data in pieces:
        told.add_output(0, "stdout" if stream == "out" else "stderr", 0, data)
    return told


def test_bars_are_found_after_a_flood_of_other_output() -> None:
    told = tails(("err", b"noise\n" * 10_000), ("out", b"more\n" * 10_000), ("err", PLAIN.encode()))
    assert told.open_bars() == (TqdmBar(2, 4, "it", 0),)


def test_a_bar_that_has_scrolled_away_is_still_known() -> None:
    told = tails(("err", PLAIN.encode()))
    told.open_bars()
    told.add_output(0, "stderr", 0, b"a warning\n" * KEPT_BYTES)
    assert told.open_bars() == (TqdmBar(2, 4, "it", 0),)


def test_a_bar_of_which_only_the_end_is_kept_is_not_misread() -> None:
    line = " 50%|█████     | 1200/2400 [00:00<00:00, 19.93it/s]".encode()
    assert tails(("err", b"x" * 10 + line + b"y" * (KEPT_BYTES - 30))).open_bars() == ()


def test_the_first_rank_that_draws_a_bar_speaks_for_all() -> None:
    told = OutputTails()
    for rank, done in ((1, 3), (0, 2)):
        told.add_output(rank, "stderr", rank, f"\r 25%|##5       | {done}/4 [00:00<00:00, 19.94it/s]".encode())
    assert told.open_bars() == (TqdmBar(2, 4, "it", 0),)


def test_the_last_line_is_the_program_s_own_and_not_blank() -> None:
    told = tails(("out", b"first\nUnable to locate sufficient gpus\n"), ("out", b"\n  \n"), ("err", b"a warning\n"))
    assert told.last_line() == "Unable to locate sufficient gpus"


def test_the_last_line_is_that_of_stderr_where_stdout_is_silent() -> None:
    assert tails(("err", b"\x1b[31mnothing to do\x1b[0m\r\n")).last_line() == "nothing to do"


def test_there_is_no_last_line_without_output() -> None:
    assert OutputTails().last_line() == ""
