"""What deploy/kubernetes renders to, against the schemas of its resources, and for what pods may do and reach.

No cluster is asked: kubectl renders, schemas and models come from packages. Custom resources are read into models that
were made of their schemas, and must come out again as they went in, so no field is unknown.
"""

import functools
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.model.settings import Settings
from shardyard.cli.service import worker_command
from workers.node.worker_monitor import STOP_SECONDS

ROOT = Path(__file__).parents[3]
KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = ["base", *(f"overlays/{path.name}" for path in sorted((KUBERNETES / "overlays").iterdir()))]
#: The oldest version that the service is meant for.
OLDEST = "1.30"
CUSTOM = {"JobSet", "ScaledObject"}
#: With a box around each job, workers are root.
BOXED = {"overlays/gpu-pool", "overlays/scaled"}
POD_KINDS = {"Deployment", "StatefulSet"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the folder, with secrets."""
    if shutil.which("kubectl") is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("there is no kubectl, which renders")
    copy = tmp_path_factory.mktemp("kubernetes") / "kubernetes"
    shutil.copytree(KUBERNETES, copy, ignore=shutil.ignore_patterns("secrets"))
    make_secrets(copy / "base" / "secrets")
    return copy


def make_secrets(folder: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_secrets", KUBERNETES / "make_secrets.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    before = os.umask(0o077)
    try:
        program.main(folder)
    finally:
        os.umask(before)


@functools.cache
def rendered(tree: Path, overlay: str) -> list[dict[str, Any]]:
    done = subprocess.run(["kubectl", "kustomize", str(tree / overlay)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def pods(documents: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any], dict[str, str]]]:
    """Name, spec and labels of what is made into pods."""
    for document in documents:
        if document["kind"] in POD_KINDS:
            template = document["spec"]["template"]
            yield document["metadata"]["name"], template["spec"], template["metadata"]["labels"]
        elif document["kind"] == "JobSet":
            for job in document["spec"]["replicatedJobs"]:
                template = job["template"]["spec"]["template"]
                yield document["metadata"]["name"], template["spec"], template["metadata"]["labels"]


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def named(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = (each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def of_kubernetes(tree: Path) -> list[dict[str, Any]]:
    """Each of Kubernetes' own resources once, as most are the same in several overlays."""
    found = [document for overlay in OVERLAYS for document in rendered(tree, overlay) if document["kind"] not in CUSTOM]
    return list({yaml.safe_dump(document): document for document in found}.values())


def validate(document: dict[str, Any], version: str = "") -> None:
    """Raises ValueError unless it is as the schema of that version demands, or of the newest that the validator has."""
    import kubernetes_validate  # takes a second, of every process that collects tests

    try:
        kubernetes_validate.validate(document, version or kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        raise ValueError(f"{document['kind']}: {error}") from error


def test_every_resource_is_as_its_schema_demands(tree: Path) -> None:
    for document in of_kubernetes(tree):
        validate(document)


@pytest.mark.slow
def test_older_clusters_know_every_resource_too(tree: Path) -> None:
    for document in of_kubernetes(tree):
        validate(document, OLDEST)


def test_a_field_that_no_schema_has_is_found(tree: Path) -> None:
    service = named(rendered(tree, "base"), "Service", "api")
    with pytest.raises(ValueError, match="prots"):
        validate(service | {"spec": service["spec"] | {"prots": []}})


@pytest.mark.slow  # the models alone take seconds to import
def test_a_block_is_a_jobset_that_waits_for_its_queue(tree: Path) -> None:
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

    block = named(rendered(tree, "overlays/blocks"), "JobSet", "block-1")
    assert block["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
    assert block["spec"]["suspend"] is True

    def passes(document: dict[str, Any]) -> bool:
        return bool(in_order(JobsetV1alpha2JobSet.from_dict(document).to_dict()) == in_order(document))

    assert passes(block)
    assert not passes(block | {"spec": block["spec"] | {"replicatedJob": [{"name": "x"}]}})


@pytest.mark.slow
def test_a_pool_is_scaled_by_what_its_jobs_want(tree: Path) -> None:
    from cloudcoil.models.keda.v1alpha1 import ScaledObject

    documents = rendered(tree, "overlays/scaled")
    scaled = named(documents, "ScaledObject", "worker")
    target = scaled["spec"]["scaleTargetRef"]
    assert "replicas" not in named(documents, target["kind"], target["name"])["spec"]
    (trigger,) = scaled["spec"]["triggers"]
    (worker,) = (spec for name, spec, _ in pods(documents) if name == "worker")
    arguments = worker["containers"][0]["args"]
    assert f'{{pool="{arguments[arguments.index("--pool") + 1]}"}}' in trigger["metadata"]["query"]

    def passes(document: dict[str, Any]) -> bool:
        try:
            read = ScaledObject.model_validate(document).model_dump(mode="json", by_alias=True, exclude_unset=True)
        except ValueError:
            return False
        return bool(in_order(read) == in_order(document))

    assert passes(scaled)
    assert not passes(scaled | {"spec": scaled["spec"] | {"minReplicas": 3}})


def in_order(value: Any) -> Any:
    """Without what says nothing, as models leave it out."""
    if isinstance(value, dict):
        return {key: in_order(each) for key, each in value.items() if each not in (None, {}, [])}
    return [in_order(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_have_no_more_rights_than_they_need(tree: Path, overlay: str) -> None:
    for name, spec, _ in pods(rendered(tree, overlay)):
        is_root = overlay in BOXED and name in ("api", "worker")
        of_pod = spec["securityContext"]
        assert spec["automountServiceAccountToken"] is False
        assert (of_pod["runAsUser"], of_pod.get("runAsNonRoot", False)) == ((0, False) if is_root else (10001, True))
        for container in containers(spec):
            own = container["securityContext"]
            assert own["readOnlyRootFilesystem"] is True
            assert own["allowPrivilegeEscalation"] is False
            assert own["capabilities"]["drop"] == ["ALL"]
            added = own["capabilities"].get("add", [])
            assert added == (capabilities_of_compose() if is_root and container["name"] == "worker" else [])
            assert container["resources"]["limits"]["memory"]
            assert container["resources"]["requests"]["cpu"]


def capabilities_of_compose() -> list[str]:
    """Of a worker whose storage is root's, as it is here."""
    compose = yaml.safe_load((ROOT / "docker-compose.hosts.yml").read_text())
    found: list[str] = compose["services"]["worker"]["cap_add"]
    return found


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_is_mounted_and_named_is_there(tree: Path, overlay: str) -> None:
    documents = rendered(tree, overlay)
    there = {(document["kind"], document["metadata"]["name"]) for document in documents}
    for name, spec, _ in pods(documents):
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        kinds = {*POD_KINDS, "JobSet"}
        (own,) = (each for each in documents if each["kind"] in kinds and each["metadata"]["name"] == name)
        claims = own["spec"].get("volumeClaimTemplates", [])
        known = volumes.keys() | {claim["metadata"]["name"] for claim in claims}
        for container in containers(spec):
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= known
        for volume in volumes.values():
            if "secret" in volume:
                assert ("Secret", volume["secret"]["secretName"]) in there
                assert re.search(r"-[a-z0-9]{10}$", volume["secret"]["secretName"]), "a hash of its content"
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in there
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in there
        assert ("ServiceAccount", spec["serviceAccountName"]) in there
    for document in documents:
        if document["kind"] not in ("Service", "PodDisruptionBudget"):
            continue
        selector = document["spec"]["selector"]
        labels = selector.get("matchLabels", selector)
        assert any(labels.items() <= pod.items() for _, _, pod in pods(documents)), document["metadata"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_variables_are_settings_and_files_hold_the_rest(tree: Path, overlay: str) -> None:
    settings = {f"SHARDYARD_{field.upper()}" for field in Settings.model_fields}
    documents = rendered(tree, overlay)
    for _, spec, _ in pods(documents):
        for container in containers(spec):
            for variable in container.get("env", []):
                assert not variable["name"].startswith("SHARDYARD_") or variable["name"] in settings
    for document in documents:
        if document["kind"] == "Secret":
            assert {key for key in document["data"] if key.startswith("SHARDYARD_")} <= settings


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_workers_are_started_with_options_that_there_are(tree: Path, overlay: str) -> None:
    known = {f"--{name.replace('_', '-')}" for name in inspect.signature(worker_command).parameters}
    for _, spec, _ in pods(rendered(tree, overlay)):
        program, *arguments = spec["containers"][0].get("args", ["", ""])
        if arguments[:1] == ["worker"]:
            assert program == "shardyard"
            assert {word for word in arguments if word.startswith("--")} <= known


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_worker_has_the_time_that_its_drain_takes(tree: Path, overlay: str) -> None:
    for name, spec, _ in pods(rendered(tree, overlay)):
        arguments = spec["containers"][0].get("args", [])
        if "worker" in arguments:
            drain = float(arguments[arguments.index("--drain") + 1])
            needed = drain + Settings().checkpoint_seconds + STOP_SECONDS
            assert needed <= spec["terminationGracePeriodSeconds"] <= needed + 120, name


@pytest.mark.parametrize("overlay", [each for each in OVERLAYS if each != "overlays/external-redis"])
def test_pods_reach_redis_and_workers_each_other_and_nothing_else(tree: Path, overlay: str) -> None:
    documents = rendered(tree, overlay)
    policies = [each["spec"] for each in documents if each["kind"] == "NetworkPolicy"]
    labels = {pod["app.kubernetes.io/name"]: pod for _, _, pod in pods(documents)}
    allowed = {
        (one, other)
        for one in labels
        for other in labels
        if may(policies, "Egress", labels[one], labels[other]) and may(policies, "Ingress", labels[other], labels[one])
    }
    redis = {(one, other) for one in ("api", "worker") for other in ("control", "telemetry")}
    assert allowed == redis | {("worker", "worker")}


def may(policies: list[dict[str, Any]], way: str, own: dict[str, str], peer: dict[str, str]) -> bool:
    """Whether policies let a pod speak to (Egress), or hear from (Ingress), a pod of the same namespace."""
    mine = [policy for policy in policies if way in policy["policyTypes"] and selects(policy["podSelector"], own)]
    peers = "to" if way == "Egress" else "from"
    return not mine or any(
        "namespaceSelector" not in each and "podSelector" in each and selects(each["podSelector"], peer)
        for policy in mine
        for rule in policy.get(way.lower(), [])
        for each in rule[peers]
    )


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    wanted = selector.get("matchLabels", {})
    rules = selector.get("matchExpressions", [])
    assert all(rule["operator"] == "In" for rule in rules)
    return wanted.items() <= labels.items() and all(labels.get(rule["key"]) in rule["values"] for rule in rules)


def test_the_overlay_that_the_document_shows_renders(tree: Path) -> None:
    document = (ROOT / "docs" / "kubernetes.md").read_text()
    (shown,) = re.findall(r"```yaml\n(.*?)```", document, re.DOTALL)
    (tree / "overlays" / "shown").mkdir()
    (tree / "overlays" / "shown" / "kustomization.yaml").write_text(shown)
    api = named(rendered(tree, "overlays/shown"), "Deployment", "api")["spec"]["template"]["spec"]
    (container,) = api["containers"]
    assert container["image"] == "registry.example/shardyard-api:0.2.0"
    assert {"name": "SHARDYARD_ALLOWED_HOSTS", "value": "api,shardyard.example.org"} in container["env"]
    assert api["securityContext"]["runAsUser"] == 0


def test_every_overlay_has_its_row() -> None:
    document = (ROOT / "docs" / "kubernetes.md").read_text()
    assert all(f"`{overlay}`" in document for overlay in OVERLAYS)


def test_the_servers_have_the_settings_of_the_compose_file(tree: Path) -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    (config,) = (each for each in rendered(tree, "base") if each["kind"] == "ConfigMap")
    for server in ("control", "telemetry"):
        lines = {line for line in config["data"][f"{server}.conf"].splitlines() if not line.startswith("#")}
        words = [re.sub(r"^--", "", word) for word in compose[server]["command"][1:] if word.startswith("--")]
        given = {line.split()[0] for line in lines}
        assert given == {word.split()[0] for word in words}, server
        assert "maxmemory-policy noeviction" in lines
    assert "appendfsync always" in config["data"]["control.conf"]


def test_secrets_are_made_once_and_closed(tmp_path: Path) -> None:
    make_secrets(tmp_path / "secrets")
    files = {path: path.read_bytes() for path in (tmp_path / "secrets").rglob("*") if path.is_file()}
    assert len(files) == 10
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)
    make_secrets(tmp_path / "secrets")
    assert {path: path.read_bytes() for path in (tmp_path / "secrets").rglob("*") if path.is_file()} == files
