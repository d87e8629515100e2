"""Redis's wire format, as far as a proxy needs it: where a command or a reply ends, and what a command is called."""

_LINES = b"+-:_#,("  # a value that is one line
_BLOBS = b"$=!"  # a line with a length, and so many bytes
_LISTS = {ord("*"): 1, ord("~"): 1, ord(">"): 1, ord("%"): 2}  # a line with a count, and values


def end_of(buffer: bytes, start: int = 0) -> int | None:
    """Where the value that begins at `start` ends; None while it is not there as a whole.

    Raises:
        ValueError: this is no RESP.
    """
    line_end = buffer.find(b"\r\n", start)
    if line_end < 0:
        return None
    kind, rest, end = buffer[start], buffer[start + 1 : line_end], line_end + 2
    if kind in _LINES:
        return end
    if kind in _BLOBS:
        end += int(rest) + 2 if int(rest) >= 0 else 0
        return end if end <= len(buffer) else None
    if kind not in _LISTS:
        raise ValueError(f"not RESP: {buffer[start : start + 40]!r}")
    for _ in range(max(0, int(rest)) * _LISTS[kind]):
        following = end_of(buffer, end)
        if following is None:
            return None
        end = following
    return end


def words(command: bytes) -> list[bytes]:
    """The words of a complete command."""
    found, at = [], command.index(b"\r\n") + 2
    while at < len(command):
        line_end = command.index(b"\r\n", at)
        size = int(command[at + 1 : line_end])
        found.append(command[line_end + 2 : line_end + 2 + size])
        at = line_end + 2 + size + 2
    return found


def name_of(command: bytes) -> str:
    """What rules call a command: a function of the store by its name ("submit"), any other in capitals ("BRPOP")."""
    name, *rest = words(command)
    if name.upper() == b"FCALL" and rest:
        return rest[0].decode().rpartition("_")[0]
    return name.decode(errors="replace").upper()
