"""The dashboard: one page that a browser fills by asking the API, with what it needs built from web/.

The pages hold no data, so they are public; what they ask for is not.
"""

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Response

from shardyard.contract.errors import NotFound

router = APIRouter(include_in_schema=False)

#: Nothing from elsewhere, and no script or style that is not a file of ours.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
#: Names of built files change with their contents.
_CACHE_HEADERS = {"Cache-Control": "public, max-age=31536000, immutable"}
_TYPES = {
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "woff2": "font/woff2",
}
_NOT_BUILT = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>Shardyard</title>
<h1>Shardyard runs, without its dashboard</h1>
<p>The dashboard was not built during the installation, because there was no npm, and no access to PyPI to get it.
To build it, run <code>make web</code> in the repository, or install the package again. Then restart the service.</p>
<p>Everything else works: the command line (<code>shardyard list</code>), and <a href="docs">the API</a>.</p>
</html>
"""


@router.get("/")
@router.get("/sign-in")
@router.get("/submit")
@router.get("/compare")
@router.get("/groups")
@router.get("/nodes")
@router.get("/quota")
@router.get("/webhooks")
async def dashboard_page() -> Response:
    return _page_response()


@router.get("/jobs/{job}")
async def job_page(job: str) -> Response:
    return _page_response()


@router.get("/devices/{device}")
async def device_page(device: str) -> Response:
    return _page_response()


@router.get("/assets/{name}")
async def dashboard_asset(name: str) -> Response:
    """Raises NotFound."""
    found = _built_assets().get(name)
    if found is None:
        raise NotFound(f"there is no file {name[:100]!r}")
    return Response(found.read_bytes(), headers=_HEADERS | _CACHE_HEADERS, media_type=_TYPES[name.rpartition(".")[2]])


def _page_response() -> Response:
    built = _built_page()
    body = _NOT_BUILT if built is None else built
    return Response(body, headers=_HEADERS | {"Cache-Control": "no-cache"}, media_type="text/html; charset=utf-8")


@cache
def _built_page() -> bytes | None:
    index = _web_directory() / "index.html"
    return index.read_bytes() if index.is_file() else None


@cache
def _built_assets() -> dict[str, Traversable]:
    """The built files, by name: what is not among them is not served, whatever a path says."""
    web = _web_directory()
    if not web.is_dir():
        return {}
    return {file.name: file for file in web.iterdir() if file.name.rpartition(".")[2] in _TYPES}


def _web_directory() -> Traversable:
    return files("api") / "web"
