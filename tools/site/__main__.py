"""`python -m tools.site [DIRECTORY]` builds the site of the documents, by default into `site/`: `make docs`.

It needs no network, and neither does what it builds. A link or an anchor that leads nowhere, a page that is missing in
`mkdocs.yml`, and anything that a browser would load from another host are errors.
"""

import argparse
import sys
import time
from pathlib import Path

from tools.site.build import build_site
from tools.site.pages import ROOT
from tools.site.translations import pages_behind


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.site", description="Builds the site of the documents.")
    parser.add_argument("directory", type=Path, nargs="?", default=ROOT / "site")
    into = parser.parse_args().directory
    started = time.monotonic()
    problems = build_site(into)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if not problems:
        took = time.monotonic() - started
        print(f"{into}: {len(list(into.rglob('*.html')))} pages in {took:.1f} s")
        for page in pages_behind():
            print(f"note: {page.relative_to(ROOT)} is behind its original; python -m tools.site.translations says more")
        print(f"look at it:  python3 -m http.server --bind 127.0.0.1 --directory {into} 8080")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
