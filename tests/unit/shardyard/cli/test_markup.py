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

    assert capsys.readouterr().out.split() == ["NAME", *["a]0;mine[31mb2Jc"] * 3]
