from pathlib import Path

import pytest

from benchmarks.harness.results import DOC_PICTURES
from tests.support.svg_reading import parsed
from tools.draw_doc_pictures import DOCS, DRAWN, pictures


@pytest.mark.parametrize("name", [name for name, *_ in DRAWN])
def test_pictures_in_the_documents_are_fresh(name: str) -> None:
    drawn = {path.stem: text for path, text in pictures()}
    kept = (DOCS / "pictures" / f"{name}.svg").read_text()
    parsed(kept)
    assert kept == drawn[name], "draw them again: python -m tools.draw_doc_pictures"


def test_no_picture_in_the_documents_is_left_over() -> None:
    measured = {Path(file).stem for *_, file in DOC_PICTURES}
    assert {path.stem for path in (DOCS / "pictures").glob("*.svg")} == {name for name, *_ in DRAWN} | measured
