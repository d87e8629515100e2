"""Routes of nodes' files: size, read, append, put, copy, remove, list. For tokens of nodes."""

import base64
import binascii
import re
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from api.http import problems, responses
from api.http.conventions.file_paths import FILE_PATH
from api.http.deps import Node, service_of
from api.http.operation_docs import BYTES, content_of, describe
from api.node_files.service import NodeFileService, UploadPart, WrongOffset
from api.results import file_response
from jobs.storage.remote import MAX_PATH_BYTES
from shardyard.contract.errors import FieldError, InvalidRequest
from shardyard.contract.responses import NodeFileList

ServiceDep = Annotated[NodeFileService, Depends(service_of(NodeFileService))]
Digest = Annotated[str, Header(alias="Repr-Digest", max_length=200, description="sha-256=:<base64>: of the whole file")]
Offset = Annotated[int, Header(alias="Upload-Offset", ge=0, le=2**53, description="byte at which the body begins")]
Length = Annotated[int, Header(alias="Upload-Length", ge=0, le=2**53, description="bytes of the whole file")]
Text = Annotated[str, Query(max_length=MAX_PATH_BYTES)]

router = APIRouter(tags=["node files"])
FILE = f"/v1/node/files/{FILE_PATH}"
_BODY = {"required": True, "content": content_of("application/octet-stream", BYTES)}
_READS = ("files_in_bucket", "too_many_transfers")
_REFUSES = (*_READS, "wrong_offset", "storage_low")
_DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/]{43}=):")


@router.get("/v1/node/files", **describe("List files", NodeFileList, refuses=_READS))
async def list_files(who: Node, files: ServiceDep, prefix: Text, cursor: Text = "") -> Response:
    """All files below a directory, by path; `cursor` is `next` of the page before."""
    return responses.json_response(await files.list_files(who, prefix, cursor))


@router.head(
    FILE,
    response_class=Response,
    **describe("Size of a file", without_body=(200,), refuses=_READS),
)
async def read_size(who: Node, files: ServiceDep, path: str, digest: Digest = "") -> Response:
    """In `Upload-Offset`. With a digest: how much of an incomplete upload has arrived."""
    return _at(200, await files.read_size(who, path, _parse_digest(digest) if digest else ""))


@router.get(
    FILE,
    response_class=Response,
    **describe(
        "Read a file",
        content_of("application/octet-stream", BYTES),
        statuses=(200, 206),
        without_body=(304,),
        refuses=("range_not_satisfiable", *_READS),
    ),
)
async def read(
    request: Request,
    who: Node,
    files: ServiceDep,
    path: str,
    range_: Annotated[str, Header(alias="Range", max_length=200, description="bytes=first-last")] = "",
) -> Response:
    """The bytes of a file, or a range of them."""
    return file_response.artifact_response(request, await files.open_file(who, path), range_)


@router.patch(FILE, status_code=204, **describe("Append to a file", refuses=_REFUSES, body=_BODY))
async def append(request: Request, who: Node, files: ServiceDep, path: str, offset: Offset) -> Response:
    """The file is created with its first bytes. Bytes that it already has count as appended; if it ends elsewhere, the
    answer is 409 and says in `Upload-Offset` where."""
    try:
        return _at(204, await files.append(who, path, offset, request.stream()))
    except WrongOffset as error:
        return _wrong_offset(request, error)


@router.put(
    FILE,
    status_code=204,
    **describe("Put a file", without_body=(202,), refuses=(*_REFUSES, "wrong_digest"), body=_BODY),
)
async def put(
    request: Request, who: Node, files: ServiceDep, path: str, digest: Digest, length: Length, offset: Offset = 0
) -> Response:
    """204: the file is whole, checked, on disk and in its place. 202: this much of it has arrived; continue there in
    the same way. An interrupted upload continues where `HEAD` with its digest says."""
    wanted = UploadPart(offset, length, _parse_digest(digest))
    try:
        written = await files.put(who, path, wanted, request.stream())
    except WrongOffset as error:
        return _wrong_offset(request, error)
    return _at(204 if written == length else 202, written)


@router.post(
    FILE,
    status_code=204,
    **describe("Copy a file", refuses=(*_REFUSES, "wrong_digest")),
)
async def copy(who: Node, files: ServiceDep, path: str, source: Text, digest: Digest, length: Length) -> Response:
    """The contents of `source` get this path too, if they match the length and the digest: a node that has uploaded a
    file need not upload it again."""
    await files.copy(who, source, path, UploadPart(0, length, _parse_digest(digest)))
    return Response(status_code=204)


@router.delete(
    FILE,
    status_code=204,
    **describe("Remove a file, or all below a directory", refuses=("conflict", "files_in_bucket")),
)
async def remove(who: Node, files: ServiceDep, path: str) -> Response:
    await files.remove(who, path)
    return Response(status_code=204)


def _at(status: int, offset: int) -> Response:
    return Response(status_code=status, headers={"Upload-Offset": str(offset)})


def _wrong_offset(request: Request, error: WrongOffset) -> Response:
    answer = problems.error_response(error, request.url.path)
    answer.headers["Upload-Offset"] = str(error.size)
    return answer


def _parse_digest(header: str) -> str:
    """The digits of a digest. Raises InvalidRequest."""
    match = _DIGEST.fullmatch(header.strip())
    try:
        if match is not None:
            return base64.b64decode(match[1], validate=True).hex()
    except binascii.Error:
        pass
    problem = "send sha-256=:<base64 of the SHA-256 of the whole file>:"
    raise InvalidRequest("the digest cannot be used", fields=(FieldError("Repr-Digest", problem),))
