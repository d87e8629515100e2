"""What the documents say about the code, held against the code."""

import ast
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any, get_args

import pytest
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel, SecretStr

from api.app import create_app
from api.http import problems
from api.system import dashboard_routes, help_routes, problem_routes
from benchmarks.harness import results
from jobs.model import catalogue, state
from jobs.model.settings import Settings
from jobs.model.spec import JobSpec, ParallelismSpec
from jobs.model.spec_rules import parse_spec
from jobs.model.spec_schema import SpecSchemaGenerator
from jobs.splits.plan import predict_splits
from jobs.store.function_library import SHARED_PARTS
from shardyard.contract import report_diff
from shardyard.contract.errors import InvalidSpec
from shardyard.contract.report import decode_report
from shardyard.render import diff_text, report_text
from tools import spec_reference

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("benchmarks/*.md"),
        *ROOT.glob("examples/*.md"),
    ]
    if path.is_file()
)
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.json"))
JOBS = {path.stem for path in (ROOT / "examples" / "jobs").glob("*.json")}
SCRIPTS = ROOT / "jobs" / "store" / "lua"

README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
API = (ROOT / "docs" / "api.md").read_text()
SETTINGS = (ROOT / "docs" / "settings.md").read_text()
REPORT = (ROOT / "docs" / "report.md").read_text()
PROGRAMS = (ROOT / "docs" / "programs.md").read_text()

#: `package.module:Name.attribute` in a document.
REFERENCE = re.compile(r"`((?:api|jobs|workers|shardyard)(?:\.\w+)*):(\w+(?:\.\w+)*)`")
#: A relative link.
LINK = re.compile(r"\]\((?!https?://)([^)#]*)(#[^)]*)?\)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def rows(text: str, heading: str) -> list[list[str]]:
    """Cells of the first table under a heading."""
    after = text.split(f"{heading}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE)
    assert table is not None, heading
    lines = table[0].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def found_in_code(module: str, path: str) -> object:
    return reduce(getattr, path.split("."), importlib.import_module(module))


# -- all documents ---------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_between_documents_resolve(document: Path) -> None:
    words = re.sub(r"`[^`\n]*`", "", document.read_text())  # a regular expression may look like a link
    broken = [target for target, _ in LINK.findall(words) if target and not (document.parent / target).exists()]
    assert not broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_functions_that_a_document_names_exist(document: Path) -> None:
    for module, path in REFERENCE.findall(document.read_text()):
        assert inspect.isroutine(found := found_in_code(module, path)) or inspect.isclass(found), f"{module}:{path}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_files_that_a_document_names_exist(document: Path) -> None:
    mentioned = re.findall(
        r"`((?:api|jobs|workers|shardyard|tests|docs|benchmarks|examples|tools)/[\w./-]*)`", document.read_text()
    )
    missing = [path for path in mentioned if not (ROOT / path).exists()]
    assert not missing


# -- architecture ----------------------------------------------------------------------------------


def test_the_diagram_is_the_one_of_the_code() -> None:
    assert state.__doc__ is not None
    drawn = state.__doc__.split("```")[1].strip("\n")
    assert drawn in ARCHITECTURE


def drawn_moves(picture: str) -> set[tuple[str, str, str]]:
    """The arrows of the diagram as (from, letter, to), '' for a job that is not there yet: along the line of states,
    down from it, and from its states up and back to the first one."""
    above, ends_above, states, starts_below, letters, _, below = picture.strip("\n").splitlines()
    along = re.findall(r"(\w*) *-+ (\w) -+> (?=(\w+))", states)

    def at(line: str, column: int) -> str:
        """The word of a line that is at a column, or nearest to it."""
        return min(re.finditer(r"\w{2,}", line), key=lambda word: abs((word.start() + word.end() - 1) / 2 - column))[0]

    down = [(at(states, m.start()), m[0], at(below, m.start())) for m in re.finditer(r"\w", letters)]
    assert [m.start() for m in re.finditer(r"\|", starts_below)] == [m.start() for m in re.finditer(r"\w", letters)]
    (to,) = (at(states, m.start()) for m in re.finditer("v", ends_above))
    back = [(at(states, m.start()), "g", to) for m in re.finditer(r"\|", ends_above)]
    assert len(back) == above.count("g")
    return {*along, *down, *back}


def test_the_diagram_and_its_table_show_the_moves_that_the_code_has() -> None:
    moves = {
        (str(before or ""), letter, str(after))
        for before, afters in state.TRANSITIONS.items()
        for after, letter in afters.items()
    }
    assert state.__doc__ is not None
    assert drawn_moves(state.__doc__.split("```")[1]) == moves
    listed = [(row[0], *row[1].split(" to ")) for row in rows(ARCHITECTURE, "## The life of a job")]
    assert {
        (before.strip("()").replace("new", ""), letter, after)
        for letter, befores, after in listed
        for before in befores.split(", ")
    } == moves


def test_each_letter_of_the_diagram_has_its_call_and_its_function() -> None:
    table = {row[0]: row for row in rows(ARCHITECTURE, "## The life of a job")}
    assert list(table) == list("abcdefg")
    for letter, (_, _, _, function, script, _) in table.items():
        (reference,) = REFERENCE.findall(function)
        source = inspect.getsource(found_in_code(*reference))  # type: ignore[arg-type]
        (file,) = SCRIPTS.rglob(script.strip("`"))
        assert f'"{file.stem}"' in source, f"{letter}: {function} does not call {file.name}"
        steps = file.read_text().partition(":")[0].removeprefix("--")
        assert letter in re.findall(r"\b[a-g]\b", steps), f"{file.name} does not say that it makes step {letter}"


def functions_that_reach(name: str) -> set[str]:
    """Functions of the shared Lua files that call one, or another one that does."""
    source = "\n".join((SCRIPTS / f"{part}.lua").read_text() for part in SHARED_PARTS)
    bodies = dict(re.findall(r"^(?:local )?function (\w+)\(.*\)\n((?:(?!end$).*\n)*)end$", source, re.MULTILINE))
    found, more = set[str](), {name}
    while more:
        found |= more
        calls = re.compile(rf"\b({'|'.join(found)})\(")
        more = {caller for caller, body in bodies.items() if calls.search(body)} - found
    return found


def test_every_function_that_ends_an_attempt_is_in_the_table_and_says_which_arrows_it_makes() -> None:
    calls = re.compile(rf"\b({'|'.join(functions_that_reach('settle_attempt'))})\(")
    functions = set(SCRIPTS.rglob("*.lua")) - {SCRIPTS / f"{part}.lua" for part in SHARED_PARTS}
    ending = {path.name: path.read_text() for path in functions if calls.search(path.read_text())}
    listed = {
        file: set(re.findall(r"\b[a-g]\b", re.sub(r"\(.*?\)", "", arrows)))
        for files, _, _, arrows in rows(ARCHITECTURE, "### What ends an attempt")
        for file in re.findall(r"\w+\.lua", files)
    }
    assert set(listed) == set(ending)
    for file, arrows in listed.items():
        said = set(re.findall(r"\b[a-g]\b", ending[file].partition(":")[0]))
        assert arrows <= said, f"{file} says that it makes {sorted(said)}"


def test_every_key_of_redis_is_in_the_tables_of_keys() -> None:
    code = (SCRIPTS / "keys.lua").read_text() + (ROOT / "jobs" / "protocol" / "names.py").read_text()
    kinds = set(re.findall(r"'sy:(\w+)", code)) | set(re.findall(r"PREFIX\}?(?: \+ \")?(\w+)", code))
    documented = set(re.findall(r"`sy:(\w+)", ARCHITECTURE))
    assert kinds == documented


# -- api -------------------------------------------------------------------------------------------


@pytest.fixture
def routes(tmp_path: Path) -> set[tuple[str, str]]:
    app = create_app(
        Settings(redis_url=SecretStr("unix:///never-connected"), admin_token_file=tmp_path / "token", storage=tmp_path)
    )
    return {
        (method, context.path or "")
        for context in iter_route_contexts(app.routes)
        if not (context.path or "").startswith("/docs/")  # what the page at /docs is made of
        and context.original_route not in dashboard_routes.router.routes  # pages for people
        and context.original_route not in help_routes.router.routes
        for method in (context.methods or set()) - {"HEAD"}
    }


def test_the_table_of_routes_is_the_applications(routes: set[tuple[str, str]]) -> None:
    documented = [tuple(row[0].strip("`").split(" ", 1)) for row in rows(API, "## Routes")]
    assert len(documented) == len(set(documented))
    assert set(documented) == routes


def test_the_table_of_errors_is_the_applications() -> None:
    documented = {row[0].strip("`"): int(row[1]) for row in rows(API, "## Errors")}
    assert documented == {code: status for code, (status, _) in problems.PROBLEMS.items()}


def test_the_page_of_a_problem_says_what_the_table_says() -> None:
    without_links = {
        row[0].strip("`"): re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", row[2]) for row in rows(API, "## Errors")
    }
    assert without_links == problem_routes.EXPLANATIONS


def test_every_reason_is_explained() -> None:
    documented = {row[0].strip("`"): row[1].strip("`") for row in rows(API, "## Reasons")}
    assert documented == {str(reason): str(state.STATE_OF[reason]) for reason in state.StateReason}


def test_the_fields_of_a_status_are_documented() -> None:
    from shardyard.contract.responses import JobStatus

    documented = [field.strip("`") for row in rows(API, "## The status") for field in row[0].split(", ")]
    assert set(documented) == set(JobStatus.__struct_fields__)


def fields_of(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Dotted paths of a spec's fields, those of its parts included."""
    for field, info in model.model_fields.items():
        parts = list(_models_in(info.annotation))
        if not parts:
            yield path + field
        for part in parts:
            yield from fields_of(part, f"{path}{field}.")


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a field may hold: itself, or the members of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def test_every_field_of_a_job_spec_is_documented() -> None:
    documented = [field.strip("`") for row in rows(API, "## A job spec") for field in row[0].split(", ")]
    assert sorted(documented) == sorted(set(fields_of(JobSpec)))  # both kinds of program have some fields


# -- the reference of the job spec -----------------------------------------------------------------


def test_the_reference_of_the_job_spec_is_fresh() -> None:
    fresh = spec_reference.PATH.read_text() == spec_reference.text()
    assert fresh, "write it again: python -m tools.spec_reference"


def test_every_field_of_the_reference_has_a_description_and_only_one() -> None:
    schema = JobSpec.model_json_schema(schema_generator=SpecSchemaGenerator)
    undescribed = {
        (model, field)
        for model, part in {**schema["$defs"], "JobSpec": schema}.items()
        for field, value in part["properties"].items()
        if not value.get("description")
    }
    assert set(spec_reference.WORDS) == undescribed


def test_every_model_of_the_job_spec_has_its_group_in_the_reference() -> None:
    schema = JobSpec.model_json_schema(schema_generator=SpecSchemaGenerator)
    assert {model for _, model, _, _ in spec_reference.GROUPS} == {"JobSpec", *schema["$defs"]}


@pytest.mark.parametrize(("path", "example"), [(path, example) for path, _, _, example in spec_reference.GROUPS])
def test_the_examples_of_the_reference_would_be_accepted(path: str, example: dict[str, Any]) -> None:
    body: dict[str, Any] = {
        "resources": {"devices": 4},
        "parallelism": {"strategy": "ddp"},
        "program": {
            "model": {"ref": "mlp"},
            "data": {"ref": "digits"},
            "loss": {"ref": "cross_entropy"},
            "optimizer": {"ref": "sgd"},
            "evaluate": {"data": {"ref": "digits"}},
        },
    }
    *parents, last = path.removesuffix(".*").split(".")
    holder = reduce(lambda part, name: part[name], parents, body)
    if path in ("", "program.*"):
        (holder if not path else body["program"]).update(example)
    else:
        holder[last] = example
    assert catalogue.check(parse_spec(json.dumps(body))) == []


# -- settings --------------------------------------------------------------------------------------


def test_every_setting_is_documented_in_its_own_words() -> None:
    documented = {row[0].strip("`"): row[2] for row in rows(SETTINGS, "# Settings")}
    fields = {f"SHARDYARD_{field.upper()}": value for field, value in Settings.model_fields.items()}
    assert list(documented) == list(fields)
    for variable, field in fields.items():
        assert documented[variable].replace("\\|", "|") == field.description, variable


def test_the_defaults_of_settings_are_documented() -> None:
    documented = {row[0].strip("`"): row[1].strip("`") for row in rows(SETTINGS, "# Settings")}
    for field, value in Settings.model_fields.items():
        shown = documented[f"SHARDYARD_{field.upper()}"]
        if value.default_factory is not None:
            assert shown == "the host's name"
        else:
            assert shown == ("" if value.default in (None, "") else str(value.default)), field


# -- the report ------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_reports_that_are_shown_are_what_their_json_renders_to(document: Path) -> None:
    for source, shown in re.findall(
        r"<!-- report: (\S+) -->\n```text(?: title=\"prints\")?\n(.*?)```", document.read_text(), re.DOTALL
    ):
        report = decode_report((ROOT / source).read_bytes())
        rendered = report_text.render_report(report) + report_text.render_report(report, notes=True)
        for piece in shown.split("...\n"):
            assert piece.strip("\n") in rendered, f"render {source} again and paste it into {document.name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_comparisons_that_are_shown_are_what_their_reports_give(document: Path) -> None:
    pairs = re.findall(r"<!-- reports: (\S+) (\S+) -->\n```text\n(.*?)```", document.read_text(), re.DOTALL)
    for this, against, shown in pairs:
        sides = [decode_report((ROOT / source).read_bytes()) for source in (this, against)]
        rendered = diff_text.render_diff(report_diff.compare_reports(*sides))
        for piece in shown.split("...\n"):
            assert piece.strip("\n") in rendered, f"compare {this} and {against} again, and paste it"


def test_the_classic_cases_are_shown_from_reports_of_their_own_specs() -> None:
    for source in re.findall(r"<!-- report: docs/examples/(\S+)\.json -->", REPORT):
        shown = decode_report((ROOT / f"docs/examples/{source}.json").read_bytes())
        if shown.prediction.matches is None:  # a script's, which nobody can plan
            continue
        wanted = parse_spec((ROOT / f"examples/jobs/{source}.json").read_bytes())
        planned = predict_splits(wanted, catalogue.dataset_rows(wanted.recipe.data)).run
        assert [(p.rows, p.steps) for p in planned] == [(p.rows, p.steps) for p in shown.patterns], source


def test_the_readme_shows_a_whole_report_and_one_with_idle_devices() -> None:
    assert len(re.findall(r"<!-- report: ", README)) >= 2
    assert "idle-devices" in README


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_field_of_a_real_report_is_explained(example: Path) -> None:
    def fields(value: object) -> set[str]:
        if isinstance(value, dict):
            return set(value) | {field for part in value.values() for field in fields(part)}
        if isinstance(value, list):
            return {field for part in value for field in fields(part)}
        return set()

    body = json.loads(example.read_text())
    del body["notes"]  # its keys are paths, not fields
    for finding in body["findings"]:
        finding.pop("numbers", None)  # named as in the message
    for device in body.get("hardware") or ():
        del device["series"]  # those are explained in api.md
    missing = {field for field in fields(body) if f"`{field}`" not in REPORT}
    assert not missing


def test_every_finding_is_explained() -> None:
    from jobs.splits.findings.hardware_findings import CODES as HARDWARE_CODES
    from jobs.splits.findings.time_findings import CODES as TIME_CODES
    from jobs.splits.findings.uneven_work import CODES as WORK_CODES
    from jobs.splits.lint import _REMEDIES
    from shardyard.contract.batch_growth import CODE as GROWTH_CODE
    from workers.supervisor.report.findings.gradient_findings import CODES as GRADIENT_CODES
    from workers.supervisor.report.findings.script_lint import CODES

    documented = {row[0].strip("`") for row in rows(REPORT, "## Findings")}
    elsewhere = TIME_CODES | HARDWARE_CODES | WORK_CODES | GRADIENT_CODES | {GROWTH_CODE}
    assert documented == set(_REMEDIES) | CODES | elsewhere
    made = codes_in_the_code()
    assert made
    assert made <= documented
    lines = REPORT.split("### A line of each\n", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"^\[(?:info|warning)\] ([a-z-]+): ", lines, re.MULTILINE)) == documented


def codes_in_the_code() -> set[str]:
    """The codes of findings that are made anywhere: first arguments of calls that make one."""
    files = [path for folder in ("jobs/splits", "workers/supervisor/report") for path in (ROOT / folder).rglob("*.py")]
    nodes = (node for path in files for node in ast.walk(ast.parse(path.read_text())))
    calls = [node for node in nodes if isinstance(node, ast.Call) and node.args]
    makers = ("Finding", "Problem", "_warning", "_info")
    firsts = [call.args[0] for call in calls if ast.unparse(call.func).endswith(makers)]
    return {first.value for first in firsts if isinstance(first, ast.Constant) and isinstance(first.value, str)}


# -- job specs -------------------------------------------------------------------------------------


def specs_in(document: Path) -> list[str]:
    text = document.read_text()
    found = re.findall(r"<<'EOF'\n(\{.*?\n\})\nEOF", text, re.DOTALL)
    found += [block for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL) if '"program"' in block]
    return found


def test_the_readme_has_a_job_to_copy() -> None:
    assert specs_in(ROOT / "README.md")


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_job_specs_in_documents_would_be_accepted(document: Path) -> None:
    for body in specs_in(document):
        assert catalogue.check(parse_spec(body)) == []


def test_the_readmes_job_gives_the_split_that_the_readme_shows() -> None:
    (body, *_) = specs_in(ROOT / "README.md")
    wanted = parse_spec(body)
    shown = decode_report((ROOT / "docs/examples/three-of-thirty.json").read_bytes())
    planned = predict_splits(wanted, catalogue.dataset_rows(wanted.recipe.data)).run
    assert [(p.rows, p.steps) for p in planned] == [(p.rows, p.steps) for p in shown.patterns]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_parts_of_a_report_are_those_of_the_file_they_come_from(document: Path) -> None:
    for source, shown in re.findall(r"<!-- part of (\S+) -->\n```json\n(.*?)```", document.read_text(), re.DOTALL):
        whole = json.loads((ROOT / source).read_text())
        part = json.loads(shown)
        assert part == {field: whole[field] for field in part}


# -- examples --------------------------------------------------------------------------------------


def test_every_example_has_a_line_of_its_own() -> None:
    listed = [row[0] for row in rows((ROOT / "examples" / "README.md").read_text(), "largest of these asks for.")]
    assert sorted(listed) == sorted(f"[{example}](jobs/{example}.json)" for example in JOBS)


def test_the_programs_are_examples_that_exist() -> None:
    named = {
        example
        for row in rows(PROGRAMS, "# The classic programs as jobs")
        for example in re.findall(r"`([^`]+)`", row[1])
    }
    named -= {"examples/jobs/", "--watch"}
    assert named
    assert named <= JOBS
    assert set(re.findall(r"examples/jobs/([\w-]+)\.json", PROGRAMS)) <= JOBS


# -- the command line ------------------------------------------------------------------------------


def commands() -> Iterator[str]:
    """What a user can type behind `shardyard`."""
    from typer.main import get_command

    from shardyard.cli import app

    for command, group in get_command(app).commands.items():  # type: ignore[attr-defined]
        below = getattr(group, "commands", None)
        yield from [command] if below is None else (f"{command} {sub}" for sub in below)


def test_every_command_is_mentioned_in_a_document() -> None:
    text = " ".join(" ".join(document.read_text() for document in DOCUMENTS).split())
    missing = [command for command in commands() if not re.search(rf"\bshardyard {command}\b", text)]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_commands_that_a_document_names_exist(document: Path) -> None:
    known = {command.split()[0] for command in commands()}
    command = r"(?<!from)(?:^|[`$/ ])shardyard ([a-z]+)\b(?= [-A-Z$]|`|$)"
    named = set(re.findall(command, document.read_text(), re.MULTILINE))
    assert named <= known


# -- what is missing -------------------------------------------------------------------------------

MISSING = README.split("## What it does not do yet\n", 1)[1]


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("a job runs on one node", {"resources": {"nodes": 2}, "parallelism": {"strategy": "ddp"}}),
        ("no stall watchdog", {"limits": {"stall_seconds": 60}}),
    ],
)
def test_what_the_readme_says_is_missing_is_refused(words: str, change: dict[str, Any]) -> None:
    (body, *_) = specs_in(ROOT / "README.md")
    wanted: dict[str, Any] = json.loads(body)
    for part, fields in change.items():
        wanted[part] = wanted.get(part, {}) | fields
    try:
        parse_spec(json.dumps(wanted))
        refused = False
    except InvalidSpec:
        refused = True
    assert refused == (words in MISSING.lower())


def test_the_readme_explains_every_strategy() -> None:
    explained = {row[0].strip("`") for row in rows(README, "## Strategies")}
    known = set(get_args(ParallelismSpec.model_fields["strategy"].annotation))
    assert explained == known


# -- benchmarks ------------------------------------------------------------------------------------


def test_the_tables_of_the_benchmarks_are_those_of_their_results() -> None:
    made = results.summary(results.DIRECTORY)
    assert (results.DIRECTORY / "README.md").read_text() == made, "python -m benchmarks --table"
    found, headlines = (ROOT / "README.md").read_text(), results.headlines(results.DIRECTORY)
    assert results.insert(found, headlines) == found, "python -m benchmarks --table"


def test_the_headlines_are_figures_of_the_results() -> None:
    for name, wanted, side in results.HEADLINES:
        _, figures = results.read(results.DIRECTORY / f"{name}.json")
        assert any(side in figure.samples for figure in figures if figure.name == wanted), (name, wanted)
