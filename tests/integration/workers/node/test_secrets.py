"""Secrets of real jobs: their ranks get the values, and nothing that leaves an attempt has them."""

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from jobs.files import metric_file, paths
from jobs.model.state import JobState, StateReason
from jobs.store.accounts import tenant_secrets
from jobs.support import secret_keys
from tests.integration.workers.service import TENANT, Service, eventually, running_service
from tests.support.leak_search import read_everything

pytestmark = pytest.mark.integration

VALUE = "hf_Zq7/wv+T4mB2 nXk8"
PEM = "-----BEGIN KEY-----\nMIIEowIBAAKCAQEA7b\nq9vT2nXk8sWmPzLr4c\n-----END KEY-----"

TELL = """
import base64, os, sys, time
from urllib.parse import quote
from shardyard import job

value = os.environ["HF_TOKEN"]
print("plain", value)
print("twice", value + value, file=sys.stderr)
print("base64", base64.b64encode(b"user:" + value.encode()).decode())
print("quoted", quote(value, safe=""), repr(value))
for part in (value[:7], value[7:] + " in two writes\\n"):
    sys.stdout.write(part)
    sys.stdout.flush()
    time.sleep(0.15)
print(os.environ["KEY"])
job.log("loss of " + value, 1.0)
job.progress(1, 2)
raise RuntimeError(f"cannot log in with {value!r}")
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose key file is in its state directory, as by default."""
    with running_service(tmp_path_factory.mktemp("secrets")) as service:
        secret_keys.create_key_file(service.settings.secret_keys())
        yield service
        service.leaves_nothing()


def put(service: Service, name: str, value: str, tenant: str = TENANT) -> None:
    keys = secret_keys.read_keys(service.settings.secret_keys())
    service.run(tenant_secrets.put_secret(tenant, name, secret_keys.encrypt_secret(keys, tenant, name, value)))


def forms(value: str) -> set[bytes]:
    raw = value.encode()
    return {raw, quote(value, safe="").encode(), base64.b64encode(raw), json.dumps(value)[1:-1].encode()}


def test_a_job_uses_its_secrets_and_nothing_shows_their_values(alone: Service) -> None:
    put(alone, "hf", VALUE)
    put(alone, "key", PEM)
    job = alone.run_script({"train.py": TELL}, secrets={"HF_TOKEN": "hf", "KEY": "key"})
    record = alone.ended(job)
    assert record.state is JobState.FAILED
    assert record.error is not None
    assert record.error["message"] == "RuntimeError: cannot log in with '[secret hf]'"
    assert "[secret hf]" in record.error["traceback"]
    assert alone.text(job).splitlines()[:6] == [
        "plain [secret hf]",
        "base64 dXNlcjp[secret hf]A==",  # "user:", and less than a byte of the value at either end
        "quoted [secret hf] '[secret hf]'",
        "[secret hf] in two writes",
        "[secret key]",
    ]
    assert "twice [secret hf][secret hf]" in alone.text(job, stream="stderr")
    names = {series.name for series in metric_file.read_series(paths.metrics_file(alone.files(job)))}
    assert "loss of [secret hf]" in names
    found = read_everything(alone.directory, alone.store.client)
    assert b"in two writes" in found
    for value in (VALUE, *PEM.splitlines()):
        assert not [form for form in forms(value) if form in found]


#: What a child prints by itself, what its parent has read of it, and the end of a child that torch has started.
TELLS_BY_CHILDREN = """
import os, subprocess, sys
import torch.multiprocessing as multiprocessing

CHILD = "import os, sys; print('child', os.environ['HF_TOKEN']); sys.exit('it ends with ' + os.environ['HF_TOKEN'])"

def fail(_):
    raise ValueError("spawned with " + os.environ["HF_TOKEN"])

if __name__ == "__main__":
    subprocess.run([sys.executable, "-c", CHILD], start_new_session=True)
    subprocess.run(["sh", "-c", "echo shell $HF_TOKEN"], check=True)
    if os.fork() == 0:
        os.write(1, b"forked " + os.environb[b"HF_TOKEN"] + b"\\n")
        os._exit(0)
    os.wait()
    read = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True)
    print("read", read.stdout, read.stderr)
    multiprocessing.spawn(fail, nprocs=1)
"""


def test_what_children_of_a_rank_print_and_how_they_end_shows_no_value(alone: Service) -> None:
    put(alone, "hf", VALUE)
    job = alone.run_script({"train.py": TELLS_BY_CHILDREN}, secrets={"HF_TOKEN": "hf"})
    record = alone.ended(job)
    assert record.state is JobState.FAILED
    assert record.error is not None
    assert "ValueError: spawned with [secret hf]" in record.error["message"] + record.error["traceback"]
    printed = alone.text(job).splitlines()
    for words in ("child [secret hf]", "shell [secret hf]", "forked [secret hf]", "read child [secret hf]"):
        assert words in printed
    assert "it ends with [secret hf]" in alone.text(job, stream="stderr")
    found = read_everything(alone.directory, alone.store.client)
    assert b"spawned with" in found
    assert not [form for form in forms(VALUE) if form in found]


def test_a_cold_rank_has_its_secrets(alone: Service) -> None:
    put(alone, "threads", "2")
    put(alone, "hf", VALUE)
    program = "import os, torch\nprint(torch.get_num_threads(), len(os.environ['HF_TOKEN']), os.environ['HF_TOKEN'])"
    job = alone.run_script({"train.py": program}, secrets={"OMP_NUM_THREADS": "threads", "HF_TOKEN": "hf"})
    assert alone.ended(job).state is JobState.SUCCEEDED, alone.text(job, stream="stderr")
    assert alone.text(job) == f"2 {len(VALUE)} [secret hf]"


def test_a_recipe_with_code_of_its_own_has_its_secrets(alone: Service) -> None:
    put(alone, "hf", VALUE)
    files = {"mine.py": "import os, torch\nprint(os.environ['HF_TOKEN'])\nclass Model(torch.nn.Linear): pass\n"}
    model = {"ref": "mine:Model", "args": {"in_features": 5, "out_features": 2}}
    job = alone.run_recipe(alone.bundle(files), model, secrets={"HF_TOKEN": "hf"})
    assert alone.ended(job).state is JobState.SUCCEEDED, alone.text(job, stream="stderr")
    assert "[secret hf]" in alone.text(job)


def test_no_other_process_has_them(alone: Service) -> None:
    """No command line and no environment but what the program has set of its own has them, and no open file."""
    put(alone, "hf", VALUE)
    program = "import os, subprocess, sys, time\nprint('up', os.environ['HF_TOKEN'] != '')\ntime.sleep(600)"
    job = alone.run_script({"train.py": program}, secrets={"HF_TOKEN": "hf"})
    eventually(lambda: alone.job(job).started and b"up True" in log_of(alone, job), "the program runs")
    supervisor = alone.supervisor(alone.attempt(job))
    looked_at = [supervisor, *(int(pid) for pid in os.listdir("/proc") if pid.isdigit() and is_ours(alone, int(pid)))]
    for pid in looked_at:
        for name in ("cmdline", "environ"):
            assert VALUE.encode() not in Path(f"/proc/{pid}/{name}").read_bytes(), (pid, name)
    assert not [fd for fd in Path(f"/proc/{supervisor}/fd").iterdir() if "credentials" in os.readlink(fd)]
    alone.cancel(job)
    alone.ended(job)


def log_of(service: Service, job: str) -> bytes:
    return b"".join(path.read_bytes() for path in service.files(job).rglob("*") if path.is_file())


def is_ours(service: Service, pid: int) -> bool:
    try:
        return str(service.directory).encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def test_values_may_be_large(alone: Service) -> None:
    """More than a pipe holds. What decrypts them is in no rank."""
    values = {f"LARGE_{number}": "x" * 65_536 for number in range(4)}
    for name, value in values.items():
        put(alone, name, value)
    program = (
        "import os, sys\n"
        "print(sum(len(os.environ[f'LARGE_{n}']) for n in range(4)), 'cryptography.hazmat' in sys.modules)"
    )
    job = alone.run_script({"train.py": program}, secrets={name: name for name in values})
    assert alone.ended(job).state is JobState.SUCCEEDED, alone.text(job, stream="stderr")
    assert alone.text(job) == f"{4 * 65_536} False"


def test_a_job_whose_secret_was_deleted_is_rejected_by_name(alone: Service) -> None:
    put(alone, "hf", VALUE)
    job = alone.run_script({"train.py": ""}, secrets={"HF_TOKEN": "hf", "OTHER": "gone"})
    record = alone.ended(job)
    assert (record.state, record.reason) == (JobState.FAILED, StateReason.REJECTED_BY_WORKER)
    assert record.message == (
        "program.secrets.OTHER: the secret 'gone' no longer exists; put it again (`shardyard secret put gone`) and "
        "resubmit"
    )


def test_a_secret_of_another_tenant_is_none(alone: Service) -> None:
    put(alone, "theirs", VALUE, tenant="acme")
    record = alone.ended(alone.run_script({"train.py": ""}, secrets={"HF_TOKEN": "theirs"}))
    assert record.reason is StateReason.REJECTED_BY_WORKER
    assert "the secret 'theirs' no longer exists" in record.message


def test_a_worker_without_the_key_says_what_to_do(alone: Service) -> None:
    put(alone, "hf", VALUE)
    path = alone.settings.secret_keys()
    kept = path.read_text()
    try:
        path.write_text(secret_keys.new_key_line())
        job = alone.run_script({"train.py": "print('it ran')"}, secrets={"HF_TOKEN": "hf"})
        waiting = eventually(lambda: alone.job(job) if alone.job(job).losses else None, "the first loss")
        assert waiting.state is JobState.QUEUED
        (attempt,) = alone.attempts(job)
        assert attempt.reason is StateReason.START_FAILED
        assert f"encrypted with a key that {path} does not have" in attempt.message
        path.write_text(secret_keys.new_key_line() + kept)
        eventually(lambda: started_again(alone, job), "its back-off is over")
        assert alone.ended(job).state is JobState.SUCCEEDED, "the older key is in the file again, behind a new one"
    finally:
        path.write_text(kept)


def started_again(service: Service, job: str) -> bool:
    service.dispatch_jobs()
    return service.job(job).attempt == 2
