"""Parts of every picture: the SVG document, its title and description, and the hatching of idle cells."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardyard.render.svg.chart_css import chart_sheet
from shardyard.render.svg.markup import Markup, element


@dataclass(frozen=True, slots=True)
class PictureFrame:
    """Where a picture goes. `heading`: with title and sentences, for a picture that stands alone, or bare, for a page
    that says them itself and has the style sheet. `narrow`: for a telephone. `ids` tells a page's pictures apart."""

    heading: bool = True
    narrow: bool = False
    ids: str = "sy"


ALONE = PictureFrame()


def label_text(words: str, x: float, y: float, classes: str) -> Markup:
    return element("text", words, x=x, y=y, class_=classes or None)


def hatch_fill(frame: PictureFrame) -> str:
    """The fill of idle cells."""
    return f"url(#{frame.ids}-idle)"


def svg_document(
    parts: Sequence[Markup], wide: float, high: float, title: str, description: str, frame: PictureFrame
) -> Markup:
    """`parts` in an `svg` element; `description` is what a screen reader reads."""
    hatching = element(
        "pattern",
        element("rect", class_="idle-ground", width=7, height=7),
        element("path", class_="idle-lines", d="M-1 8L8 -1M-1 1L1 -1M6 8L8 6", stroke_width=1.5),
        id=f"{frame.ids}-idle",
        width=7,
        height=7,
        patternUnits="userSpaceOnUse",
    )
    return element(
        "svg",
        element("title", title, id=f"{frame.ids}-title"),
        element("desc", description, id=f"{frame.ids}-desc"),
        element("style", Markup(chart_sheet())) if frame.heading else None,
        element("defs", hatching),
        element("rect", class_="ground", width=wide, height=high) if frame.heading else None,
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        class_="sy",
        role="img",
        aria_labelledby=f"{frame.ids}-title {frame.ids}-desc",
        width=wide,
        height=high,
        viewBox=f"0 0 {wide:.1f} {high:.1f}",
    )
