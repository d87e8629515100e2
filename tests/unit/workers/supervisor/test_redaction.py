"""What is replaced of the values of secrets, and where."""

import base64
import json
from itertools import pairwise
from typing import Any, get_args
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.protocol import packets
from jobs.protocol.packets import PacketDecoder, encode_packet
from jobs.protocol.records import MetricSample, Note, Outcome, ProfilePart, Result, Step
from workers.supervisor.redaction import SecretRedactor

HF = "hf_Zq7/wv+T4mB2=nXk8"
REDACTOR = SecretRedactor({"hf": HF, "short": "1234567", "pin": "12345678"})


def clean(text: str, **values: str) -> str:
    return SecretRedactor(values or {"hf": HF}).clean_text(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"token={HF}", "token=[secret hf]"),
        (f"{HF}{HF} {HF}", "[secret hf][secret hf] [secret hf]"),
        (f"https://user:{quote(HF, safe='')}@host", "https://user:[secret hf]@host"),
        (f"{HF[:-1]} {HF[1:]}", f"{HF[:-1]} {HF[1:]}"),
        ("nothing", "nothing"),
    ],
)
def test_values_are_replaced_wherever_they_stand(text: str, shown: str) -> None:
    assert clean(text) == shown


@pytest.mark.parametrize("before", ["", "u", "us", "user:"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_base64_is_found_wherever_the_value_begins_in_it(before: str, encode: Any) -> None:
    encoded = encode(f"{before}{HF} and more".encode()).decode()
    shown = clean(f"Authorization: Basic {encoded}")
    assert "[secret hf]" in shown
    assert len(shown.replace("[secret hf]", "")) <= len(f"Authorization: Basic {encoded}") - len(HF)


def test_a_value_is_found_as_programs_quote_it() -> None:
    value = 'two\nlines "quoted" \\ ünï'
    for written in (value, json.dumps(value), json.dumps(value, ensure_ascii=False), repr(value), quote(value)):
        assert value not in clean(written, key=value)
        assert "[secret key]" in clean(written, key=value)
        assert not {"quoted", "lines", "ünï", "xfc"} & set(clean(written, key=value).replace("\\", " ").split())


def test_long_lines_of_a_value_are_replaced_one_by_one() -> None:
    pem = "-----BEGIN KEY-----\nMIIEowIBAAKCAQ\nshort\n"
    assert clean("| MIIEowIBAAKCAQ |", key=pem) == "| [secret key] |"
    assert clean("short", key=pem) == "short"
    assert clean(f"<{pem}>", key=pem) == "<[secret key]>"


def test_values_of_less_than_eight_characters_are_left_alone() -> None:
    assert REDACTOR.clean_text("1234567 and 12345678") == "1234567 and [secret pin]"


def test_the_longer_of_two_values_that_overlap_is_replaced_first() -> None:
    assert clean("prefix-secret-suffix", inner="prefix-secret", outer="prefix-secret-suffix") == "[secret outer]"


# -- output that comes in pieces -------------------------------------------------------------------


@given(st.lists(st.integers(0, 60), max_size=6))
def test_a_value_is_found_however_output_is_cut(cuts: list[int]) -> None:
    text = f"a line\nlogin h {HF}, hf_ and {HF}\nhf_Zq".encode()
    redactor, shown, places = SecretRedactor({"hf": HF}), b"", sorted({0, *cuts, len(text)})
    for begin, end in pairwise(places):
        shown += redactor.clean_output(7, text[begin:end])
    shown += redactor.end_output(7)
    assert shown == b"a line\nlogin h [secret hf], hf_ and [secret hf]\nhf_Zq"


def test_only_an_end_that_may_become_a_value_is_held() -> None:
    redactor = SecretRedactor({"hf": HF})
    assert redactor.clean_output(7, b"epoch 1 hf") == b"epoch 1 "
    assert redactor.clean_output(8, b"another pipe") == b"another pipe"
    assert redactor.clean_output(7, b"olk") == b"hfolk"
    assert redactor.clean_output(7, b"a line that ends hf\n") == b"a line that ends hf\n"
    assert redactor.end_output(7) == b""


# -- records ---------------------------------------------------------------------------------------


def sent(*packet: packets.AnyRecord) -> list[packets.AnyRecord]:
    decoder = PacketDecoder()
    decoder.clean = REDACTOR.clean_packet
    return [record for found in decoder.feed(encode_packet(packet)) for record in found]


def test_every_text_of_a_record_is_cleaned() -> None:
    assert sent(
        Note("field", f"because of {HF}"),
        Result(0.5, {f"loss {HF}": 1.0}),
        MetricSample(0, HF, 3, 0.25, 5.0),
        Outcome(1, 1, "code_error", f"bad {HF}", f'File "x"\n{HF!r}'),
    ) == [
        Note("field", "because of [secret hf]"),
        Result(0.5, {"loss [secret hf]": 1.0}),
        MetricSample(0, "[secret hf]", 3, 0.25, 5.0),
        Outcome(1, 1, "code_error", "bad [secret hf]", "File \"x\"\n'[secret hf]'"),
    ]


def test_numbers_bytes_and_other_records_stay_as_they_are() -> None:
    step = Step(12345678, 0, "train", (0,), 12345678.0, 0.5, flop={"float32": (12345678,)})
    part = ProfilePart(1, HF.encode())
    assert sent(Note("field", HF), step, part) == [Note("field", "[secret hf]"), step, part]


def test_records_of_every_kind_come_through_unchanged() -> None:
    """Cleaning takes a record apart and makes it anew, whatever it holds."""
    for kind in get_args(packets.AnyRecord):
        whole = kind(*(_some(field.type) for field in msgspec.structs.fields(kind)))
        assert sent(Note("", HF), whole)[1] == whole, kind


def _some(kind: Any) -> Any:
    """A value of a type that records have."""
    simple = {int: 7, float: 0.5, str: "text", bool: True, bytes: b"\0", type(None): None}
    if kind in simple:
        return simple[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(*(_some(field.type) for field in msgspec.structs.fields(kind)))
    arguments = get_args(kind)
    if getattr(kind, "__origin__", None) is dict:
        return {_some(arguments[0]): _some(arguments[1])}
    if getattr(kind, "__origin__", None) is tuple:
        return tuple(_some(one) for one in arguments if one is not Ellipsis)
    return _some(arguments[0])  # of a union


def test_a_packet_without_a_value_is_passed_on_as_it_is() -> None:
    packet = (Note("field", "nothing"),)
    assert REDACTOR.clean_packet(encode_packet(packet), packet) is packet
