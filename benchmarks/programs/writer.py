"""A rank that only prints: `python writer.py FILE` reads a file, says so on stderr, and then writes it to stdout.

The pieces are those of a Python program whose output goes to a pipe: 8 KiB, wherever lines end.
"""

import os
import sys
from pathlib import Path

PIECE_BYTES = 8192


def main() -> None:
    text = memoryview(Path(sys.argv[1]).read_bytes())
    os.write(2, b"!")
    os.read(0, 1)
    for start in range(0, len(text), PIECE_BYTES):
        piece = text[start : start + PIECE_BYTES]
        while piece:
            piece = piece[os.write(1, piece) :]


if __name__ == "__main__":
    main()
