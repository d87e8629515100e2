"""The application: everything that one API process has, built when it starts and closed when it ends."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import structlog
from fastapi import APIRouter, Depends, FastAPI
from starlette.routing import BaseRoute

from api.accounts import quotas_routes, secrets_routes, sessions_routes, shares_routes, tokens_routes
from api.accounts.quotas_service import QuotaService
from api.accounts.secrets_service import SecretService
from api.accounts.sessions_service import SessionService
from api.accounts.shares_service import ShareService
from api.accounts.single_sign_on import routes as single_sign_on_routes
from api.accounts.single_sign_on.config import SingleSignOnConfig, read_config
from api.accounts.single_sign_on.service import SingleSignOnService
from api.accounts.tokens_service import TokenService
from api.audit import routes as audit_routes
from api.audit.service import AuditService
from api.background import audit_retention, bundle_gc, secret_rotation
from api.background import retention as retention_of_jobs
from api.background.celery_client import CeleryHintSender
from api.background.file_quotas import FileQuotaCount
from api.background.history_watch import HistoryWatch
from api.background.periodic_sweeps import (
    SWEEP_SECONDS,
    PeriodicSweep,
    convert_packed_jobs,
    sweep_storage,
    watch_scheduler,
)
from api.background.quota_recount import QuotaRecount
from api.background.traces.config import open_trace_collector
from api.bundles import routes as bundle_routes
from api.bundles.service import BundleService
from api.data.api_storage import ApiStorage, open_storage
from api.data.change_notifier import ChangeNotifier
from api.data.disk_guard import DiskGuard
from api.data.fleet_cache import FleetCache
from api.data.job_repository import JobRepository
from api.data.memory_guard import MemoryGuard
from api.data.redis_pool import connect
from api.data.telemetry_reader import TelemetryReader
from api.events import routes as event_routes
from api.events.job_feed import FeedSources, JobFeeds
from api.events.service import EventService, StreamSlots
from api.events.service_feed import ServiceFeed
from api.fleet import routes as fleet_routes
from api.fleet.service import FleetService
from api.groups import routes as group_routes
from api.groups.measures import MeasureReader
from api.groups.searches import SweepSearches
from api.groups.service import GroupService
from api.http import problems
from api.http.audit_log import AuditLog
from api.http.audit_middleware import AuditMiddleware
from api.http.audit_repeats import RepeatGuard
from api.http.auth import Authenticator, load_operator_token
from api.http.conventions.compression import CompressionMiddleware
from api.http.conventions.etags import TagMiddleware
from api.http.conventions.methods import HeadMiddleware, OptionsMiddleware, routes_of
from api.http.deps import NODE_FILES, authenticate
from api.http.middleware import (
    MIN_UPLOAD_BYTES_PER_SECOND,
    BodyLimits,
    BodyLimitsByPath,
    RequestLimitsMiddleware,
    allowed_hosts,
)
from api.http.prometheus import ProcessMetrics
from api.http.rate_limits import RateLimiter
from api.http.request_turns import RequestTurns
from api.jobs import explain_routes, resolve_routes, table_routes
from api.jobs import routes as job_routes
from api.jobs.explain_service import ExplainService
from api.jobs.owner_names import OwnerNames
from api.jobs.resolve_service import ResolveService
from api.jobs.service import JobService
from api.jobs.status_poll import StatusPollMiddleware
from api.jobs.submit_limits import SubmitLimits
from api.jobs.table_service import TableService
from api.joins import routes as join_routes
from api.joins.service import JoinService
from api.node_files import routes as node_file_routes
from api.node_files.file_tree import sweep_drafts
from api.node_files.service import MAX_UPLOAD_BYTES, NodeFileService
from api.results import artifact_routes, gate_routes, log_routes, profile_routes, split_routes
from api.results.gate_service import GateService
from api.results.profile_service import ProfileService
from api.results.service import ResultService
from api.system import dashboard_routes, docs_routes, help_routes, problem_routes
from api.system import routes as system_routes
from api.system.service import SystemService
from api.webhooks import routes as webhook_routes
from api.webhooks.addresses import AddressRules, HostResolver
from api.webhooks.channels import ChannelOpener
from api.webhooks.job_links import JobLinks
from api.webhooks.mails import MailTransport, read_mail_settings
from api.webhooks.outgoing import WebhookTransport
from api.webhooks.sender import WebhookSender
from api.webhooks.service import WebhookService
from jobs.files.audit_files import audit_dir
from jobs.files.service_disks import api_directories
from jobs.model.records import TokenRecord
from jobs.model.settings import Settings, parse_networks
from jobs.scheduling.scheduler import JobScheduler
from jobs.storage.directory import DirectoryStorage
from jobs.store.client import AsyncRedisStore, RedisStore
from jobs.store.connections.sentinels import replicas_of
from jobs.store.packed_jobs import PackedJobConverter
from shardyard.contract.errors import Unavailable

if TYPE_CHECKING:
    from api.background.traces.collector import TraceCollector

log = structlog.get_logger(__name__)

SHORTEST_SWEEP_SECONDS = 1.0
LOW_DISK_SWEEP_SECONDS = 5.0
#: How long an entry of the audit stays on this host's disk alone, where the files are in a bucket.
SEND_SECONDS = 5.0
FILE_COUNT_SECONDS = 60.0
TRACE_SECONDS = 5.0
HISTORY_SECONDS = 2.0
#: How long a start waits for the control Redis to be ready for requests. Later ones are refused until it is.
OPEN_SECONDS = 3.0
#: How long tasks may take to end.
END_SECONDS = 5.0
#: When Celery is imported for the first hint: not while the process is not even ready.
PREPARE_SECONDS = 0.5

ROUTERS = (
    # Before the route of one job, which would take their words for ids.
    resolve_routes.router,
    table_routes.router,
    group_routes.router,
    job_routes.router,
    explain_routes.router,
    bundle_routes.router,
    split_routes.router,
    gate_routes.router,
    log_routes.router,
    artifact_routes.router,
    profile_routes.router,
    event_routes.router,
    fleet_routes.router,
    shares_routes.router,
    secrets_routes.router,
    webhook_routes.router,
    tokens_routes.router,
    quotas_routes.router,
    sessions_routes.router,
    single_sign_on_routes.router,
    single_sign_on_routes.pages,
    audit_routes.router,
    node_file_routes.router,
    join_routes.router,
    system_routes.router,
    docs_routes.router,
    help_routes.router,
    problem_routes.router,
    dashboard_routes.router,
)


def create_app(settings: Settings) -> FastAPI:
    """Build the application. It connects when it is started, not before.

    Raises:
        UnsafeToStart: it would be open to others without a token.
        ValueError, OSError: no control Redis is set, or what is set about single sign-on, or about traces, cannot be
            used.
    """
    operator = load_operator_token(settings)
    settings.control_url()
    single_sign_on = read_config(settings)
    collector = open_trace_collector()
    monitoring = ProcessMetrics()
    app = FastAPI(
        title="Shardyard",
        description="PyTorch training on pools of GPUs, with a report of what each device got of every batch.",
        lifespan=partial(_lifespan, settings, operator, single_sign_on, collector),
        dependencies=[Depends(authenticate)],  # of a route that is added here; those of the routers have their own
        openapi_url=None,  # its route of the framework would not pass `authenticate`; api.system.routes has one
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.monitoring = monitoring
    app.state.routes = routes_of(ROUTERS)
    app.router.routes.extend(_authenticated_routes())
    problems.install_handlers(app)
    storage = open_storage(settings)
    audit_log = AuditLog(storage.audit)
    framework = HeadMiddleware(CompressionMiddleware(TagMiddleware(app.build_middleware_stack())))
    audited = AuditMiddleware(OptionsMiddleware(framework, app.state.routes), audit_log, RepeatGuard())
    polls = StatusPollMiddleware(audited, *job_routes.find_status_route())
    app.state.storage = storage
    app.state.audit_log, app.state.write_audit_repeats = audit_log, audited.write_repeats
    app.middleware_stack = RequestLimitsMiddleware(polls, allowed_hosts(settings), _body_limits(settings), monitoring)
    return app


@cache
def _authenticated_routes() -> tuple[BaseRoute, ...]:
    """Those of all routers, each of which calls `authenticate` first. The applications of a process share them, since
    the framework takes 50 ms for each application to work out what its routes take."""
    whole = APIRouter(dependencies=[Depends(authenticate)])
    for router in ROUTERS:
        whole.include_router(router)
    return tuple(whole.routes)


@asynccontextmanager
async def _lifespan(
    settings: Settings,
    operator: TokenRecord,
    single_sign_on: SingleSignOnConfig | None,
    collector: "TraceCollector | None",
    app: FastAPI,
) -> AsyncIterator[None]:
    """What an application has while it serves. It is closed in the reverse order of that in which it is opened: first
    the tasks, then the scheduler, which may be sending, then what it used, then what the routes used."""
    async with AsyncExitStack() as opened:
        connections = _open_connections(settings, app.state.storage, opened)
        hint_sender = CeleryHintSender(settings)
        scheduler = JobScheduler(connections.reconciled, hint_sender, settings, listen=True)
        disks = DiskGuard(api_directories(settings), settings.reserve_bytes)
        authenticator = Authenticator(connections.control, operator)
        webhooks, sender = _prepare_webhooks(settings, connections.control, opened)
        app.state.authenticator = authenticator
        app.state.rate_limiter = RateLimiter(connections.control, settings.token_requests, settings.tenant_requests)
        app.state.request_turns = RequestTurns()
        _add_services(
            app,
            settings,
            connections,
            authenticator,
            webhooks,
            disks,
            lambda: scheduler.alive,
            traces_are_on=collector is not None,
        )
        sign_on = SingleSignOnService(
            connections.control, authenticator, app.state.services[TokenService], single_sign_on
        )
        opened.push_async_callback(sign_on.close)
        app.state.services[SingleSignOnService] = sign_on
        _start_audit_log(app, opened)
        _start_scheduler(scheduler, hint_sender, opened)
        if collector is not None:
            opened.callback(collector.close)
        tasks = list(_start_watches(app, settings, connections, scheduler, disks, collector))
        opened.push_async_callback(_end_tasks, tasks)
        await connections.control.wait_until_open(OPEN_SECONDS)
        searches: SweepSearches = app.state.services[SweepSearches]
        tasks += (asyncio.create_task(sender.run()), asyncio.create_task(searches.run()))
        yield


@dataclass(frozen=True, slots=True)
class _Connections:
    """`control` and `telemetry` are the routes'; `reconciled`, to the control Redis too, is for threads: the scheduler
    and the sweeps."""

    control: AsyncRedisStore
    telemetry: TelemetryReader
    reconciled: RedisStore


def _open_connections(settings: Settings, storage: ApiStorage, opened: AsyncExitStack) -> _Connections:
    url = settings.control_url()
    control = AsyncRedisStore(connect(url), replicas_of(url), is_open=False)
    opened.push_async_callback(control.close)
    telemetry = TelemetryReader(connect(settings.telemetry()))
    opened.push_async_callback(telemetry.close)
    reconciled = RedisStore.from_url(url)
    opened.callback(reconciled.close)
    opened.callback(storage.close)
    opened.push_async_callback(asyncio.to_thread, send_last, storage)
    return _Connections(control, telemetry, reconciled)


def _prepare_webhooks(
    settings: Settings, control: AsyncRedisStore, opened: AsyncExitStack
) -> tuple[WebhookService, WebhookSender]:
    targets, resolver = AddressRules(parse_networks(settings.webhook_networks)), HostResolver()
    opened.callback(resolver.close)
    mail = MailTransport(read_mail_settings(settings))
    opened.callback(mail.close)
    http, links = WebhookTransport(targets, resolver), JobLinks(settings.public_url)
    channels = ChannelOpener(control, settings.secret_keys(), http, mail, links)
    return WebhookService(control, settings.secret_keys(), targets, mail), WebhookSender(control, channels)


def _add_services(
    app: FastAPI,
    settings: Settings,
    connections: _Connections,
    authenticator: Authenticator,
    webhooks: WebhookService,
    disks: DiskGuard,
    is_scheduler_alive: Callable[[], bool],
    *,
    traces_are_on: bool,
) -> None:
    """What the routes call, each service by its type."""
    control, telemetry = connections.control, connections.telemetry
    shared: ApiStorage = app.state.storage
    changes, memory = ChangeNotifier(control), MemoryGuard(control)
    bundles = BundleService(control, shared.root, settings.max_bundles_bytes, disks, memory, shared.files)
    secrets = SecretService(control, settings.secret_keys())
    storage = shared.for_readers()
    fleet, records, streams = FleetCache(control), JobRepository(control, storage), StreamSlots()
    token_service = TokenService(control, authenticator, fleet, jobs_unboxed=settings.jobs_unboxed)
    feeds = JobFeeds(FeedSources(records, telemetry, storage, changes, fleet))
    owners = OwnerNames(authenticator)
    jobs = JobService(
        control,
        records,
        telemetry,
        fleet,
        changes,
        storage,
        bundles,
        secrets,
        SubmitLimits(disks, memory, settings.max_artifact_bytes),
        owners,
        traces_are_on=traces_are_on,
    )
    results = ResultService(records, telemetry, storage)
    measures = MeasureReader(records, results, fleet)
    events = EventService(records, feeds, ServiceFeed(control, fleet), streams)
    audit_log: AuditLog = app.state.audit_log
    services = (
        jobs,
        ResolveService(control, jobs, storage),
        TableService(control, jobs, records, telemetry, owners),
        results,
        GroupService(control, jobs, records, measures),
        SweepSearches(control, jobs, measures),
        GateService(records, results),
        ProfileService(control, records, storage),
        events,
        bundles,
        FleetService(control, fleet),
        ShareService(control),
        ExplainService(control, records, fleet),
        secrets,
        token_service,
        SessionService(control, authenticator, token_service),
        AuditService(storage, shared.send_unsent),
        QuotaService(control),
        JoinService(control, fleet, settings.join_file, settings.secret_keys()),
        SystemService(control, telemetry, fleet, changes, streams, disks, is_scheduler_alive, audit_log),
        NodeFileService(control, shared.for_readers(), disks, settings),  # whose threads hold up no other reader
        webhooks,
    )
    app.state.services = {type(service): service for service in services}
    app.state.release_clients = partial(_release_clients, events, changes)


def _start_audit_log(app: FastAPI, opened: AsyncExitStack) -> None:
    app.state.audit_log.start()
    opened.push_async_callback(asyncio.to_thread, app.state.audit_log.close)
    opened.callback(app.state.write_audit_repeats, at_once=True)


def _start_scheduler(scheduler: JobScheduler, hint_sender: CeleryHintSender, opened: AsyncExitStack) -> None:
    opened.callback(hint_sender.close)
    scheduler.start()
    opened.push_async_callback(asyncio.to_thread, scheduler.stop)
    prepare = threading.Timer(PREPARE_SECONDS, hint_sender.import_celery)
    prepare.daemon = True
    prepare.start()


def _start_watches(
    app: FastAPI,
    settings: Settings,
    connections: _Connections,
    scheduler: JobScheduler,
    disks: DiskGuard,
    collector: "TraceCollector | None",
) -> tuple[asyncio.Task[None], ...]:
    """What is looked after from time to time."""
    storage: ApiStorage = app.state.storage
    reconciled = connections.reconciled
    return (
        asyncio.create_task(watch_scheduler(lambda: scheduler.alive, _end_process)),
        asyncio.create_task(disks.watch()),
        asyncio.create_task(audit_retention.count_repeats(app.state.write_audit_repeats)),
        asyncio.create_task(
            sweep_storage(
                partial(storage.prove, reconciled),
                partial(
                    convert_packed_jobs, PackedJobConverter(reconciled).convert, connections.control.open, _end_process
                ),
                (
                    *_periodic_sweeps(reconciled, storage, settings, lambda: bool(disks.low)),
                    PeriodicSweep(
                        "history",
                        HistoryWatch(reconciled, storage.root, app.state.monitoring.count_history_loss).compare,
                        HISTORY_SECONDS,
                    ),
                    *_trace_sweeps(reconciled, storage, collector),
                ),
                _end_process,
            )
        ),
    )


async def _end_tasks(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Have them give back what they hold, such as the lead of sending webhooks."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=END_SECONDS)


def _body_limits(settings: Settings) -> BodyLimitsByPath:
    """Bundles and files of nodes are large, and come over slow lines; everything else is small."""
    uploads = BodyLimits(settings.max_bundle_bytes, pace=MIN_UPLOAD_BYTES_PER_SECOND)
    brought = BodyLimits(MAX_UPLOAD_BYTES, pace=MIN_UPLOAD_BYTES_PER_SECOND)
    by_prefix = {f"{NODE_FILES}/": brought}
    return BodyLimitsByPath(BodyLimits(settings.max_body_bytes), {"/v1/bundles": uploads}, by_prefix)


def _release_clients(events: EventService, changes: ChangeNotifier) -> None:
    """Ends streams and answers requests that wait for a change: the process is about to end."""
    events.close()
    changes.release_all()


def _periodic_sweeps(
    control: RedisStore, storage: ApiStorage, settings: Settings, is_disk_low: Callable[[], bool]
) -> tuple[PeriodicSweep, ...]:
    days = (settings.retention_days, settings.archive_days)
    retention, archived = (number * 86_400 for number in days)
    idle = settings.bundle_hours * 3600
    root, files = storage.root, storage.files
    audited = audit_dir(root)
    return (
        *_bucket_sweeps(storage, is_disk_low),
        PeriodicSweep(
            "audit", partial(audit_retention.sweep_audit, audited, settings.audit_days, files), SWEEP_SECONDS
        ),
        PeriodicSweep(
            "secrets", partial(secret_rotation.rotate_secrets, control, settings.secret_keys()), SWEEP_SECONDS
        ),
        PeriodicSweep("node_drafts", partial(sweep_drafts, DirectoryStorage(root)), SWEEP_SECONDS),
        PeriodicSweep("quotas", QuotaRecount(control).recount, SWEEP_SECONDS),
        PeriodicSweep("file_quotas", FileQuotaCount(control, root, files).count, FILE_COUNT_SECONDS),
        PeriodicSweep("bundles", partial(bundle_gc.sweep_bundles, control, root, idle, files), _sweep_interval(idle)),
        PeriodicSweep(
            "idle_bundles",
            partial(bundle_gc.sweep_on_low_disk, control, root, idle, is_disk_low, files),
            LOW_DISK_SWEEP_SECONDS,
        ),
        PeriodicSweep(
            "jobs",
            partial(retention_of_jobs.sweep_finished_jobs, control, root, retention, archived, files=files),
            _sweep_interval(retention),
        ),
    )


def _bucket_sweeps(storage: ApiStorage, is_disk_low: Callable[[], bool]) -> tuple[PeriodicSweep, ...]:
    if storage.bucket is None:
        return ()
    return (
        PeriodicSweep("unsent_files", storage.send_unsent, SEND_SECONDS),
        PeriodicSweep("copies", partial(storage.make_room, is_disk_low), LOW_DISK_SWEEP_SECONDS),
    )


def send_last(storage: ApiStorage) -> None:
    """Bring to the bucket what this process has written last; what cannot be, the next one brings."""
    try:
        storage.send_unsent()
    except (Unavailable, OSError) as error:
        log.warning("unsent_files_wait", error=str(error))


def _trace_sweeps(
    control: RedisStore, storage: ApiStorage, collector: "TraceCollector | None"
) -> tuple[PeriodicSweep, ...]:
    if collector is None:
        return ()
    from api.background.traces.exporter import JobTraceExporter  # with the library, which may be missing

    return (
        PeriodicSweep(
            "traces", JobTraceExporter(control, storage.root, collector, files=storage.files).send_ended, TRACE_SECONDS
        ),
    )


def _sweep_interval(kept: float) -> float:
    """Seconds between two sweeps of what is kept for so many seconds (0: forever)."""
    return min(SWEEP_SECONDS, max(SHORTEST_SWEEP_SECONDS, kept / 10)) if kept else SWEEP_SECONDS


def _end_process() -> None:
    os._exit(os.EX_SOFTWARE)
