"""Names and messages are other people's: brackets in them are shown, not obeyed."""

import pytest

from shardyard.cli.common import console, table


def test_brackets_in_a_name_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    listing = table("NAME")
    for name in ("a[/b]", "[red]x", ":smile:"):
        listing.add_row(name)

    console().print(listing)

    assert capsys.readouterr().out.split() == ["NAME", "a[/b]", "[red]x", ":smile:"]
