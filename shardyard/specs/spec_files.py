"""Job specs in files: JSON, which is sent as it is written, or YAML."""

import os
import sys
from pathlib import Path

from shardyard.contract.errors import InvalidRequest
from shardyard.specs.yaml_text import yaml_to_json

YAML_SUFFIXES = (".yaml", ".yml")


def read_spec_file(file: str | os.PathLike[str]) -> bytes:
    """The job spec in a file as JSON; "-" is standard input.

    Raises:
        InvalidRequest: the file cannot be read, or is neither JSON nor YAML.
    """
    try:
        written = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read the job spec {os.fspath(file)}: {error.strerror}") from error
    return spec_to_json(written, "standard input" if file == "-" else os.fspath(file))


def spec_to_json(written: bytes, what: str) -> bytes:
    """What begins like JSON is sent as it is: the service says where it is wrong."""
    begins = written.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if not what.endswith(YAML_SUFFIXES) and begins in (b"{", b"[", b'"', b""):
        return written
    return yaml_to_json(written, what)
