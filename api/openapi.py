"""The OpenAPI document. Bodies are read as bytes, so the framework does not know their schemas; they are added here."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from api.auth import PUBLIC
from api.bodies import NewTokenRequest
from jobs.spec import JobSpec

#: Path of a POST -> what its body is.
_BODIES: dict[str, type[BaseModel]] = {"/v1/jobs": JobSpec, "/v1/plan": JobSpec, "/v1/tokens": NewTokenRequest}


def document(app: FastAPI) -> dict[str, Any]:
    """The document of `app`, made once."""
    if app.openapi_schema is None:
        app.openapi_schema = _document(app)
    return app.openapi_schema


def _document(app: FastAPI) -> dict[str, Any]:
    found = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    components: dict[str, Any] = found.setdefault("components", {})
    schemas: dict[str, Any] = components.setdefault("schemas", {})
    for path, model in _BODIES.items():
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        schemas[model.__name__] = schema
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
        found["paths"][path]["post"]["requestBody"] = {"required": True, "content": content}
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    found["security"] = [{"token": []}]
    for path in PUBLIC:
        for operation in found["paths"][path].values():
            operation["security"] = []
    return found
