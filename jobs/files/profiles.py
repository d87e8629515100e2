"""`profile.json`, beside the traces of a profile: which ranks have a trace, and why others have none."""

from contextlib import suppress
from pathlib import Path

import msgspec

from jobs.files import paths
from jobs.support.fs import read_plain_file, replace_file
from shardyard.contract.responses import ProfileView

RECORD_NAME = "profile.json"
MAX_RECORD_BYTES = 1024 * 1024
_decoder = msgspec.json.Decoder(ProfileView)


def write_profile(directory: Path, view: ProfileView) -> None:
    """Raises OSError."""
    replace_file(directory / RECORD_NAME, msgspec.json.encode(view))


def list_profiles(attempt: Path) -> list[ProfileView]:
    """The profiles of an attempt that have ended, in their order. What cannot be read is left out."""
    found = []
    for file in paths.profiles_dir(attempt).glob(f"*/{RECORD_NAME}"):
        with suppress(OSError, msgspec.MsgspecError):
            found.append(_decoder.decode(read_plain_file(file, MAX_RECORD_BYTES)))
    return sorted(found, key=lambda one: one.number)
