"""`Client` and `Job`: they block until the service has answered.

Generated from `async_client.py` by `python -m tools.generate_sync_client`: change that file, not this one.
"""

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar, Unpack

import httpx

from shardyard.client import downloads, endpoints, operations
from shardyard.client.connection import find_service
from shardyard.client.endpoints import Spec
from shardyard.client.job_handle import BlockingJobHandle
from shardyard.client.transport import BlockingTransport, Flow, HttpCall, Items
from shardyard.contract import responses
from shardyard.contract.errors import NotFound
from shardyard.contract.responses import JobSummary

if TYPE_CHECKING:
    from shardyard.client.events import Event
    from shardyard.client.report import SplitReport
    from shardyard.client.scripts import ScriptOptions

T = TypeVar("T")


class Client:
    """Talks to a service. Several threads may use it.

    Without a URL or token it finds them as the command line does: SHARDYARD_URL and SHARDYARD_TOKEN,
    else the service that `shardyard up` runs on this machine. `attempts`: how often a request that is
    safe to repeat is tried while the service is away.

    Raises:
        Unavailable: no URL is given, and no service runs here.
        Unauthenticated: no token is given, and the local one is not for this URL.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        attempts: int = operations.ATTEMPTS,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        address = find_service(url, token)
        self.url = address.url
        self._attempts = attempts
        self._wire = BlockingTransport(address.url, address.headers, transport)

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
        """The same with the answer's JSON as it is, fields that this version does not know included."""
        return self.run(operations.call_for_json(call, self._attempts))

    def run(self, flow: Flow[T]) -> T:
        """One of the flows of `shardyard.client.operations`, which may take several requests."""
        return self._wire.run(flow)

    def items(self, items: Items[T]) -> Generator[T, None, None]:
        """What one of the paged or endless flows of `shardyard.client.operations` gives, one by one."""
        return self._wire.items(items)

    # -- jobs --------------------------------------------------------------------------------------

    def submit(self, spec: Spec, *, key: str | None = None) -> "Job":
        """Create a job from a spec: a mapping, JSON, or the path of a file. The same `key` never makes a second job.

        Raises:
            InvalidSpec: the spec breaks a rule; `fields` says where.
        """
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

        What .gitignore leaves out is not sent, unless `include` names it; `exclude` leaves out more. The
        service is sent the directory only if it does not have these very files yet. Options: those of
        `ScriptOptions`, which stand for fields of the job spec.

        Raises:
            InvalidRequest: the program is not there, or the directory cannot be packed.
        """
        from shardyard.client import scripts

        program = scripts.locate_program(path, entrypoint)
        wanted = scripts.build_script_spec(args, **options)
        file, bundle = scripts.pack_program(program, include, exclude)
        with file:
            spec = scripts.complete_spec(wanted, bundle=bundle.id, entrypoint=program.entrypoint)
            return Job(self, self.run(operations.submit_bundled(spec, file, bundle)))

    def plan(self, spec: Spec) -> responses.Plan:
        """What a spec would split into, and what is wrong with that; nothing is created."""
        return self.call(endpoints.plan_job(spec))

    def job(self, job: str) -> "Job":
        """A job by its id. Raises NotFound."""
        return Job(self, self.call(endpoints.get_job(job)))

    def jobs(
        self,
        *,
        state: str | None = None,
        pool: str | None = None,
        label: str | None = None,
        name: str | None = None,
        archived: bool = False,
        limit: int | None = None,
    ) -> Iterator["Job"]:
        """All your jobs, newest first, or those that match, at most `limit`; pages are fetched as they are needed."""
        chosen: dict[str, Any] = {
            "state": state,
            "pool": pool,
            "label": label,
            "name": name,
            "archived": archived or None,
        }
        return (Job(self, known) for known in self.items(operations.list_all_jobs(limit=limit, **chosen)))

    def cancel_jobs(self, **chosen: Any) -> tuple[int, int]:
        """Cancel all jobs that match `state`, `pool`, `label`, `name`, or with `all=True` every one.

        How many were cancelled at once, and how many, which run, were told to end.
        """
        return self.run(operations.cancel_many(chosen))

    def log_pages(self, job: str, **chosen: Any) -> Generator[responses.LogPage, None, None]:
        """Lines of a job in pages, with what was dropped. `follow`, `tail`, `after`, and the filters of `Job.logs`."""
        return self.items(operations.log_pages(job, **chosen))

    def events(self, *, after: str | None = None) -> Generator["Event", None, None]:
        """What happens in the service: `JobChanged`, `JobGone`, `FleetChanged`, `Resync`; it does not end by itself."""
        return self.items(operations.service_events(after))

    # -- bundles -----------------------------------------------------------------------------------

    def upload_bundle(
        self, zipped: BinaryIO, advanced: Callable[[int], None] = lambda count: None
    ) -> responses.BundleView:
        """Send a zip of code; its id goes into `program.bundle`. The same bytes have the same id.

        `advanced` hears how many bytes went out each time, and a negative number where they are sent again.

        Raises:
            BadBundle: it breaks a rule on bundles.
            BodyTooLarge: it is larger than this service takes.
        """
        return self.call(endpoints.upload_bundle(zipped, advanced))

    def bundle(self, bundle: str) -> responses.BundleContents:
        """What a bundle holds. Raises NotFound."""
        return self.call(endpoints.get_bundle(bundle))

    def has_bundle(self, bundle: str) -> bool:
        """Whether the service has a bundle of this id, for this token's owner."""
        try:
            self.bundle(bundle)
        except NotFound:
            return False
        return True

    # -- the service -------------------------------------------------------------------------------

    def missing(self) -> dict[str, str] | None:
        """What the service still needs before it can run jobs, part by part; empty when it is ready.
        None: it does not answer. Asked once."""
        return self.run(operations.missing_parts())

    def pools(self) -> list[responses.PoolView]:
        return self.call(endpoints.list_pools()).pools

    def nodes(self) -> list[responses.NodeView]:
        return self.call(endpoints.list_nodes()).nodes

    def drain(self, node: str, *, deadline_seconds: float | None = None) -> responses.NodeView:
        """Give a node no new work. What still runs there after the deadline moves elsewhere. For an admin token."""
        return self.call(endpoints.drain_node(node, deadline_seconds=deadline_seconds))

    def undrain(self, node: str) -> responses.NodeView:
        """Give a node work again. For an admin token."""
        return self.call(endpoints.undrain_node(node))

    def quarantine(self, node: str, device: int, reason: str) -> responses.NodeView:
        """Give a device, by its index on the node, to nobody until it is brought back. For an admin token."""
        return self.call(endpoints.quarantine_device(node, device, reason))

    def unquarantine(self, node: str, device: int) -> responses.NodeView:
        """Bring a device back, whatever put it into quarantine. For an admin token."""
        return self.call(endpoints.unquarantine_device(node, device))

    def forget(self, node: str) -> None:
        """Drop a node that is down for good. For an admin token."""
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
    ) -> responses.NewToken:
        """A new token; its secret, `token`, is shown this once. For an admin token."""
        made = endpoints.create_token(name, scopes=scopes, tenant=tenant, expires_in_seconds=expires_in_seconds)
        return self.call(made)

    def revoke_token(self, token: str) -> None:
        self.call(endpoints.revoke_token(token))


class Job(BlockingJobHandle):
    """A job of a `Client`."""

    _client: Client

    def __init__(self, client: Client, known: JobSummary) -> None:
        super().__init__(known)
        self._client = client

    def refresh(self) -> Self:
        """Look at the job again."""
        self._known = self._client.call(endpoints.get_job(self.id))
        return self

    def wait(self, timeout: float | None = None) -> Self:
        """Return when the job has ended, however; also over a restart of the service.

        Raises:
            TimeoutError: it has not ended within `timeout` seconds. It goes on.
        """
        self._known = self._client.run(operations.wait_for_end(self.id, timeout))
        return self

    def follow(
        self, *, logs: Sequence[int] | str | None = None, tail: int | None = None, after: str | None = None
    ) -> Generator["Event", None, None]:
        """What happens to the job, event by event, until it has ended; also over a restart of the service.

        `logs="all"`, or the numbers of devices, brings their lines too: all from the start, or the last `tail` of
        each. `after`: an `event_id` to go on from. Behind the last event, `status` is that of the end.
        """
        with closing(self._client.items(operations.follow_job(self.id, logs, after, tail))) as events:
            yield from events
        with suppress(NotFound):  # deleted meanwhile, as the last event has said
            self.wait()  # which bears a restart at this moment, too

    def logs(
        self,
        *,
        device: int | None = None,
        follow: bool = False,
        tail: int | None = None,
        stream: str | None = None,
        rank: int | None = None,
        from_step: int | None = None,
        to_step: int | None = None,
        attempt: int | None = None,
    ) -> Iterator[responses.LogLine]:
        """Lines of all devices by time, or of one; with `follow`, until the job has ended."""
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
        attempt: int | None = None,
    ) -> list[responses.SeriesView]:
        """Series of numbers, of one name or all; with `points`, put together into at most so many `buckets` each."""
        return self._client.run(
            operations.read_metrics(self.id, name=name, device=device, points=points, attempt=attempt)
        )

    def report(self, *, attempt: int | None = None) -> "SplitReport":
        """The split report; also while the job runs. Raises NotFound where there is none yet."""
        return self._client.call(endpoints.get_report(self.id, attempt=attempt))

    def attempts(self) -> list[responses.AttemptView]:
        return self._client.call(endpoints.list_attempts(self.id)).attempts

    def artifacts(self, *, attempt: int | None = None) -> list[responses.ArtifactView]:
        """Files that an attempt left, the newest one's by default."""
        return self._client.call(endpoints.list_artifacts(self.id, attempt=attempt)).artifacts

    def download(self, path: str, to: str | os.PathLike[str] | None = None, *, attempt: int | None = None) -> Path:
        """Save one of these files as `to`, or in the directory `to`; here by default. It is whole, or not there.

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
        """The bytes of one of these files, part by part, as they come."""
        return self._client.items(operations.download_artifact(self.id, path, attempt))

    def cancel(self) -> Self:
        """End the job: at once where it waits, else when its processes have ended.

        Raises:
            JobFinished: it has ended, and was not cancelled.
        """
        self._known = self._client.call(endpoints.cancel_job(self.id))
        return self

    def resubmit(self, *, key: str | None = None) -> "Job":
        """A new job of the same spec. The same `key` never makes a second one."""
        return Job(self._client, self._client.call(endpoints.resubmit_job(self.id, key)))

    def delete(self) -> None:
        """Forget a finished job, with its logs, report and files. Raises JobNotFinished."""
        self._client.run(operations.delete_job(self.id))
