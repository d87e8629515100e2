"""The fenced blocks of a page of the documents, and what a test does with each.

```sh                      typed, in the directory of the page
```python title="a.py"     written to that file; so are yaml, toml and json
```python                  a cell of the page's notebook
```text title="prints"     what the cell or the commands before it print: these lines, in this order. `...` is
                           anything, and spaces are not counted
<!-- not run: why -->      in the line before a block: nothing
"""

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

_BLOCK = re.compile(
    r"(?:^[ ]*<!-- not run: (?P<why>[^\n]+) -->\n)?"
    r"^(?P<indent>[ ]*)(?P<fence>```+)(?P<language>\w*)(?: title=\"(?P<title>[^\"\n]+)\")?[ ]*\n"
    r"(?P<text>.*?)^(?P=indent)(?P=fence)$",
    re.DOTALL | re.MULTILINE,
)
PRINTS = "prints"


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    text: str
    why_not_run: str = ""

    @property
    def is_output(self) -> bool:
        return self.language == "text" and self.title == PRINTS

    @property
    def is_file(self) -> bool:
        return bool(self.title) and not self.is_output


def read_blocks(page: Path) -> list[Block]:
    return [
        Block(found["language"], found["title"] or "", dedent(found["text"]), found["why"] or "")
        for found in _BLOCK.finditer(page.read_text())
    ]


def reader_environment(data_dir: Path, home: Path) -> dict[str, str]:
    """Of somebody who has activated this environment, and whose service is the one with `data_dir`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SHARDYARD_")}
    return kept | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SHARDYARD_DATA_DIR": str(data_dir),
        "IPYTHONDIR": str(home / "ipython"),
        "NO_COLOR": "1",
        "COLUMNS": "100",
    }


def missing_lines(shown: str, printed: str) -> Iterator[str]:
    """Lines of a page that were not printed, or not in this order."""
    rest = [_squeezed(line) for line in printed.splitlines()]
    for line in filter(str.strip, shown.splitlines()):
        pattern = re.compile(".*".join(re.escape(part.strip()) for part in _squeezed(line).split("...")))
        at = next((number for number, candidate in enumerate(rest) if pattern.search(candidate)), None)
        if at is None:
            yield line
        else:
            rest = rest[at + 1 :]


def _squeezed(line: str) -> str:
    return re.sub(r"\s+", " ", line).strip()
