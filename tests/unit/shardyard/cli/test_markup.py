"""Names and messages are other people's: brackets in them are shown, not obeyed."""

import pytest
from rich.text import Text

from shardyard.cli.common import make_console, make_table


def test_brackets_in_a_name_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    listing = make_table("NAME")
    for name in ("a[/b]", "[red]x", ":smile:"):
        listing.add_row(name)

    make_console().print(listing)

    assert capsys.readouterr().out.split() == ["NAME", "a[/b]", "[red]x", ":smile:"]


def test_a_terminal_is_told_nothing_by_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "a\x1b]0;mine\x07\x1b[31mb\x9b2J\u202ec"
    listing = make_table("NAME")
    listing.add_row(hostile)
    out = make_console()

    out.print(listing)
    out.print(hostile)
    out.print(Text.assemble((hostile, "bold")))

    bell, *rest = capsys.readouterr().out.split()[1:]
    assert bell == r"a\x1b]0;mine\x07\x1b[31mb\x9b2J\u202ec"
    assert rest == [r"a\x1b]0;mine\x1b[31mb\x9b2J\u202ec"] * 2, "rich takes the bell out by itself"


def test_columns_are_as_wide_as_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    listing = make_table("NAME", "STATE")
    for name in ("gpj\u202eexe", "plain"):
        listing.add_row(name, "queued")

    make_console().print(listing)

    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == r"gpj\u202eexe  queued"
    assert len({line.index("queued") for line in lines[1:]}) == 1
