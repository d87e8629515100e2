import os
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardyard.contract.plain_text import WITHOUT_UNSAFE, describe_unsafe, escape_unsafe, find_unsafe

UNSAFE = [
    *(*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F)),
    *(*range(0x2066, 0x206A), 0xFEFF, 0xD800, 0xDBFF, 0xDC00, 0xDFFF),
]


@pytest.mark.parametrize("code", UNSAFE, ids=hex)
def test_a_name_must_not_have_what_a_screen_obeys(code: int) -> None:
    name = f"train {chr(code)}model"
    assert find_unsafe(name) == chr(code)
    assert f"U+{code:04X} (" in describe_unsafe(chr(code))
    assert describe_unsafe(chr(code)).isprintable()
    assert escape_unsafe(name).isprintable()
    assert find_unsafe(escape_unsafe(name)) is None
    assert name.translate(WITHOUT_UNSAFE) == (name if code == 0x09 else "train model")


@pytest.mark.parametrize(
    "name",
    [
        *("plain", "größe", "模型", "שלום עולם", "مرحبا", "👩\u200d🔬", "a\u0301", "a\u00a0b", "soft\u00adhyphen", ""),
        *("zero\u200bwidth", "<b>", r"back\\slash", "\ue000"),
    ],
)
def test_other_text_is_left_as_it_is(name: str) -> None:
    assert find_unsafe(name) is None
    assert escape_unsafe(name) == name


def test_the_character_is_named() -> None:
    assert "RIGHT-TO-LEFT OVERRIDE" in describe_unsafe("\u202e")
    assert "a control character" in describe_unsafe("\x1b")
    assert "half of a character" in describe_unsafe("\ud800")


def test_bytes_of_a_file_name_that_are_no_text_are_shown_as_bytes() -> None:
    assert escape_unsafe(os.fsdecode(b"model\xff\n.pt")) == r"model\xff\x0a.pt"
    assert escape_unsafe("a\u202eb") == r"a\u202eb"
    assert escape_unsafe("one\ttab\nand line\x1b", keep="\t\n") == "one\ttab\nand line\\x1b"


@given(st.text())
def test_whatever_is_shown_can_be_sent_and_moves_no_cursor(text: str) -> None:
    shown = escape_unsafe(text)
    shown.encode()
    assert not [letter for letter in shown if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")]
