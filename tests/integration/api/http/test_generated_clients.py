"""Generators of clients understand the OpenAPI document: they do not warn, and what they make reads answers."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.integration.api.conftest import Api

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

PYTHON_GENERATOR = "openapi-python-client==0.29.1"
#: Has the generator of the page's own types.
WEB = Path(__file__).parents[4] / "web"
SECONDS = 240


def fetch(*command: str, cwd: Path) -> None:
    """Get a generator from its registry. Without one the test is skipped, but not in CI."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        assert not os.environ.get("CI"), done.stdout + done.stderr
        pytest.skip(f"{command[0]} cannot get the generator: {done.stderr[-300:]}")


def generate(*command: str, cwd: Path, **variables: str) -> str:
    """What a generator says while it works."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture
async def description(api: Api, tmp_path: Path) -> Path:
    (tmp_path / "openapi.json").write_bytes(msgspec.json.encode(await api.get("/openapi.json")))
    return tmp_path


async def test_a_generated_python_client_reads_the_answers(
    api: Api, description: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without what it depends on: that is here, and it would bring an older typer.
    tools = description / "tools"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    fetch(*pip, "--target", str(tools), PYTHON_GENERATOR, cwd=description)
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    made = description / "shardyard_generated"
    run = (sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none", "--fail-on-warning")
    said = generate(
        *run, "--path", "openapi.json", "--output-path", str(made), cwd=description, PYTHONPATH=str(tools), PATH=path
    )
    assert "warning" not in said.lower(), said

    api.node()
    job = await api.submit(labels={"team": "vision"})
    monkeypatch.syspath_prepend(description)
    shown: Any = importlib.import_module("shardyard_generated.api.jobs.get_job")
    listed: Any = importlib.import_module("shardyard_generated.api.jobs.list_jobs")
    status = shown._parse_response(client=None, response=await api.client.get(f"/v1/jobs/{job}"))
    assert (status.id, status.labels["team"], status.state in ("queued", "starting")) == (job, "vision", True)
    page = listed._parse_response(client=None, response=await api.client.get("/v1/jobs"))
    assert [one.id for one in page.jobs] == [job]
    missing: httpx.Response = await api.client.get("/v1/jobs/nothing")
    assert shown._parse_response(client=None, response=missing).code == "not_found"


@pytest.mark.slow
async def test_a_generated_typescript_client_compiles(description: Path) -> None:
    programs = WEB / "node_modules" / ".bin"
    if not (programs / "openapi-typescript").exists():
        assert not os.environ.get("CI"), "web/node_modules is missing"
        pytest.skip("web/node_modules is missing; `make web` brings it")
    make = (str(programs / "openapi-typescript"), "openapi.json", "--default-non-nullable=false")
    said = generate(*make, "--output", "schema.d.ts", cwd=description)
    assert "warn" not in said.lower(), said
    (description / "use.ts").write_text(
        'import type { components, operations } from "./schema";\n'
        'const state: components["schemas"]["JobStatus"]["state"] = "queued";\n'
        'const query: operations["listJobs"]["parameters"]["query"] = { state, limit: 5 };\n'
        'export const spec: components["schemas"]["JobSpec"]["resources"] = undefined;\n'
        "export { query };\n"
    )
    generate(str(programs / "tsc"), "--noEmit", "--strict", "--skipLibCheck", "use.ts", cwd=description)
