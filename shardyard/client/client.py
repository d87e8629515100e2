"""`Client` and `Job`: they block until the service has answered.

Generated from `async_client.py` by `python -m tools.generate_sync_client`: change that file, not this one.
"""

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar, Unpack

import httpx

from shardyard.client import audit_entries, downloads, endpoints, operations
from shardyard.client.connection import find_service
from shardyard.client.data_frames import METRIC_COLUMNS, Rows, attempt_rows, metric_rows
from shardyard.client.endpoints import Spec
from shardyard.client.groups.methods import GroupMethods
from shardyard.client.job_handle import BlockingJobHandle
from shardyard.client.notebook import LiveCard, SpecPlan
from shardyard.client.pages import BlockingPages
from shardyard.client.transport import BlockingTransport, ConnectionOptions, Flow, HttpCall, Items
from shardyard.client.webhooks import WebhookMethods
from shardyard.contract import fleet, quotas, responses, scheduling
from shardyard.contract.audit import AuditEntry
from shardyard.contract.errors import NotFound
from shardyard.contract.gate import GateVerdict
from shardyard.contract.responses import JobSummary
from shardyard.specs.builders import Script

if TYPE_CHECKING:
    import ssl

    from shardyard.client.events import Event
    from shardyard.client.report import SplitReport
    from shardyard.client.scripts import ScriptOptions

T = TypeVar("T")


class Client(WebhookMethods, GroupMethods):
    """A client of a service. Several threads may use it.

    Without a URL or token it finds them as the command line does: SHARDYARD_URL and SHARDYARD_TOKEN,
    else the service that `shardyard up` runs on this machine. `attempts`: how often a request that is
    safe to repeat is tried while the service is away; `timeout`: seconds for a connection and for each
    answer, by default 5 and 30; `proxy`: the URL of one, in place of what HTTPS_PROXY and the like say;
    `verify`: a file of certificates to trust, an `ssl.SSLContext`, for example with a certificate of your
    own, or False to accept any.

    Raises:
        InvalidRequest: the URL, the proxy or `verify` cannot be used.
        Unavailable: no URL is given, and no service runs here.
        Unauthenticated: no token is given, and the local one is not for this URL.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        attempts: int = operations.ATTEMPTS,
        timeout: float | None = None,
        proxy: str | None = None,
        verify: "ssl.SSLContext | str | os.PathLike[str] | bool | None" = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        address = find_service(url, token)
        self.url = address.url
        self._attempts = max(1, attempts)
        self._wire = BlockingTransport(address, transport, ConnectionOptions(timeout, proxy, verify))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._wire.close()

    def __repr__(self) -> str:
        return f"<Client of {self.url}>"

    def call(self, call: HttpCall[T]) -> T:
        """One request of `shardyard.client.endpoints`, and its answer as a value."""
        return self.run(operations.call_endpoint(call, self._attempts))

    def json(self, call: HttpCall[Any]) -> Any:
        """The same, with the answer's JSON unchanged, including fields that this version does not know."""
        return self.run(operations.call_for_json(call, self._attempts))

    def run(self, flow: Flow[T]) -> T:
        """The result of a flow of `shardyard.client.operations`, which may send several requests."""
        return self._wire.run(flow)

    def items(self, items: Items[T]) -> Generator[T, None, None]:
        """The items of a paged or endless flow of `shardyard.client.operations`, one by one."""
        return self._wire.items(items)

    # -- jobs --------------------------------------------------------------------------------------

    def submit(self, spec: Spec | Script, *, key: str | None = None) -> "Job":
        """Create a job from a spec: a `Recipe`, a `Script`, whose directory is sent, a mapping, JSON, or the path of a
        file. The same `key` never creates a second job.

        Raises:
            InvalidSpec: the spec breaks a rule; `fields` says where.
            InvalidRequest: the directory of a script cannot be packed.
        """
        if isinstance(spec, Script):
            return self._submit_program(spec, spec.to_spec(), key)
        return Job(self, self.call(endpoints.submit_job(spec, key)))

    def submit_script(
        self,
        path: str | os.PathLike[str],
        args: Sequence[str] = (),
        *,
        entrypoint: str | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        **options: Unpack["ScriptOptions"],
    ) -> "Job":
        """Run a Python file, whose directory is sent with it, or a directory in which `entrypoint` says what runs.

        Files that .gitignore names are not sent, unless `include` names them; `exclude` leaves out more. The directory
        is uploaded only if the service does not have exactly these files. Options: those of `ScriptOptions`, which set
        fields of the job spec.

        Raises:
            InvalidRequest: the program is not there, or the directory cannot be packed.
        """
        from shardyard.client import scripts

        wanted = scripts.build_script_spec(args, **options)
        script = Script(path=path, entrypoint=entrypoint, include=include, exclude=exclude)
        return self._submit_program(script, wanted, None)

    def _submit_program(self, script: Script, wanted: dict[str, Any], key: str | None) -> "Job":
        from shardyard.client import scripts

        program = scripts.locate_program(script.path, script.entrypoint)
        file, bundle = scripts.pack_program(program, script.include, script.exclude)
        with file:
            spec = scripts.complete_spec(wanted, bundle=bundle.id, entrypoint=program.entrypoint)
            return Job(self, self.run(operations.submit_bundled(spec, file, bundle, key=key)))

    def plan(self, spec: Spec, *, against: str | None = None) -> SpecPlan:
        """The predicted splits of a spec, with findings, also beside the steps of the job `against`; nothing is
        created."""
        return self.call(endpoints.plan_job(spec, against=against))

    def job(self, job: str) -> "Job":
        """A job by its id, by a beginning or an end of it, by its name (the newest of that name), or as `@last`, the
        newest of yours, or `@last~2`, the second before it.

        Raises:
            NotFound: there is none.
            AmbiguousReference: several fit; `candidates` has them.
        """
        return Job(self, self.call(endpoints.find_job(job)))

    def jobs(
        self,
        *,
        state: str | None = None,
        pool: str | None = None,
        label: str | None = None,
        name: str | None = None,
        archived: bool = False,
        limit: int | None = None,
    ) -> "BlockingPages[Job]":
        """All your jobs, or those that match, newest first, at most `limit`; pages are fetched when they are needed.
        Beside iterating, they can be indexed and sliced, and are a table of pandas with `to_pandas()`."""
        chosen: dict[str, Any] = {
            "state": state,
            "pool": pool,
            "label": label,
            "name": name,
            "archived": archived or None,
        }

        def read() -> Iterator["Job"]:
            found = self.items(operations.list_all_jobs(limit=limit, **chosen))
            return (Job(self, known) for known in found)

        return BlockingPages(read)

    def cancel_jobs(self, **chosen: Any) -> tuple[int, int]:
        """Cancel all jobs that match `state`, `pool`, `label`, `name`, or with `all=True` every one.

        Returns how many were cancelled at once, and how many running ones are being ended.
        """
        return self.run(operations.cancel_many(chosen))

    def log_pages(self, job: str, **chosen: Any) -> Generator[responses.LogPage, None, None]:
        """Lines of a job in pages, with the numbers of dropped ones. `follow`, `tail`, `after`, and the filters of
        `Job.logs`."""
        return self.items(operations.log_pages(job, **chosen))

    def events(self, *, after: str | None = None) -> Generator["Event", None, None]:
        """Events of the service: `JobChanged`, `JobGone`, `FleetChanged`, `Resync`; the stream does not end by
        itself."""
        return self.items(operations.service_events(after))

    # -- bundles -----------------------------------------------------------------------------------

    def upload_bundle(
        self, zipped: BinaryIO, advanced: Callable[[int], None] = lambda count: None
    ) -> responses.BundleView:
        """Upload a zip of code; its id goes into `program.bundle`. The same bytes have the same id.

        `advanced` is called with the number of bytes after each part, and with a negative number if they are sent
        again.

        Raises:
            BadBundle: it breaks a rule on bundles.
            BodyTooLarge: it is larger than this service accepts.
        """
        return self.call(endpoints.upload_bundle(zipped, advanced))

    def bundle(self, bundle: str) -> responses.BundleContents:
        """The contents of a bundle. Raises NotFound."""
        return self.call(endpoints.get_bundle(bundle))

    def delete_bundle(self, bundle: str) -> None:
        """Delete a bundle that no job needs. Raises NotFound, BundleNeeded."""
        self.call(endpoints.delete_bundle(bundle))

    def has_bundle(self, bundle: str) -> bool:
        """Whether the service has a bundle with this id for this tenant."""
        try:
            self.bundle(bundle)
        except NotFound:
            return False
        return True

    # -- the service -------------------------------------------------------------------------------

    def missing(self) -> dict[str, str] | None:
        """The parts that the service still needs before it can run jobs; empty if it is ready, None if it does not
        answer. Sends one request."""
        return self.run(operations.missing_parts())

    def pools(self) -> list[fleet.PoolView]:
        return self.call(endpoints.list_pools()).pools

    def pool(self, pool: str) -> fleet.PoolView:
        """A pool and its policy. Raises NotFound."""
        return self.call(endpoints.get_pool(pool))

    def set_pool_policy(
        self, pool: str, *, box: str = "any", network: str = "none", preempt: bool | None = None
    ) -> fleet.PoolView:
        """Set which box a node of a pool must have to take work (any, user or full), and which network its jobs get
        (none, closed or host), and whether jobs of a higher priority take the devices of others (`preempt`). It applies
        to what starts from then on. Needs an admin token."""
        return self.call(endpoints.set_pool_policy(pool, box=box, network=network, preempt=preempt))

    def explain(self, job: str) -> scheduling.JobExplanation:
        """Why a job is in its state, and when it may start."""
        return self.call(endpoints.explain_job(job))

    def shares(self) -> list[scheduling.ShareView]:
        """The shares of all tenants that use the service, or have a weight of their own. Needs an admin token."""
        return self.call(endpoints.list_shares()).shares

    def share(self, tenant: str) -> scheduling.ShareView:
        """The weight of a tenant, and what it has used of each pool; of others than your own with an admin token."""
        return self.call(endpoints.get_share(tenant))

    def set_share(self, tenant: str, weight: float) -> scheduling.ShareView:
        """Set the weight of a tenant: one of weight 2 may use twice as much before others of its priority go first.
        Needs an admin token."""
        return self.call(endpoints.set_share(tenant, weight))

    def quota(self) -> list[quotas.QuotaView]:
        """What your tenant and your token may use, and what they do use."""
        return self.call(endpoints.get_own_quota()).quotas

    def set_quota(self, tenant: str, *, token_id: str | None = None, **limits: float) -> quotas.QuotaView:
        """Set what a tenant, or one of its tokens, may use: jobs, running, devices, device_hours, window_hours,
        spec_bytes, bundle_bytes, file_bytes. What is left out is not limited. Needs an admin token."""
        return self.call(endpoints.set_quota(tenant, limits, token_id))

    def nodes(self) -> list[fleet.NodeView]:
        return self.call(endpoints.list_nodes()).nodes

    def device_history(
        self, device: str, *, limit: int | None = None, cursor: str | None = None
    ) -> fleet.DeviceHistory:
        """What attempts have recorded about a device, the newest first: `device` is its `name_in_fleet`, or its node
        and label, such as "host-a:cuda:3"."""
        return self.call(endpoints.get_device_history(device, limit=limit, cursor=cursor))

    def drain(self, node: str, *, deadline_seconds: float | None = None) -> fleet.NodeView:
        """Give a node no new work. Attempts that still run at the deadline move to other nodes. Needs an admin
        token."""
        return self.call(endpoints.drain_node(node, deadline_seconds=deadline_seconds))

    def undrain(self, node: str) -> fleet.NodeView:
        """Give a node work again. Needs an admin token."""
        return self.call(endpoints.undrain_node(node))

    def quarantine(self, node: str, device: int, reason: str) -> fleet.NodeView:
        """Quarantine a device, by its index on the node, until it is released. Needs an admin token."""
        return self.call(endpoints.quarantine_device(node, device, reason))

    def unquarantine(self, node: str, device: int) -> fleet.NodeView:
        """Release a device from quarantine, whatever the reason was. Needs an admin token."""
        return self.call(endpoints.unquarantine_device(node, device))

    def end_block(self, pool: str, block: str) -> None:
        """Forget the nodes of a block that its engine has ended. Needs an admin token."""
        self.call(endpoints.end_block(pool, block))

    def forget(self, node: str) -> None:
        """Remove a node that is down for good. Needs an admin token."""
        self.call(endpoints.forget_node(node))

    def recipes(self) -> Any:
        """Built-in models, data sets, losses and optimizers, with JSON schemas of their arguments."""
        return self.call(endpoints.list_recipes())

    def tokens(self) -> list[responses.TokenView]:
        return self.call(endpoints.list_tokens()).tokens

    def create_token(
        self,
        name: str,
        *,
        scopes: Sequence[str] = ("read", "submit"),
        tenant: str | None = None,
        expires_in_seconds: int | None = None,
        node: str | None = None,
    ) -> responses.NewToken:
        """Create a token; its secret, `token`, is returned only this once. Needs an admin token. `node` is the one that
        a token with the scope `node`, and no other, is for."""
        made = endpoints.create_token(
            name, scopes=scopes, tenant=tenant, expires_in_seconds=expires_in_seconds, node=node
        )
        return self.call(made)

    def revoke_token(self, token: str) -> None:
        self.call(endpoints.revoke_token(token))

    def audit(self, **chosen: Any) -> Generator[AuditEntry, None, None]:
        """Who did what, as it was written: the `newest` 50, or all `since` a time; with `follow=True` also new entries
        as they arrive. Filters: action, tenant, token, until. Needs an admin token."""
        return self.items(audit_entries.read_audit(**chosen))

    def list_secrets(self) -> list[responses.SecretView]:
        """Names and times of your secrets; their values are never shown."""
        return self.call(endpoints.list_secrets()).secrets

    def get_secret(self, name: str) -> responses.SecretView:
        """When a secret was stored; its value is never shown. Raises NotFound."""
        return self.call(endpoints.get_secret(name))

    def put_secret(self, name: str, value: str) -> responses.SecretView:
        """Store a value that jobs may name (`program.secrets`), in place of an older one of that name."""
        return self.call(endpoints.put_secret(name, value))

    def delete_secret(self, name: str) -> None:
        """Delete a secret. Jobs that name it can no longer start; running jobs keep its value."""
        self.call(endpoints.delete_secret(name))


class Job(BlockingJobHandle):
    """A job of a `Client`."""

    _client: Client

    def __init__(self, client: Client, known: JobSummary) -> None:
        super().__init__(known)
        self._client = client

    def refresh(self) -> Self:
        """Fetch the job's status again."""
        self._known = self._client.call(endpoints.get_job(self.id))
        return self

    def wait(self, timeout: float | None = None, *, check: bool = True) -> Self:
        """Return when the job has succeeded or, without `check`, ended in any state; a restart of the service does not
        matter.

        Raises:
            JobFailed: it has failed, or was cancelled; the message has its error, with the traceback.
            TimeoutError: it has not ended within `timeout` seconds; the job continues.
        """
        self._known = self._client.run(operations.wait_for_end(self.id, timeout))
        if check:
            self._raise_unless_succeeded()
        return self

    def watch(self) -> Self:
        """In a notebook: show the job below the cell, and redraw it as it progresses, until it has ended in any state.
        Interrupting the cell ends the watching, never the job. Needs IPython."""
        card = LiveCard()
        card.show(self._known, None)
        report = None
        for event in self.follow():
            if not card.is_due(event):
                continue
            if not self.ended:
                self.refresh()
            with suppress(NotFound):  # no attempt has begun
                report = self.report()
            card.show(self._known, report)
        card.show(self._known, report)
        return self

    def follow(
        self,
        *,
        logs: Sequence[int] | str | None = None,
        tail: int | None = None,
        after: str | None = None,
        stream: Sequence[str] | str | None = None,
    ) -> Generator["Event", None, None]:
        """The job's events until it has ended; the stream continues after a restart of the service.

        `logs="all"`, or the numbers of devices, adds their lines: all from the start, or the last `tail` of each;
        `stream` chooses their streams as in `logs`. `after`: an `event_id` to continue after. After the last event,
        `status` is the final one.
        """
        flow = operations.follow_job(self.id, logs, after, tail, stream=stream)
        with closing(self._client.items(flow)) as events:
            yield from events
        with suppress(NotFound):  # deleted meanwhile, as the last event has said
            self.wait(check=False)  # which survives a restart at this moment, too

    def logs(
        self,
        *,
        device: int | None = None,
        follow: bool = False,
        tail: int | None = None,
        stream: Sequence[str] | str | None = None,
        rank: int | None = None,
        from_step: int | None = None,
        to_step: int | None = None,
        attempt: int | None = None,
    ) -> Iterator[responses.LogLine]:
        """Lines of all devices in order of time, or of one device; with `follow`, until the job has ended.

        `stream`: "all", or some of "stdout", "stderr", "shard" (what each device got of a batch) and "service". Left
        out: all for a recipe; all but "shard" for a script.
        """
        chosen: dict[str, Any] = {
            "device": device,
            "stream": stream,
            "rank": rank,
            "from_step": from_step,
            "to_step": to_step,
        }
        pages = operations.log_pages(self.id, follow=follow, tail=tail, attempt=attempt, **chosen)
        return (line for page in self._client.items(pages) for line in page.lines)

    def metrics(
        self,
        name: str | None = None,
        *,
        device: int | None = None,
        points: int | None = None,
        source: str | None = None,
        attempt: int | None = None,
    ) -> Rows[responses.SeriesView]:
        """Series of numbers, of one name or all; with `points`, each is reduced to at most that many `buckets`.
        `to_pandas()` has a row for each point.

        `source`: "program" (also if left out), or "hardware" for what the node samples of the devices once a second;
        these come as buckets, whose steps are seconds since the first sample.
        """
        found = self._client.run(
            operations.read_metrics(self.id, name=name, device=device, points=points, source=source, attempt=attempt)
        )
        return Rows(found, metric_rows, None, METRIC_COLUMNS)

    def report(self, *, attempt: int | None = None) -> "SplitReport":
        """The split report, also while the job runs. Raises NotFound if there is none yet."""
        return self._client.call(endpoints.get_report(self.id, attempt=attempt))

    def gate(
        self,
        *,
        max_time_imbalance: float | None = None,
        max_row_imbalance: float | None = None,
        max_idle: int | None = None,
        min_throughput: float | None = None,
        max_memory: int | None = None,
        no_finding: Sequence[str] = (),
        against: str | None = None,
        max_slowdown: float | None = None,
    ) -> GateVerdict:
        """Check the job's report against limits. `no_finding` are codes of findings, or "warning" for any of that
        severity; `against` is the id of the job that `max_slowdown` compares with.

        Raises:
            JobNotFinished: one of the two has not ended.
            NotFound: there is no report.
            NotComparable: the other job did other work, or did it on other devices.
        """
        limits = {
            "max_time_imbalance": max_time_imbalance,
            "max_row_imbalance": max_row_imbalance,
            "max_idle": max_idle,
            "min_throughput": min_throughput,
            "max_memory": max_memory,
            "no_finding": list(no_finding),
            "against": against,
            "max_slowdown": max_slowdown,
        }
        return self._client.call(endpoints.judge_job(self.id, **limits))

    def attempts(self) -> Rows[responses.AttemptView]:
        """The job's attempts; `to_pandas()` has a row for each."""
        return Rows(self._client.call(endpoints.list_attempts(self.id)).attempts, attempt_rows, "attempt")

    def artifacts(self, *, attempt: int | None = None) -> list[responses.ArtifactView]:
        """Files that an attempt stored; by default the newest attempt's."""
        return self._client.call(endpoints.list_artifacts(self.id, attempt=attempt)).artifacts

    def download(self, path: str, to: str | os.PathLike[str] | None = None, *, attempt: int | None = None) -> Path:
        """Save one of these files, atomically, as `to`, or in the directory `to`; by default in the current directory.

        Raises:
            NotFound: there is no such file.
            OSError: it cannot be written.
        """
        target = downloads.target_path(path, to)
        with downloads.open_draft(target) as file:
            for part in self.read(path, attempt=attempt):
                file.write(part)
        return target

    def read(self, path: str, *, attempt: int | None = None) -> Generator[bytes, None, None]:
        """The bytes of one of these files, part by part, as they arrive."""
        return self._client.items(operations.download_artifact(self.id, path, attempt))

    def profile(self, steps: int = 10) -> responses.ProfileView:
        """Have every rank of the running job record a trace of its next steps, and wait until all have answered. The
        traces are files of the job: `download(rank.path, attempt=profile.attempt)`.

        Raises:
            JobNotRunning, ProfileRunning: it cannot be profiled now.
        """
        return self._client.run(operations.record_profile(self.id, steps))

    def profiles(self, *, attempt: int | None = None) -> list[responses.ProfileView]:
        """The profiles of an attempt; by default of the newest."""
        return self._client.call(endpoints.list_profiles(self.id, attempt=attempt)).profiles

    def cancel(self) -> Self:
        """Cancel the job: at once if it is queued, else when its processes have ended.

        Raises:
            JobFinished: it has ended, and was not cancelled.
        """
        self._known = self._client.call(endpoints.cancel_job(self.id))
        return self

    def suspend(self) -> Self:
        """Take the job off the queue, or have it save and leave its devices; it keeps its place. Raises JobFinished."""
        self._known = self._client.call(endpoints.suspend_job(self.id))
        return self

    def resume(self) -> Self:
        """Put a suspended job back to its place in the queue. Raises JobFinished."""
        self._known = self._client.call(endpoints.resume_job(self.id))
        return self

    def resubmit(self, *, key: str | None = None) -> "Job":
        """A new job of the same spec. The same `key` never makes a second one."""
        return Job(self._client, self._client.call(endpoints.resubmit_job(self.id, key)))

    def delete(self) -> None:
        """Forget a finished job, with its logs, report and files. Raises JobNotFinished."""
        self._client.run(operations.delete_job(self.id))
