"""The style sheet of the pictures: rules in light colours, and the differences of the dark theme.

Rules have plain values instead of variables, which programs that draw SVG outside a browser do not know.
"""

from collections.abc import Iterator
from functools import cache

from shardyard.render.svg.palette import DARK, LIGHT, PARTS, BarPart, ColourTheme

FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"

_FIXED = f""".sy text{{font-family:{FONT};font-size:12px}}
.sy .mid{{text-anchor:middle}}.sy .end{{text-anchor:end}}
.sy .name{{font-size:17px;font-weight:600}}.sy .strong{{font-weight:600}}.sy .small{{font-size:10.5px}}
.sy .slow-line,.sy .unknown rect{{fill:none}}.sy .slow-line{{stroke-width:2.5}}
.sy .unknown rect{{stroke-dasharray:2 3}}
.sy .curve{{fill:none;stroke-width:1.75;stroke-linejoin:round;stroke-linecap:round}}.sy .dot{{stroke-width:6}}"""


@cache
def chart_sheet() -> str:
    """Everything, for a `style` element. It holds no `<`, `&` or `]]>`."""
    dark = "\n".join(_theme_colours(DARK, dark=True))
    return "\n".join([_FIXED, *_theme_colours(LIGHT, dark=False), f"@media (prefers-color-scheme:dark){{\n{dark}\n}}"])


def part_class(part: BarPart) -> str:
    return "p-" + part.field.removesuffix("_ms")


def _theme_colours(theme: ColourTheme, *, dark: bool) -> Iterator[str]:
    yield f".sy text{{fill:{theme.ink}}}.sy .muted{{fill:{theme.muted}}}"
    yield f".sy .ground{{fill:{theme.ground}}}.sy .track{{fill:{theme.track}}}.sy .rule{{stroke:{theme.rule}}}"
    for level, (fill, ink) in enumerate(zip(theme.levels, theme.level_inks, strict=True)):
        yield f".sy .c{level} rect{{fill:{fill}}}.sy .c{level} text{{fill:{ink}}}"
    yield f".sy .idle-ground{{fill:{theme.idle}}}.sy .idle-lines{{stroke:{theme.idle_line}}}"
    yield f".sy .idle text,.sy .idle-word{{fill:{theme.idle_ink}}}"
    yield f".sy .unknown rect{{stroke:{theme.muted}}}.sy .unknown text{{fill:{theme.muted}}}"
    yield f".sy .slow-line{{stroke:{theme.slow}}}.sy .slow-word{{fill:{theme.slow}}}"
    yield f".sy .output-line{{fill:{theme.output}}}.sy .output-word{{fill:{theme.output}}}"
    for part in PARTS:
        fill, ink = (part.dark, part.dark_ink) if dark else (part.light, part.light_ink)
        name = part_class(part)
        yield f".sy .{name} rect,.sy rect.{name}{{fill:{fill}}}.sy .{name} text{{fill:{ink}}}"
        yield f".sy .curve.{name}{{stroke:{fill}}}"
