"""The site of the documents, as the API serves it."""

from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from api.http.auth import is_public
from api.http.problems import install_handlers
from api.system import help_routes


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "site"
    (root / "start").mkdir(parents=True)
    (root / "index.html").write_text("home")
    (root / "start" / "index.html").write_text("start")
    (root / "train.py").write_text("print(1)")
    (tmp_path / "secret.txt").write_text("secret")
    monkeypatch.setattr(help_routes, "site_directory", lambda: root)
    return root


@pytest.fixture
def browser() -> TestClient:
    app = FastAPI()
    app.include_router(help_routes.router)
    install_handlers(app)
    return TestClient(app, raise_server_exceptions=False)


def test_a_page_is_found_by_its_directory(site: Path, browser: TestClient) -> None:
    assert browser.get("/help/").text == "home"
    assert browser.get("/help/start/").text == "start"
    assert browser.get("/help/train.py").headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(("path", "leads_to"), [("/help", "/help/"), ("/help/start", "/help/start/")])
def test_a_directory_without_its_slash_leads_to_the_page(
    site: Path, browser: TestClient, path: str, leads_to: str
) -> None:
    assert str(browser.get(path).url).endswith(leads_to)


@pytest.mark.parametrize(
    "path", ["nothing", "start/nothing/", "..%2fsecret.txt", "%2e%2e/secret.txt", "train.py/", "a%00b", "%2fetc/passwd"]
)
def test_what_is_not_in_the_site_is_not_found(site: Path, browser: TestClient, path: str) -> None:
    answer = browser.get(f"/help/{path}")
    assert answer.status_code == 404
    assert "secret" not in answer.text.replace("secret.txt", "")


def test_a_page_runs_and_loads_nothing_but_files_of_the_service(site: Path, browser: TestClient) -> None:
    headers = browser.get("/help/").headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"


def test_a_page_that_the_browser_has_is_not_sent_again(site: Path, browser: TestClient) -> None:
    tag = browser.get("/help/").headers["etag"]
    again = browser.get("/help/", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    (site / "index.html").write_text("new")
    assert browser.get("/help/", headers={"If-None-Match": tag}).text == "new"


def test_without_a_site_the_page_says_how_to_build_it(browser: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(help_routes, "site_directory", lambda: None)
    assert "make docs" in browser.get("/help/").text
    assert browser.get("/help/start/").status_code == 404


def test_the_documents_need_no_token() -> None:
    assert is_public("/help")
    assert is_public("/help/tutorials/recipe/")
    assert not is_public("/helper")
