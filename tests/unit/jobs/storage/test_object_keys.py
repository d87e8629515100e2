"""Keys of paths: what object stores take, and never one for two paths."""

from hypothesis import given
from hypothesis import strategies as st

from jobs.storage.object_keys import key_of, parse_key, path_of, segment_key

NAMES = st.text(st.sampled_from("ab\\.\n\t\x01\x7f\uf0250123456789cdef/ %"), min_size=1)


@given(NAMES)
def test_a_path_comes_back_from_its_key(path: str) -> None:
    key = key_of(path)
    assert path_of(key) == path
    assert parse_key(segment_key(path, 7)) == (path, 7)
    assert not any(ord(character) < 0x20 or character in "\x7f\\" for character in key)


@given(NAMES)
def test_directories_of_a_path_are_those_of_its_key(path: str) -> None:
    assert [path_of(part) for part in key_of(path).split("/")] == path.split("/")


def test_most_paths_are_their_keys() -> None:
    for path in ("jobs/default/0a/1/logs/device-0.log", "files/a b/%2e%2e/#?&=/ä中\N{OK HAND SIGN}"):
        assert key_of(path) == path
        assert parse_key(path) == (path, None)
