"""What the dashboard's pages are sent with, and that their colours are those of the service's pictures."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from api.system import dashboard_routes
from shardyard.render.svg import highlights, palette

WEB = Path(__file__).parents[4] / "web" / "src"
LIGHT, DARK = re.findall(r":root \{(.*?)\}", (WEB / "styles.css").read_text(), re.DOTALL)
THEMES = [(LIGHT, palette.LIGHT, "light"), (DARK, palette.DARK, "dark")]


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory that the dashboard is served from."""
    monkeypatch.setattr(dashboard_routes, "_web_directory", lambda: tmp_path)
    for cached in (dashboard_routes._built_page, dashboard_routes._built_assets):
        cached.cache_clear()
    yield tmp_path
    for cached in (dashboard_routes._built_page, dashboard_routes._built_assets):
        cached.cache_clear()


@pytest.fixture
def browser(built: Path) -> TestClient:
    app = FastAPI()
    app.include_router(dashboard_routes.router)
    return TestClient(app, raise_server_exceptions=False)


def colours(style: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", style))


@pytest.mark.parametrize(("style", "theme", "name"), THEMES, ids=["light", "dark"])
def test_the_dashboard_has_the_colours_of_the_pictures(style: str, theme: palette.ColourTheme, name: str) -> None:
    found = colours(style)
    plain = ("ground", "panel", "ink", "muted", "rule", "idle", "slow", "output", "warning", "info", "track")
    wanted = {field: getattr(theme, field) for field in plain}
    wanted |= {"idle-line": theme.idle_line, "idle-ink": theme.idle_ink}
    wanted |= {f"l{n}": colour for n, colour in enumerate(theme.levels)}
    wanted |= {f"i{n}": colour for n, colour in enumerate(theme.level_inks)}
    parts = {"data wait": "wait", "communication": "comm", "parallel_apply": "apply"}
    for part in (*palette.PRIMITIVES, *palette.TIMES):
        wanted[parts.get(part.name, part.name)] = getattr(part, name)
    assert {field: found.get(field) for field in wanted} == wanted


def test_the_dashboard_has_the_words_and_rules_of_the_pictures() -> None:
    text = (WEB / "marks.ts").read_text()
    for constant, value in {
        "IDLE": f'"{palette.IDLE}"',
        "SLOW": f'"{palette.SLOW}"',
        "OUTPUT": f'"{palette.OUTPUT}"',
        "LEVELS": palette.LEVELS,
        "SLOW_FROM": highlights.SLOW_FROM,
        "SLOW_STEPS": highlights.SLOW_STEPS,
    }.items():
        assert f"const {constant} = {value};" in text
    causes = re.search(r"SLOW_CAUSES.*?\(\[(.*?)\]\)", text)
    assert causes is not None
    assert set(re.findall(r'"(\w+)"', causes[1])) == highlights.SLOW_CAUSES


def test_what_was_not_built_says_how_to_build_it(browser: TestClient) -> None:
    answer = browser.get("/")
    assert answer.status_code == 200
    assert "make web" in answer.text


@pytest.mark.parametrize(
    "path", ["/", "/sign-in", "/submit", "/compare", "/nodes", "/quota", "/webhooks", "/jobs/anything"]
)
def test_a_page_may_load_its_own_files_and_nothing_else(built: Path, browser: TestClient, path: str) -> None:
    (built / "index.html").write_text("<p>built</p>")
    answer = browser.get(path)
    assert (answer.status_code, answer.text) == (200, "<p>built</p>")
    policy = answer.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"} <= set(policy)
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    ("name", "found"),
    [("app-1.js", True), ("app-2.js", False), ("index.html", False), (".stamp", False), ("..%2f__init__.py", False)],
)
def test_a_file_is_served_only_if_it_was_built(built: Path, browser: TestClient, name: str, found: bool) -> None:
    for file in ("index.html", "app-1.js", ".stamp"):
        (built / file).write_text("x")
    answer: Any = browser.get(f"/assets/{name}")
    assert (answer.status_code == 200) == found
    if found:
        assert "immutable" in answer.headers["cache-control"]
