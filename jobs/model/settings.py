"""Every setting of the service, read from `SHARDYARD_*` variables. `shardyard config` lists them.

Nothing reads the environment at import: an entry point calls `Settings()` once and passes it on.
"""

import ipaddress
import socket
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from jobs.model.error_words import pattern
from jobs.model.mail import domain_of, parse_domains, parse_mail_server
from jobs.model.pool_policy import MAX_POOL_LENGTH, POOL_PATTERN

Seconds = Annotated[float, Field(gt=0, le=86_400)]
#: Of one machine.
MAX_VIRTUAL_NODES = 16
MAX_NODE_LENGTH = 63
NODE_PATTERN = pattern(
    r"^[A-Za-z0-9][A-Za-z0-9._-]*$", "letters, digits, dots, underscores and hyphens, a letter or digit first"
)
#: Compose files set what is not given to nothing.
OptionalFile = Annotated[Path | None, BeforeValidator(lambda value: value or None)]


def _require_networks(text: str) -> str:
    parse_networks(text)
    return text


def _require_mail_server(text: str) -> str:
    if text:
        parse_mail_server(text)
    return text


def _require_mail_address(text: str) -> str:
    if text:
        domain_of(text)
    return text


def _require_domains(text: str) -> str:
    parse_domains(text)
    return text


def _require_public_url(text: str) -> str:
    if text:
        url = urlsplit(text)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("SHARDYARD_PUBLIC_URL must begin with https:// or http://, and have a host")
        if "@" in url.netloc or "?" in text or "#" in text:
            raise ValueError("SHARDYARD_PUBLIC_URL must have no user, no query and no fragment")
        if not (text.isascii() and text.isprintable()) or set(text) & set(' "<>|\\'):
            raise ValueError("SHARDYARD_PUBLIC_URL has a character that no URL has")
    return text


def parse_networks(text: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Networks in CIDR form with commas between them. Raises ValueError."""
    return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="SHARDYARD_", frozen=True)

    redis_url: SecretStr | None = Field(
        None,
        description="control Redis, which stores the jobs: redis://, rediss:// or unix://; redis+sentinel:// or "
        "rediss+sentinel:// where Sentinels watch it",
    )
    telemetry_url: SecretStr | None = Field(
        None, description="telemetry Redis, for logs, metrics and reports; by default the control Redis"
    )
    supervisor_redis_url: SecretStr | None = Field(
        None, description="control Redis with the user of supervisors, for a worker to pass on; by default its own"
    )
    supervisor_telemetry_url: SecretStr | None = Field(
        None, description="telemetry Redis with the user of supervisors; by default the worker's own"
    )
    storage: Path = Field(
        Path("~/.local/share/shardyard/storage"),
        description="directory that the API and all nodes share: logs, reports, artifacts, bundles. Or, the same for "
        "all, a bucket: s3://bucket/prefix. On a node that has neither: service, or file:///directory, to which its "
        "files are carried",
    )
    cache_bytes: int = Field(
        10_737_418_240,
        ge=64 * 1024**2,
        le=2**53,
        description="where the API keeps its files in a bucket: what copies of them may take below its "
        "SHARDYARD_STATE_DIR",
    )
    redirect_bytes: int = Field(
        0,
        ge=0,
        le=2**53,
        description="where the API keeps its files in a bucket: larger artifacts are fetched from there, by a URL that "
        "is valid for ten minutes; 0: all come through the API",
    )
    url: str = Field("", max_length=500, description="on a node with SHARDYARD_STORAGE=service: URL of the API")
    node_token: SecretStr | None = Field(
        None, max_length=1024, description="token with the scope node, for carrying files to the API"
    )
    node_token_file: OptionalFile = Field(None, description="file with that token, mode 0600")
    ca: OptionalFile = Field(
        None, description="PEM file with the authorities that the API's certificate is checked against"
    )
    carry_bytes: int = Field(
        20 * 1024**3,
        ge=16 * 1024**2,
        le=2**53,
        description="what a node may have on its disk that is still to be carried; above it, jobs wait with their next "
        "checkpoint",
    )

    data_root: Path | None = Field(
        None, description="directory from which jobs may read data files (cifar10, npz, safetensors); without it, none"
    )

    host: str = Field("127.0.0.1", description="address that the API listens on")
    port: int = Field(8000, ge=0, le=65535, description="port that the API listens on; 0 selects a free one")
    allowed_hosts: str = Field(
        "", description="further names in the Host header that the API answers to, comma-separated"
    )
    tls_cert: OptionalFile = Field(
        None, description="PEM file with the certificate that the API serves HTTPS with, and its chain"
    )
    tls_key: OptionalFile = Field(
        None, description="PEM file with that certificate's private key, not encrypted, closed to other accounts"
    )
    insecure_http: bool = Field(
        False, description="accept that the API listens on an address that others can reach without TLS"
    )
    join_file: OptionalFile = Field(
        None,
        description="file with what a joining machine receives, mode 0600; `shardyard up --listen` writes it",
    )
    admin_token: SecretStr | None = Field(
        None, description="admin token to accept; without it, one is created and stored in a file"
    )
    admin_token_file: Path | None = Field(None, description="file with the admin token, mode 0600")
    secret_key_file: Path | None = Field(
        None,
        description="file with the keys that secrets of users are encrypted with, mode 0600; the same for the API and "
        "all workers",
    )
    max_body_bytes: int = Field(1_048_576, ge=1024, le=1 << 30, description="largest JSON body")

    public_url: Annotated[str, AfterValidator(_require_public_url)] = Field(
        "",
        max_length=500,
        description="address of this service in people's browsers, for example https://shardyard.example.com; for "
        "single sign-on, and for links to jobs in messages",
    )
    oidc_issuer: str = Field(
        "",
        max_length=500,
        description="identity provider of single sign-on: its issuer, exactly as its discovery document has it; "
        "without it, people sign in with tokens",
    )
    oidc_client_id: str = Field("", max_length=500, description="id of this service at the identity provider")
    oidc_client_secret: SecretStr | None = Field(
        None, description="its secret there; without it, and without the file, the client is a public one"
    )
    oidc_client_secret_file: OptionalFile = Field(None, description="file with that secret")
    oidc_rules_file: OptionalFile = Field(
        None, description="TOML file with the access rules: which tenant and scopes somebody gets for which claim"
    )
    oidc_scopes: str = Field(
        "openid profile email",
        max_length=500,
        pattern=r"^([!-~]+ )*openid( [!-~]+)*$",
        description="scopes that the identity provider is asked for; some send groups only for a scope of their own",
    )
    oidc_session_seconds: float = Field(
        28_800,
        ge=60,
        le=604_800,
        description="how long somebody stays signed in by single sign-on before the identity provider is asked again",
    )

    webhook_networks: Annotated[str, AfterValidator(_require_networks)] = Field(
        "",
        max_length=4096,
        description="networks that webhooks may go to although they are not public, comma-separated: 10.1.0.0/16; "
        "there, http:// is accepted as well",
    )
    mail_server: Annotated[str, AfterValidator(_require_mail_server)] = Field(
        "",
        max_length=512,
        description="server that sends mails of webhooks: smtp://host:587 (with STARTTLS) or smtps://host:465; without "
        "it, there are none",
    )
    mail_user: str = Field("", max_length=320, description="user of the mail server; without one, no sign-in")
    mail_password: SecretStr = Field(SecretStr(""), max_length=1024, description="password of that user")
    mail_from: Annotated[str, AfterValidator(_require_mail_address)] = Field(
        "", max_length=254, description="address that mails come from"
    )
    mail_domains: Annotated[str, AfterValidator(_require_domains)] = Field(
        "",
        max_length=4096,
        description="domains that webhooks may send mails to, comma-separated: example.com; *: all; without one, none",
    )
    token_requests: int = Field(
        60_000, ge=0, le=2**31, description="requests that a token may send in a minute; 0: any number"
    )
    tenant_requests: int = Field(
        120_000, ge=0, le=2**31, description="requests that all tokens of a tenant may send in a minute; 0: any number"
    )

    max_bundle_bytes: int = Field(268_435_456, ge=1024, le=1 << 31, description="largest zip of a bundle")
    max_bundles_bytes: int = Field(21_474_836_480, ge=1024, description="largest total size of all bundles of a tenant")
    bundle_hours: float = Field(
        24, gt=0, le=87_600, description="how long a bundle that no job needs is kept after it was last used"
    )

    max_artifact_bytes: int = Field(
        2_147_483_648,
        ge=0,
        le=2**53,
        description="the most that is kept of the files that a script leaves in its working directory; for all "
        "attempts of a job together",
    )

    retention_days: float = Field(
        30, ge=0, le=36_500, description="how long a finished job stays in Redis before it is archived; 0: forever"
    )
    archive_days: float = Field(
        0, ge=0, le=36_500, description="how long an archived job is kept, with its files; 0: forever"
    )
    audit_days: float = Field(
        365, ge=0, le=36_500, description="how long entries of the audit are kept, by whole days; 0: forever"
    )

    node: str = Field(
        default_factory=lambda: socket.gethostname().lower()[:MAX_NODE_LENGTH],
        min_length=1,
        max_length=MAX_NODE_LENGTH,
        pattern=NODE_PATTERN,
        description="this node's id; its Celery queue is node.<id>",
    )
    pool: str = Field("default", max_length=MAX_POOL_LENGTH, pattern=POOL_PATTERN, description="pool this node serves")
    devices: str = Field("auto", description="auto | cuda:0-3 | cuda:0,2 | cpu:8 (eight virtual devices)")
    environments: str = Field(
        "",
        description="Python environments that scripts may name (program.python), each with torch: "
        "name=/path/to/python, comma-separated",
    )
    node_address: str = Field("127.0.0.1", description="address that rendezvous stores of this node listen on")
    topology: str = Field(
        "",
        max_length=63,
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._/-]*)?$",
        description="where this node is, for example its rack or switch: a job on several nodes gets those of one "
        "label first",
    )
    block: str = Field(
        "",
        max_length=63,
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$",
        description="block of an engine that this node is part of, for example the id of a Slurm job: the node is "
        "forgotten when that is over; without it, the node is permanent",
    )
    nodes: int = Field(
        1,
        ge=1,
        le=MAX_VIRTUAL_NODES,
        description="virtual nodes that `shardyard up` makes of this machine, with virtual devices; 1: the machine is "
        "the node",
    )
    virtual_node: int = Field(
        0,
        ge=0,
        le=MAX_VIRTUAL_NODES,
        description="which of them this worker is, from 1, as `shardyard up` sets it; 0: it is none",
    )
    state_dir: Path = Field(
        Path("~/.local/state/shardyard"), description="node-local directory for locks of running attempts"
    )

    run_as: str = Field(
        "",
        max_length=64,
        description="unprivileged account that jobs run as, if the worker is root: name, uid:gid, or "
        "first-last:gid, which gives each device its own",
    )
    box: Literal["auto", "off"] = Field(
        "auto", description="box around every job: auto, the best that this host allows, or off"
    )
    jobs_unboxed: bool = Field(
        False,
        description="accept several tenants, and an address that others can reach, although nodes put no box around "
        "jobs",
    )
    rank_processes: int = Field(
        4096, ge=64, le=4_194_304, description="processes and threads that a job may have on this node"
    )
    job_memory_bytes: int = Field(
        0,
        ge=0,
        le=2**53,
        description="memory that a job may have on this node; 0: nine tenths of the host's, shared out by devices",
    )
    job_tmp_bytes: int = Field(
        0, ge=0, le=2**53, description="size of a job's own /tmp, which is in memory; 0: half of the job's memory"
    )
    job_shm_bytes: int = Field(
        0, ge=0, le=2**53, description="size of a job's own /dev/shm; 0: half of the job's memory"
    )
    job_log_bytes: int = Field(
        1_073_741_824,
        ge=65_536,
        le=2**53,
        description="what a job may print in one attempt, on all devices of a node together",
    )
    job_disk_bytes: int = Field(
        68_719_476_736,
        ge=1_048_576,
        le=2**53,
        description="what a job may have on disk in one attempt: working directory, artifacts, drafts of checkpoints",
    )
    job_files: int = Field(
        200_000, ge=100, le=2**31, description="files that a job may have in these directories in one attempt"
    )
    job_record_bytes: int = Field(
        1_073_741_824,
        ge=1_048_576,
        le=2**53,
        description="what the points of a job's metrics may take on disk in one attempt",
    )
    reserve_bytes: int = Field(
        1_073_741_824,
        ge=0,
        le=2**53,
        description="free space that the service keeps for itself on each of its disks, or a twentieth of a small "
        "disk; below it no job starts; 0: none",
    )

    lease_seconds: Seconds = Field(120, description="an attempt that sends no heartbeat for this long is lost")
    beat_seconds: Seconds = Field(5, description="how often supervisors and nodes send heartbeats")
    join_seconds: Seconds = Field(
        30, description="a job on several nodes starts again, on others if it can, when not all have joined by then"
    )
    node_seconds: Seconds = Field(30, description="a node that sends no heartbeat for this long gets no new work")
    reconcile_seconds: Seconds = Field(2, description="how often lost hints are sent again and the queue is checked")
    hold_seconds: float = Field(60, ge=0, description="a job that has waited this long gets a node reserved for it")
    engine_seconds: Seconds = Field(30, description="how often a provider asks the engine what became of its blocks")
    avoid_slow_from: int = Field(
        0,
        ge=0,
        le=65_536,
        description="jobs with this many devices or more get recently slow devices only if no others are free; 0: no "
        "jobs",
    )
    grace_seconds: Seconds = Field(3, description="time between SIGTERM and SIGKILL for a rank")

    checkpoint_seconds: Seconds = Field(
        30, description="how long a stop waits for a job to save its checkpoint, if it saves any"
    )

    log_level: str = Field(
        "INFO",
        pattern=r"^(DEBUG|INFO|WARNING|ERROR)$",
        description="level of the service's own log: DEBUG, INFO, WARNING or ERROR",
    )

    @model_validator(mode="after")
    def _check_mail(self) -> Self:
        if self.mail_server and not self.mail_from:
            raise ValueError("SHARDYARD_MAIL_SERVER needs SHARDYARD_MAIL_FROM: say where mails come from")
        return self

    @property
    def nodes_here(self) -> int:
        """Nodes that share what this machine has, this one among them."""
        return self.nodes if self.virtual_node else 1

    def control_url(self) -> str:
        """URL of the control Redis.

        Raises:
            ValueError: none is set.
        """
        if self.redis_url is None:
            raise ValueError("SHARDYARD_REDIS_URL is not set; `shardyard up` starts a Redis and sets it")
        return self.redis_url.get_secret_value()

    def secret_keys(self) -> Path:
        """The file with the keys of secrets, which need not be there."""
        return (self.secret_key_file or self.state_dir / "secret-key").expanduser()

    def read_node_token(self) -> str:
        """The token that files are carried to the API with; "" where there is none.

        Raises:
            OSError: its file cannot be read.
        """
        if self.node_token is not None:
            return self.node_token.get_secret_value()
        return "" if self.node_token_file is None else self.node_token_file.expanduser().read_text().strip()

    def telemetry(self) -> str:
        """URL of the telemetry Redis (the control one where no other is set)."""
        return self.telemetry_url.get_secret_value() if self.telemetry_url is not None else self.control_url()

    def supervisor_urls(self) -> tuple[str, str]:
        """URLs of the control and the telemetry Redis for supervisors (the worker's own where no others are set)."""
        control, telemetry = self.supervisor_redis_url, self.supervisor_telemetry_url
        return (
            self.control_url() if control is None else control.get_secret_value(),
            self.telemetry() if telemetry is None else telemetry.get_secret_value(),
        )
