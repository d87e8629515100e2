from pathlib import Path

import pytest

from shardyard.render.svg.palette import DARK, LEVELS, LIGHT, PARTS, ColourTheme

READABLE = 4.5


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_all_words_can_be_read_on_what_they_stand_on(theme: ColourTheme) -> None:
    assert len(theme.levels) == len(theme.level_inks) == LEVELS
    pairs = list(zip(theme.level_inks, theme.levels, strict=True))
    pairs += [(theme.idle_ink, ground) for ground in (theme.idle, theme.idle_line)]
    inks = (theme.ink, theme.muted, theme.slow, theme.output, theme.warning, theme.info)
    pairs += [(ink, ground) for ink in inks for ground in (theme.ground, theme.panel)]
    assert [pair for pair in pairs if contrast(*pair) < READABLE] == []


def test_the_names_in_bars_can_be_read() -> None:
    pairs = [pair for part in PARTS for pair in ((part.light_ink, part.light), (part.dark_ink, part.dark))]
    assert [pair for pair in pairs if contrast(*pair) < READABLE] == []


@pytest.mark.parametrize(("theme", "darker"), [(LIGHT, True), (DARK, False)], ids=["light", "dark"])
def test_more_rows_stand_out_more_from_the_ground(theme: ColourTheme, darker: bool) -> None:
    assert sorted(theme.levels, key=luminance, reverse=darker) == list(theme.levels)


def test_the_dashboard_has_the_same_colours() -> None:
    styles = (Path(__file__).parents[5] / "web" / "src" / "styles.css").read_text().lower()
    colours = [colour for theme in (LIGHT, DARK) for colour in (*theme.levels, *theme.level_inks)]
    colours += [getattr(theme, name) for theme in (LIGHT, DARK) for name in ("idle", "idle_line", "slow", "output")]
    colours += [colour for part in PARTS for colour in (part.light, part.dark)]
    assert [colour for colour in colours if colour not in styles] == []
