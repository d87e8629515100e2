"""Writes the blocking client from the one that awaits: in `shardyard/client`, `client.py`, `webhooks.py` and
`groups/methods.py` from `async_client.py`, `async_webhooks.py` and `groups/async_methods.py`.

    python -m tools.generate_sync_client            write it
    python -m tools.generate_sync_client --check    end with exit code 1 where it is not up to date

The result is checked in, so editors, type checkers and readers need nothing of this.
"""

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parents[1] / "shardyard" / "client"

CLIENT_HEAD = '''"""`Client` and `Job`: they block until the service has answered.

Generated from `async_client.py` by `python -m tools.generate_sync_client`: change that file, not this one.
"""
'''
WEBHOOKS_HEAD = '''"""The methods of `Client` that are about webhooks.

Generated from `async_webhooks.py` by `python -m tools.generate_sync_client`: change that file, not this one.
"""
'''
GROUPS_HEAD = '''"""The methods of `Client` that are about comparisons and sweeps.

Generated from `async_methods.py` by `python -m tools.generate_sync_client`: change that file, not this one.
"""
'''
#: Source, target, and the first lines of that.
FILES = (
    ("async_client.py", "client.py", CLIENT_HEAD),
    ("async_webhooks.py", "webhooks.py", WEBHOOKS_HEAD),
    ("groups/async_methods.py", "groups/methods.py", GROUPS_HEAD),
)
#: Pattern and replacement, in this order.
SUBSTITUTIONS = (
    (r'\A""".*?"""\n', ""),
    (r"\bshardyard\.client\.async_webhooks\b", "shardyard.client.webhooks"),
    (r"\bgroups\.async_methods\b", "groups.methods"),
    (r"import anyio\.to_thread\n", ""),
    (r"anyio\.to_thread\.run_sync\(([\w.]+), ", r"\1("),
    (r"\(await ((?:[\w.]+)\((?:[^()]|\([^()]*\))*\))\)", r"\1"),
    (r"\bawait ", ""),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"for (\w+) in (\w+):\n\s+yield \1\n", r"yield from \2\n"),
    (r"\bAsyncGenerator\[(.+?), None\]", r"Generator[\1, None, None]"),
    (r"\baclosing\b", "closing"),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\bAwaited(?=JobHandle|Pages)", "Blocking"),
    (r"\bAsyncTransport\b", "BlockingTransport"),
    (r"\ban `Async(?=\w)", "a `"),
    (r"\bAsync(?=BaseTransport|Client|Generator|Iterator|Job|WebhookMethods|GroupMethods)", ""),
)


def main(arguments: list[str]) -> int:
    stale = []
    for source, target, head in FILES:
        made = format_source(head + convert_to_sync((CLIENT / source).read_text()))
        if "--check" not in arguments:
            (CLIENT / target).write_text(made)
        elif (CLIENT / target).read_text() != made:
            stale.append(target)
    if stale:
        print(f"{', '.join(stale)}: not up to date: python -m tools.generate_sync_client", file=sys.stderr)
    return 1 if stale else 0


def convert_to_sync(source: str) -> str:
    for pattern, replacement in SUBSTITUTIONS:
        source = re.sub(pattern, replacement, source, flags=re.DOTALL if pattern.startswith(r"\A") else 0)
    return source


def format_source(source: str) -> str:
    """Sort the imports and format, as `make format` does."""
    for command in (["check", "--fix", "--select", "I", "--quiet"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(CLIENT / "client.py"), "-"]
        source = subprocess.run(ruff, input=source, capture_output=True, text=True, check=True).stdout
    return source


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
