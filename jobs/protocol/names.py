"""Names that more than one process relies on: Redis keys, Celery names, environment variables.

Everything in Redis begins with `sy:`. A job is addressed by its *ref*, `<tenant>/<id>`, so no key and
no call can leave the tenant out; an attempt by `<tenant>/<id>/<n>`. The Lua scripts build the same
names (`jobs/store/lua/keys.lua`).
"""

PREFIX = "sy:"
DEFAULT_TENANT = "default"

#: Pub/sub channel: something was queued or freed, so a dispatch may find work.
WAKE_CHANNEL = PREFIX + "wake"
#: Pub/sub channel: there may be a webhook to send.
SENDER_CHANNEL = PREFIX + "webhook_wake"
#: Stream: which jobs changed, in order.
CHANGES = PREFIX + "changes"

CELERY_TASK = "shardyard.start_attempt"
CELERY_KEY_PREFIX = PREFIX + "celery:"


def node_queue(node: str) -> str:
    """The Celery queue that only `node` consumes."""
    return f"node.{node}"


def commands_channel(node: str) -> str:
    """Pub/sub channel: there may be new commands for the supervisors on a node."""
    return f"{PREFIX}orders:{node}"


def job_ref(tenant: str, job: str) -> str:
    return f"{tenant}/{job}"


def split_ref(ref: bytes) -> tuple[str, str]:
    """The tenant of a ref, and what it is of that tenant."""
    tenant, _, rest = ref.decode().partition("/")
    return tenant, rest


def attempt_ref(tenant: str, job: str, attempt: int) -> str:
    return f"{tenant}/{job}/{attempt}"


def bundle_ref(tenant: str, bundle: str) -> str:
    """How the store names a bundle, whose id is `sha256:<hex>`."""
    return f"{tenant}/{bundle.removeprefix('sha256:')}"


# -- control Redis: the keys that are read by plain commands; lua/keys.lua has all of them ----------


def quarantine_key(node: str) -> str:
    return f"{PREFIX}quarantine:{node}"


def job_key(ref: str) -> str:
    return f"{PREFIX}job:{ref}"


def attempt_key(ref: str) -> str:
    return f"{PREFIX}attempt:{ref}"


def secrets_key(tenant: str) -> str:
    return f"{PREFIX}secret:{tenant}"


STORAGE_NONCE = PREFIX + "storage"
SECRET_TENANTS = PREFIX + "secret_tenants"
WEBHOOK_TENANTS = PREFIX + "webhook_tenants"


def session_key(digest: str) -> str:
    return f"{PREFIX}session:{digest}"


def sign_in_code_key(digest: str) -> str:
    return f"{PREFIX}sign_in_code:{digest}"


def token_key(token: str) -> str:
    return f"{PREFIX}token:{token}"


def tokens_key(tenant: str) -> str:
    return f"{PREFIX}tokens:{tenant}"


# -- telemetry Redis -------------------------------------------------------------------------------


def log_stream(tenant: str, job: str, attempt: int, device: int) -> str:
    return f"{PREFIX}log:{attempt_ref(tenant, job, attempt)}/{device}"


def metric_stream(tenant: str, job: str, attempt: int) -> str:
    return f"{PREFIX}metrics:{attempt_ref(tenant, job, attempt)}"


def report_key(tenant: str, job: str, attempt: int) -> str:
    return f"{PREFIX}report:{attempt_ref(tenant, job, attempt)}"


def progress_key(tenant: str, job: str, attempt: int) -> str:
    return f"{PREFIX}progress:{attempt_ref(tenant, job, attempt)}"


def hardware_key(tenant: str, job: str, attempt: int) -> str:
    return f"{PREFIX}hardware:{attempt_ref(tenant, job, attempt)}"


def readings_key(node: str) -> str:
    return f"{PREFIX}readings:{node}"


#: Marks every process of an attempt, so that exec'd descendants can be found in /proc.
ATTEMPT_MARK = "SHARDYARD_ATTEMPT"
