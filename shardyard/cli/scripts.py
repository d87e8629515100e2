"""`submit --script`: finds the program, packs its directory, sends it if the service lacks it, and submits the job."""

import contextlib
import difflib
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from shardyard import formatting
from shardyard.bundling import pack
from shardyard.bundling.doubts import find_doubts
from shardyard.bundling.pack import FileSelection, WrittenBundle
from shardyard.cli.common import connect_client, make_console, make_table, print_json, print_submitted
from shardyard.client import Client, endpoints, operations
from shardyard.client.connection import private_paths
from shardyard.client.scripts import complete_spec
from shardyard.contract.bundle_rules import may_be_installed
from shardyard.contract.errors import BodyTooLarge, InvalidRequest
from shardyard.contract.plain_text import escape_unsafe
from shardyard.contract.responses import JobStatus

#: From this size on, what is large is named: most of it is often data that nobody meant to send.
LARGE_BYTES = 20 * 1024 * 1024
NAMED_BYTES = 1024 * 1024
#: How many things that are left out one note names.
MAX_NAMED = 6
#: Lists of what a script needs, which nobody installs for it.
REQUIREMENTS = ("requirements.txt", "environment.yml", "environment.yaml")
#: What a script for torchrun reads, or takes from an older launcher.
_TORCHRUN = re.compile(r"\bLOCAL_RANK\b|--local[-_]rank\b")
MAX_READ_BYTES = 1024 * 1024
#: How programs say that a file is not there, in Python's words and in those of libraries; and a module.
_MISSING = re.compile(r"No such file|[Nn]ot found|(does not|doesn't) exist|[Cc](annot|an't|ould not) (find|open)")
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True)
class UserProgram:
    """The program that a user named, a file or a module, and the directory that goes with it."""

    script: str | None
    module: str | None
    directory: Path
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    named: bool = False  # the user has named the directory
    confirmed: bool = False  # it is sent without a question


@dataclass(frozen=True, slots=True)
class SubmitTarget:
    """The service of the job, and how to report to the user."""

    url: str | None
    token: str | None
    as_json: bool = False


def submit_script(
    code: UserProgram, spec: dict[str, Any], service: SubmitTarget, *, dry_run: bool, follow: bool
) -> None:
    """Submit `spec`, which lacks the bundle and the entry point of its program only.

    Raises:
        InvalidRequest: the program is not there, or the directory cannot be packed.
        Exit: the job was followed to its end.
    """
    from shardyard.cli.live.watch import follow_until_end

    entry = entry_file(code)
    chosen = pack.select_files(code.directory, entry, code.include, code.exclude, private=private_paths())
    _check_packed(entry, chosen)
    doubts = find_doubts(code.directory, chosen, named=code.named)
    notes = Console(stderr=True, quiet=service.as_json, highlight=False, markup=False, emoji=False, soft_wrap=True)
    if dry_run:
        with _pack_selection(chosen, notes) as (_, bundle):
            whole = _complete_spec(spec, bundle, code, entry)
            return _print_dry_run(whole, chosen, bundle, doubts, as_json=service.as_json)
    if doubts and not code.confirmed:
        _ask_about(doubts, chosen)
    with connect_client(service.url, service.token) as client:
        for note in _submit_notes(spec, code, entry, chosen):
            notes.print(note)
        with _pack_selection(chosen, notes) as (file, bundle):
            job = _submit_job(client, _complete_spec(spec, bundle, code, entry), file, bundle, notes)
        if follow:
            notes.print(f"{job.name} is {job.state}: {formatting.short_id(job.id)}")
            ended = follow_until_end(client, job.id, service.as_json, prints_lines=True)
            if ended == 1:
                for note in _missing_file_notes(client.call(endpoints.get_job(job.id)), chosen):
                    notes.print(note)
            raise typer.Exit(ended)
        return print_json(client.json(endpoints.get_job(job.id))) if service.as_json else print_submitted(job)


def _complete_spec(spec: dict[str, Any], bundle: WrittenBundle, code: UserProgram, entry: str) -> dict[str, Any]:
    return complete_spec(spec, bundle=bundle.id, **_entry_fields(entry, code))


def _entry_fields(entry: str, code: UserProgram) -> dict[str, str]:
    """The directory in which the program starts, and its name there: the user's current directory, if it is part of
    what is sent."""
    here = _relative_workdir(code.directory)
    if code.module is not None:
        is_here = here and (not entry or entry.startswith(f"{here}/{code.module.replace('.', '/')}"))
        return {"entrypoint": code.module} | ({"workdir": here} if is_here else {})
    if here and entry.startswith(f"{here}/"):
        return {"entrypoint": entry.removeprefix(f"{here}/"), "workdir": here}
    return {"entrypoint": entry}


def _relative_workdir(directory: Path) -> str:
    """The current directory as a path within the one that is sent; empty if it is the same or outside."""
    inside = _path_below(Path.cwd(), directory)
    return "" if inside in (None, ".") else str(inside)


# -- the program -----------------------------------------------------------------------------------


def entry_file(code: UserProgram) -> str:
    """Path of the program's file within the directory; "" for a module that may be installed where the job runs.

    Raises:
        InvalidRequest: it is not there, not below the directory, or no Python file.
    """
    if code.module is not None:
        return _module_file(code.module, code.directory)
    assert code.script is not None
    return _script_file(code.script, code.directory)


def _script_file(script: str, directory: Path) -> str:
    given = [Path(script), directory / script]  # as the shell completes it, and as it is called in the bundle
    found = [path for path in given if path.exists()]
    if not found:
        raise InvalidRequest(f"there is no file {script}{_similar_files_hint(given)}")
    inside = next(filter(None, (_path_below(path, directory) for path in found)), None)
    if inside is None:
        raise InvalidRequest(
            f"{script} is not in the directory that is sent, {directory.resolve()}; "
            f"name one that holds it, for example --dir {found[0].parent}"
        )
    if found[0].is_dir():
        raise InvalidRequest(f"{script} is a directory; name the file to run, or a package with --module")
    if not inside.endswith(".py"):
        raise InvalidRequest(f"{script} is not a Python file: its name must end in .py")
    return inside


def _path_below(path: Path, directory: Path) -> str | None:
    """The path from the directory to a file in it, by its name or, through links, by where it really is."""
    for one, base in ((path.absolute(), directory.absolute()), (path.resolve(), directory.resolve())):
        with contextlib.suppress(ValueError):
            inside = one.relative_to(base)
            if ".." not in inside.parts:
                return inside.as_posix()
    return None


def _similar_files_hint(given: list[Path]) -> str:
    """A hint at files with a name similar to the missing one."""
    there = {str(path) for one in given for path in (*one.parent.glob("*.py"), *one.parent.glob(f"*/{one.name}"))}
    near = [path for path in sorted(there) if Path(path).name == given[0].name]
    near += difflib.get_close_matches(str(given[0]), sorted(there), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _module_file(module: str, directory: Path) -> str:
    if not _MODULE.fullmatch(module):
        raise InvalidRequest(f"--module {module}: a dotted name, for example pkg.train; a file goes with --script")
    path = module.replace(".", "/")
    files = (f"{path}.py", f"{path}/__main__.py")
    here = _relative_workdir(directory)
    places = [f"{here}/{file}" for file in files if here] + [*files]
    found = next((file for file in places if (directory / file).is_file()), None)
    if found is not None:
        return found
    in_src = any((directory / "src" / file).is_file() for file in files)
    if not in_src and may_be_installed(module, [file.name for file in (directory / here).iterdir()]):
        return ""
    hint = "; it is in src: --dir src" if in_src else ""
    raise InvalidRequest(
        f"no module {module} in {directory.resolve()}: neither {files[0]} nor {files[1]} is there{hint}"
    )


def directory_to_send(named: str | None) -> Path:
    """The directory that --dir names, or the current one. Raises InvalidRequest."""
    directory = Path(named or ".")
    if not directory.is_dir():
        raise InvalidRequest(f"--dir {directory}: there is no such directory")
    return directory


def _ask_about(doubts: list[str], chosen: FileSelection) -> None:
    """Ask whether a doubtful directory is to be sent.

    Raises:
        InvalidRequest: there is nobody to ask.
        Abort: the answer is no.
    """
    size = f"{formatting.count_noun(len(chosen.files), 'file')}, {formatting.byte_count(chosen.bytes)}"
    why = "; ".join(doubts)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidRequest(
            f"not sent ({size}), because {why}. --dry-run shows all; --exclude leaves out, --dir names the directory "
            "of a project, --yes sends it as it is"
        )
    typer.confirm(f"{why}.\nSend it ({size})? --dry-run shows all.", abort=True, err=True)


def _check_packed(entry: str, chosen: FileSelection) -> None:
    if not entry or any(source.path == entry for source in chosen.files):
        return
    why = next((one.why for one in chosen.left_out if entry == one.path or entry.startswith(one.path)), "")
    raise InvalidRequest(f"{escape_unsafe(entry)} is not sent{why and f': {why}'}; without it there is nothing to run")


# -- packing and sending ---------------------------------------------------------------------------


@contextlib.contextmanager
def _pack_selection(chosen: FileSelection, notes: Console) -> Iterator[tuple[BufferedRandom, WrittenBundle]]:
    """The zip of a selection, in a temporary file."""
    with tempfile.TemporaryFile() as file:
        try:
            with _progress_bar("packing", chosen.bytes, notes) as advanced:
                bundle = pack.write_bundle(chosen, file, advanced)
        except OSError as error:
            where = tempfile.gettempdir()
            raise InvalidRequest(
                f"cannot write the zip in {where}: {error.strerror}; set TMPDIR to another directory"
            ) from error
        yield file, bundle


def _submit_job(
    client: Client, spec: dict[str, Any], file: BufferedRandom, bundle: WrittenBundle, notes: Console
) -> JobStatus:
    """Submit the job, and upload the bundle if the service does not have it."""
    with _progress_bar("uploading", bundle.bytes, notes) as advanced:
        sent = 0

        def count(more: int) -> None:
            nonlocal sent
            sent += more
            advanced(more)

        try:
            job = client.run(operations.submit_bundled(spec, file, bundle, count))
        except BodyTooLarge as error:
            raise BodyTooLarge(f"{error.message}; --exclude leaves data out") from error
    if sent:
        notes.print(f"uploaded {formatting.byte_count(bundle.bytes)}")
    return job


@contextlib.contextmanager
def _progress_bar(what: str, total: int, notes: Console) -> Iterator[Any]:
    """A progress bar in a terminal, nothing elsewhere; yields the function that advances it by a number of bytes."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)


# -- words -----------------------------------------------------------------------------------------


def _submit_notes(spec: dict[str, Any], code: UserProgram, entry: str, chosen: FileSelection) -> Iterator[str]:
    """Warnings before the job runs, one a line."""
    size = f"{formatting.count_noun(len(chosen.files), 'file')}, {formatting.byte_count(chosen.bytes)}"
    yield f"{size}, from {code.directory.resolve()}"
    if chosen.left_out:
        named = [f"{escape_unsafe(one.path)} ({one.why})" for one in chosen.left_out[:MAX_NAMED]]
        more = len(chosen.left_out) - len(named)
        yield f"left out: {', '.join(named)}{f' and {more} more; --dry-run lists them' if more else ''}"
    if chosen.bytes >= LARGE_BYTES:
        sizes = [
            f"{escape_unsafe(path)} {formatting.byte_count(size)}"
            for path, size in pack.largest_entries(chosen)
            if size >= NAMED_BYTES
        ]
        yield f"large: {', '.join(sizes)}; --exclude leaves out what the script does not need"
    program, strategy = spec["program"], spec["parallelism"]["strategy"]
    needs = [source.path for source in chosen.files if source.path in REQUIREMENTS]
    if needs and "python" not in program:
        yield (
            f"{needs[0]} is not installed: the job has the worker's packages, or those of the environment that "
            "--python names"
        )
    if strategy in ("single", "dp") and _is_for_torchrun(code.directory / entry):
        yield (
            f"{escape_unsafe(entry)} reads its local rank, as scripts for torchrun do: "
            "--strategy ddp would start one process per device"
        )


def _missing_file_notes(status: JobStatus, chosen: FileSelection) -> Iterator[str]:
    """Hints at files that a failed script did not find because they were not sent."""
    words = (status.error or {}).get("message") or ""
    module = _NO_MODULE.search(words)
    if module is None and not _MISSING.search(words):
        return
    for one in chosen.left_out:
        path = one.path.rstrip("/")
        if module is not None:
            is_named = path.removesuffix(".py").replace("/", ".") == module[1]
        else:
            is_named = re.search(rf"(^|['\"/\s]){re.escape(path)}($|['\"/\s:,.])", words) is not None
        if is_named:
            remedy = f"; --include {escape_unsafe(path)} sends it" if one.why == ".gitignore" else ""
            yield f"{escape_unsafe(one.path)} was not sent ({one.why}){remedy}"


def _is_for_torchrun(script: Path) -> bool:
    with contextlib.suppress(OSError), script.open(encoding="utf-8", errors="replace") as file:
        return _TORCHRUN.search(file.read(MAX_READ_BYTES)) is not None
    return False


def _print_dry_run(
    spec: dict[str, Any], chosen: FileSelection, bundle: WrittenBundle, doubts: list[str], *, as_json: bool
) -> None:
    """What would be sent: files, what is left out, the job spec, and why a submit would ask first."""
    if as_json:
        return print_json(
            {
                "spec": spec,
                "bundle": {"id": bundle.id, "bytes": bundle.bytes},
                "files": [{"path": source.path, "bytes": source.bytes} for source in chosen.files],
                "directories": chosen.directories,
                "left_out": [{"path": one.path, "why": one.why} for one in chosen.left_out],
                "doubts": doubts,
            }
        )
    out = make_console()
    files = make_table("FILE", "#SIZE")
    for source in chosen.files:
        files.add_row(escape_unsafe(source.path), formatting.byte_count(source.bytes))
    out.print(files)
    if chosen.left_out:
        left_out = make_table("LEFT OUT", "WHY")
        for one in chosen.left_out:
            left_out.add_row(escape_unsafe(one.path), one.why)
        out.print("", left_out, sep="\n")
    count, size = formatting.count_noun(len(chosen.files), "file"), formatting.byte_count(chosen.bytes)
    out.print(f"\n{count}, {size}, {formatting.byte_count(bundle.bytes)} as a zip; nothing was sent\n")
    for doubt in doubts:
        out.print(f"without --yes a submit asks first: {doubt}\n", style="yellow", soft_wrap=True)
    return print_json(spec)
