"""`python -m tools.draw_doc_pictures` draws the pictures of the documents again, from the reports in docs/examples."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shardyard.contract.report import decode_report
from shardyard.render.svg.heat_map import draw_heat_map
from shardyard.render.svg.palette import By

DOCS: Final = Path(__file__).parents[1] / "docs"
#: The picture's name, the report that it shows, by what, and the output device of the report's job.
DRAWN: Final[tuple[tuple[str, str, By, int | None], ...]] = (
    ("ten-for-eight", "ten-for-eight", "rows", 0),
    ("rows-on-8-devices", "rows-on-8-devices", "rows", 0),
    ("straggler-on-rank-1", "straggler-on-rank-1", "wait", None),
)


def pictures() -> Iterator[tuple[Path, str]]:
    """Where each one is, and what should be there."""
    for name, example, by, output_device in DRAWN:
        found = decode_report((DOCS / "examples" / f"{example}.json").read_bytes())
        yield (
            DOCS / "pictures" / f"{name}.svg",
            draw_heat_map(found, by, name=example, output_device=output_device) + "\n",
        )


def main() -> None:
    for path, drawn in pictures():
        path.parent.mkdir(exist_ok=True)
        path.write_text(drawn)
        print(f"{path.relative_to(DOCS.parent)}: {len(drawn.encode()):,} bytes")


if __name__ == "__main__":
    main()
