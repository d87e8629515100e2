"""Joins this machine to a service: asks it for what a node needs, stores that, checks that all works, and starts."""

import asyncio
import os
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import httpx
import msgspec
from pydantic import ValidationError

from jobs.files.identity import NONCE_FILE
from jobs.model.settings import Settings
from shardyard.contract.errors import Forbidden, InvalidRequest, ShardyardError, Unauthenticated, Unavailable
from shardyard.contract.joins import NodeSetup
from shardyard.service.joining import checks, systemd
from shardyard.service.joining.checks import Check, CheckResult
from shardyard.service.joining.pinned import split_address, trust_fingerprint
from shardyard.service.joining.reach import check_reach
from shardyard.service.joining.settings_file import NodeFiles, bucket_variables, default_directory

ASK_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """`url`, `token`: of the service; without them the machine has joined before. `name`, `address`: of the node, found
    where they are not given. The other texts are settings of the worker; "" leaves what was there."""

    url: str = ""
    token: str = field(default="", repr=False)
    fingerprint: str = ""
    name: str = ""
    address: str = ""
    devices: str = ""
    pool: str = ""
    topology: str = ""
    directory: Path = field(default_factory=default_directory)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the service has answered, and when it was asked and has answered by this machine's clock."""

    setup: NodeSetup
    asked: float
    answered: float
    base_url: str
    trusted: ssl.SSLContext
    is_pinned: bool
    headers: Mapping[str, str] = field(repr=False)


def prepare_node(options: JoinOptions, show: Callable[[Check], None]) -> bool:
    """Write the settings of this machine as a node, put them into this process's environment, and look whether all
    works. Whether nothing is in the way of its worker. `show` gets each check as it is done.

    Raises:
        InvalidRequest: an option is wrong, or the machine has not joined yet.
        Unavailable: the service does not answer.
        Unauthenticated, Forbidden: it refuses the token.
    """
    files = NodeFiles(options.directory.expanduser().absolute())
    known = files.read()
    asked = None
    if options.url:
        asked = _ask_service(options, known)
        chosen = _choose_settings(options, known, asked)
        known = files.write(asked.setup, chosen)
    elif not known:
        raise InvalidRequest(
            f"this machine has not joined a service ({files.settings} is not there): give the URL and the token that "
            "`shardyard up --listen` or `shardyard invite` prints on the service's machine"
        )
    else:
        known |= _options_of_worker(options)
    settings = _load_settings(known)
    passed = True
    for check in _all_checks(settings, asked):
        show(check)
        passed = passed and check.result is not CheckResult.FAILED
    return passed


def start_worker() -> NoReturn:
    """Become the worker's monitor, which gets this process's signals. The environment has its settings."""
    # -P: a directory called `jobs` or `workers` in the working directory must not shadow ours.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "workers.node.worker_monitor"])  # noqa: S606


def is_running() -> bool:
    """Whether the worker of this node runs here already."""
    return checks.worker_runs(Settings())


def install_service(options: JoinOptions) -> Path:
    """Have systemd run the worker; the unit's file. Raises as `systemd.install_unit`."""
    return systemd.install_unit(NodeFiles(options.directory.expanduser().absolute()), systemd.require_systemd())


# -- the service's answer ----------------------------------------------------------------------------


def _ask_service(options: JoinOptions, known: Mapping[str, str]) -> _Asked:
    address = split_address(options.url)
    base_url = f"https://{address.netloc}"
    if not options.token:
        raise InvalidRequest("--token is missing: `shardyard invite` on the service's machine prints the whole command")
    trusted = trust_fingerprint(address, options.fingerprint) if options.fingerprint else ssl.create_default_context()
    name = options.name or known.get("SHARDYARD_NODE") or Settings.model_fields["node"].get_default(
        call_default_factory=True
    )  # fmt: skip
    headers = {"Authorization": f"Bearer {options.token}"}
    with httpx.Client(base_url=base_url, verify=trusted, timeout=ASK_SECONDS) as client:
        has_token = known.get("SHARDYARD_NODE") == name and _is_good(client, known.get("SHARDYARD_NODE_TOKEN", ""))
        asked = time.time()
        setup = _post_join(client, headers, {"node": name, "wants_token": not has_token})
        answered = time.time()
    return _Asked(setup, asked, answered, base_url, trusted, bool(options.fingerprint), headers)


def _is_good(client: httpx.Client, token: str) -> bool:
    """Whether the service takes a token for files, which this machine may have from an earlier join."""
    if not token:
        return False
    try:
        answer = client.head(f"/v1/node/files/{NONCE_FILE}", headers={"Authorization": f"Bearer {token}"})
    except httpx.HTTPError:
        return False
    return answer.status_code == 200


def _post_join(client: httpx.Client, headers: Mapping[str, str], body: Mapping[str, object]) -> NodeSetup:
    try:
        answer = client.post("/v1/node/join", headers=dict(headers), json=dict(body))
    except httpx.HTTPError as error:
        hint = "; give --fingerprint, as `shardyard invite` prints it" if "CERTIFICATE_VERIFY" in str(error) else ""
        raise Unavailable(f"{client.base_url} does not answer: {error or type(error).__name__}{hint}") from error
    if answer.status_code == 200:
        try:
            return msgspec.json.decode(answer.content, type=NodeSetup)
        except msgspec.MsgspecError as error:
            raise Unavailable(f"{client.base_url} is a service of another version: {error}") from error
    raise _refusal(answer)


def _refusal(answer: httpx.Response) -> ShardyardError:
    try:
        said = str(answer.json()["detail"])[:500]
    except (ValueError, KeyError, TypeError):
        said = f"what answers at {answer.url.host} is not Shardyard ({answer.status_code})"
    match answer.status_code:
        case 401:
            return Unauthenticated(
                f"{said}: `shardyard invite` on the service's machine prints a new command; a machine that has joined "
                "before starts with `shardyard join` alone"
            )
        case 403:
            return Forbidden(said)
        case 422 | 409 | 400 | 404:
            return InvalidRequest(said)
    return Unavailable(said)


# -- settings ----------------------------------------------------------------------------------------


def _choose_settings(options: JoinOptions, known: Mapping[str, str], asked: _Asked) -> dict[str, str]:
    state_dir = known.get("SHARDYARD_STATE_DIR") or os.environ.get("SHARDYARD_STATE_DIR") or "~/.local/state/shardyard"
    address = split_address(asked.base_url)
    try:
        found = options.address or checks.find_address(str(address.hostname), address.port or 443)
    except OSError as error:
        raise Unavailable(f"there is no route to {address.hostname}: {error.strerror or error}") from error
    return {
        "SHARDYARD_NODE_ADDRESS": found,
        "SHARDYARD_STATE_DIR": str(Path(state_dir).expanduser().absolute()),
        **bucket_variables(os.environ),
        **_options_of_worker(options),
    }


def _options_of_worker(options: JoinOptions) -> dict[str, str]:
    found = {"DEVICES": options.devices, "POOL": options.pool, "TOPOLOGY": options.topology}
    return {f"SHARDYARD_{name}": value for name, value in found.items() if value}


def _load_settings(variables: Mapping[str, str]) -> Settings:
    """The settings of the worker, which this process has from here on."""
    os.environ.update(variables)
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        name = "SHARDYARD_" + str(first["loc"][0]).upper()
        raise InvalidRequest(f"{name} is {variables.get(name)!r}: {first['msg']}") from None


# -- checks ------------------------------------------------------------------------------------------


def _all_checks(settings: Settings, asked: _Asked | None) -> Iterator[Check]:
    control, telemetry = settings.control_url(), settings.telemetry()
    of_supervisor = settings.supervisor_urls()
    if asked is not None:
        yield Check("service", CheckResult.PASSED, f"{asked.base_url}, {_how_trusted(asked)}")
        yield checks.check_version(asked.setup)
        yield checks.check_name(asked.setup, runs_here=checks.worker_runs(settings))
        yield checks.check_clock(asked.setup, asked.asked, asked.answered)
        yield checks.check_address(asked.setup, settings.node_address)
    else:
        yield Check("service", CheckResult.UNKNOWN, "version and clock", "they are compared when a token is given")
    for what, url, user in (
        ("control Redis", control, "workers"),
        ("control Redis", of_supervisor[0], "supervisors"),
        ("telemetry Redis", telemetry, "workers"),
        ("telemetry Redis", of_supervisor[1], "supervisors"),
    ):
        yield checks.check_redis(f"{what}, {user}", url, user)
    yield checks.check_storage(settings)
    if asked is not None:
        yield asyncio.run(check_reach(asked.base_url, asked.headers, asked.trusted, settings.node_address))
    yield checks.other_nodes()
    yield checks.check_name_lookup(settings.node_address)
    yield checks.check_disk(settings)
    yield from checks.check_torch(asked.setup if asked is not None else None, settings)
    yield checks.check_box(settings)


def _how_trusted(asked: _Asked) -> str:
    return "its certificate is the one announced" if asked.is_pinned else "signed by an authority of this system"
