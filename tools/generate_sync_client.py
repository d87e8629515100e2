"""Writes `shardyard/client/client.py` from `async_client.py`: the same client, which blocks where the other awaits.

    python -m tools.generate_sync_client            write it
    python -m tools.generate_sync_client --check    end with exit code 1 where it is not up to date

The result is checked in, so editors, type checkers and readers need nothing of this.
"""

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parents[1] / "shardyard" / "client"
SOURCE, TARGET = CLIENT / "async_client.py", CLIENT / "client.py"

HEAD = '''"""`Client` and `Job`: they block until the service has answered.

Generated from `async_client.py` by `python -m tools.generate_sync_client`: change that file, not this one.
"""
'''
#: Pattern and replacement, in this order.
SUBSTITUTIONS = (
    (r'\A""".*?"""\n', HEAD),
    (r"import anyio\.to_thread\n", ""),
    (r"anyio\.to_thread\.run_sync\(([\w.]+), ", r"\1("),
    (r"\(await ((?:[\w.]+)\((?:[^()]|\([^()]*\))*\))\)", r"\1"),
    (r"\bawait ", ""),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"for (\w+) in (\w+):\n\s+yield \1\n", r"yield from \2\n"),
    (r"\bAsyncGenerator\[(.+?), None\]", r"Generator[\1, None, None]"),
    (r"\baclosing\b", "closing"),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\bAwaitedJobHandle\b", "BlockingJobHandle"),
    (r"\bAsyncTransport\b", "BlockingTransport"),
    (r"\ban `Async(?=\w)", "a `"),
    (r"\bAsync(?=BaseTransport|Client|Generator|Iterator|Job)", ""),
)


def main(arguments: list[str]) -> int:
    made = format_source(convert_to_sync(SOURCE.read_text()))
    if "--check" not in arguments:
        TARGET.write_text(made)
        return 0
    if TARGET.read_text() == made:
        return 0
    print(f"{TARGET} is not up to date: python -m tools.generate_sync_client", file=sys.stderr)
    return 1


def convert_to_sync(source: str) -> str:
    for pattern, replacement in SUBSTITUTIONS:
        source = re.sub(pattern, replacement, source, flags=re.DOTALL if pattern.startswith(r"\A") else 0)
    return source


def format_source(source: str) -> str:
    """Sort the imports and format, as `make format` does."""
    for command in (["check", "--fix", "--select", "I", "--quiet"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(TARGET), "-"]
        source = subprocess.run(ruff, input=source, capture_output=True, text=True, check=True).stdout
    return source


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
