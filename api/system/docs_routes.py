"""The page that shows the OpenAPI document. All its files are served here; it loads nothing from other hosts."""

from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Response

router = APIRouter(include_in_schema=False)

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Shardyard API</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<p class="swagger-ui wrapper"><a href="help/">The documents: tutorials, how-tos and reference</a></p>
<div id="page"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_START = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#page",
  deepLinking: true,
  validatorUrl: null,
});
"""
#: Nothing from elsewhere; Swagger UI writes styles into its elements and draws its icons from data.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_CACHE_HEADERS = {"Cache-Control": "public, max-age=86400"}


@router.get("/docs")
async def docs_page() -> Response:
    return Response(_PAGE, headers=_HEADERS, media_type="text/html; charset=utf-8")


@router.get("/docs/start.js")
async def start_script() -> Response:
    return Response(_START, headers=_HEADERS, media_type="text/javascript; charset=utf-8")


@router.get("/docs/swagger-ui-bundle.js")
async def swagger_script() -> Response:
    return Response(
        _read_swagger_file("swagger-ui-bundle.js"), headers=_HEADERS | _CACHE_HEADERS, media_type="text/javascript"
    )


@router.get("/docs/swagger-ui.css")
async def swagger_style() -> Response:
    return Response(_read_swagger_file("swagger-ui.css"), headers=_HEADERS | _CACHE_HEADERS, media_type="text/css")


@cache
def _read_swagger_file(name: str) -> bytes:
    """A file of Swagger UI, as the package `fastapi-offline` carries it; nothing of its code is used."""
    return (files("fastapi_offline") / "static" / name).read_bytes()
