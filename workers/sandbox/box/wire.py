"""Messages between a supervisor and the first process of its box: JSON, with descriptors beside it."""

import array
import json
import os
import pickle
import socket
from dataclasses import dataclass, field
from typing import Any

#: Of one message: the kernel passes 253 descriptors at most.
MAX_DESCRIPTORS = 250
MAX_BYTES = 64 * 1024


@dataclass(slots=True)
class BoxMessage:
    """`operation` is what is asked or told, `fields` its arguments; `sender` is the process id, where it is known."""

    operation: str
    fields: dict[str, Any] = field(default_factory=dict)
    descriptors: list[int] = field(default_factory=list)
    sender: int = 0


def open_line() -> tuple[socket.socket, socket.socket]:
    """Both ends of a line that keeps messages apart. The first one learns who sends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return ours, theirs


def send_message(line: socket.socket, operation: str, descriptors: list[int] | None = None, **fields: Any) -> None:
    """Send a message; descriptors that are too many for one go ahead of it.

    Raises:
        OSError: the other side is gone.
    """
    rest = list(descriptors or ())
    while len(rest) > MAX_DESCRIPTORS:
        socket.send_fds(line, [b'["more", {}]'], rest[:MAX_DESCRIPTORS])
        del rest[:MAX_DESCRIPTORS]
    socket.send_fds(line, [json.dumps([operation, fields]).encode()], rest)


def receive_message(line: socket.socket) -> BoxMessage:
    """The next message, with all its descriptors.

    Raises:
        EOFError: the other side is gone.
        TimeoutError: nothing came for as long as the line's timeout.
    """
    ahead: list[int] = []
    while True:
        space = socket.CMSG_LEN(MAX_DESCRIPTORS * 4) + socket.CMSG_SPACE(12)
        try:
            body, ancillary, _, _ = line.recvmsg(MAX_BYTES, space, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError as error:
            raise EOFError from error
        if not body:
            raise EOFError
        sender = 0
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found = array.array("i")
                found.frombytes(data[: len(data) - len(data) % found.itemsize])
                ahead.extend(found)
            elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                sender = int.from_bytes(data[:4], "little")
        operation, fields = json.loads(body)
        if operation != "more":
            return BoxMessage(operation, fields, ahead, sender)


def store_object(value: object) -> int:
    """A file in memory with an object, for a message: it may be larger than one may be."""
    file = os.memfd_create("object")
    os.write(file, pickle.dumps(value))
    return file


def load_object(file: int) -> Any:
    """What `store_object` has stored, by the service itself; the file is closed."""
    try:
        return pickle.loads(os.pread(file, os.fstat(file).st_size, 0))  # noqa: S301  (the supervisor's own)
    finally:
        os.close(file)
