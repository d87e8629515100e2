"""What a person sees of a line, whatever a program printed."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.files.log_page import clean_for_display


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"plain\ttext", "plain\ttext"),
        ("caf\u00e9 \U0001f600".encode(), "caf\u00e9 \U0001f600"),
        (b"half \xc3", "half \ufffd"),
        (b"nul\x00bell\x07back\x08", "nulbellback"),
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07text", "text"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1bPsixel\x1b\\text", "text"),
        (b"\x1b[Aup\x1b(Bset\x1b=keys", "upsetkeys"),
        (b"cut \x1b[", "cut "),
        (b"cut \x1b", "cut "),
        (b"windows\r", "windows"),
        (b"\r 10%|#   |\r 50%|##  |\r100%|####|", "100%|####|"),
        (b" 10%\r100%\r        \r", "100%"),
        (b"\x1b[A\r  5%\x1b[K", "  5%"),
        ("abc\u202edcba\u2066x\u2028y\u0085z".encode(), "abcdcbaxyz"),
        ("a\u200eb\u200fc\u061cd\ufeffe".encode(), "abcde"),
        (b"", ""),
    ],
)
def test_a_line_is_shown_without_what_a_terminal_would_act_on(raw: bytes, shown: str) -> None:
    assert clean_for_display(raw) == shown


@given(st.binary(max_size=300))
def test_no_control_character_but_the_tab_survives_any_bytes(raw: bytes) -> None:
    shown = clean_for_display(raw)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Zl", "Zp") and c != "\t"]


def test_a_long_line_of_unfinished_escapes_takes_no_long_time() -> None:
    assert clean_for_display(b"\x1b]" * 32_768) == ""
    assert clean_for_display(b"\x1b[" + b"0;" * 32_768) == ""
