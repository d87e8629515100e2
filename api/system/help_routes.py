"""The site of the documents, as files: part of the package where that was built, else what `make docs` has built.

The pages are the same for everybody and hold no data, so they are public.
"""

import mimetypes
from pathlib import Path

from fastapi import APIRouter, Header, Response
from starlette.responses import RedirectResponse

import api
from api.http.conventions.etags import has_tag, make_tag
from shardyard.contract.errors import NotFound

router = APIRouter(include_in_schema=False)

#: Nothing from elsewhere, and no script or style that is not a file of ours; the search runs in a worker.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
#: A browser shows these; it need not know what a script of Python is.
_TEXT = {".py": "text/plain", ".md": "text/plain", ".js": "text/javascript", ".json": "application/json"}
_NOT_BUILT = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>Shardyard</title>
<h1>The documents were not built</h1>
<p>Run <code>make docs</code> in the repository, then load this page again. They are also in its folder
<code>docs</code>.</p>
<p>See also <a href="../docs">the API</a>.</p>
</html>
"""


@router.get("/help")
async def help_without_slash() -> Response:
    return RedirectResponse("help/", status_code=308)


@router.get("/help/{path:path}")
async def help_page(path: str, if_none_match: str = Header("", include_in_schema=False)) -> Response:
    """Raises NotFound."""
    root = site_directory()
    if root is None and path == "":
        return Response(_NOT_BUILT, headers=_HEADERS, media_type="text/html; charset=utf-8")
    found = None if root is None else find_file(root, path)
    if found is None:
        raise NotFound(f"the documents have no page {path[:100]!r}; they begin at /help/")
    if found.is_dir():  # links of a page are relative to its directory
        return RedirectResponse(f"{found.name}/", status_code=308)
    body = found.read_bytes()
    headers = _HEADERS | {"ETag": (tag := make_tag(body))}
    if has_tag(if_none_match, tag):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=type_of(found))


def find_file(root: Path, path: str) -> Path | None:
    """The file that a path means, or the directory if it lacks its slash; None: there is neither within the site."""
    if "\0" in path:
        return None
    wanted = (root / path).resolve()
    if not wanted.is_relative_to(root.resolve()):
        return None
    if wanted.is_dir():
        index = wanted / "index.html"
        if not index.is_file():
            return None
        return index if path == "" or path.endswith("/") else wanted
    return wanted if wanted.is_file() and not path.endswith("/") else None


def site_directory() -> Path | None:
    """That of the package, or that of the checkout which the package is imported from; None: neither was built."""
    package = Path(api.__file__).parent
    for built in (package / "help", package.parent / "site"):
        if (built / "index.html").is_file() and (built / "search").is_dir():
            return built
    return None


def type_of(file: Path) -> str:
    known = _TEXT.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    return f"{known}; charset=utf-8" if known.startswith("text/") else known
