"""Secrets over HTTP, and jobs that name them."""

import logging
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from api.background import secret_rotation
from jobs.model.settings import Settings
from jobs.store.accounts import tenant_secrets
from jobs.store.accounts.tokens import Scope
from jobs.support import secret_keys
from tests.integration.api.conftest import Api
from tests.integration.api.jobs.test_bundles import script, submit, upload

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

VALUE = "hf_Zq7wvT4mB2nXk8"


@pytest.fixture
def key_file(settings: Settings) -> Path:
    secret_keys.create_key_file(settings.secret_keys())
    return settings.secret_keys()


async def put(api: Api, name: str, value: Any = VALUE, **request: Any) -> Any:
    return await api.client.put(f"/v1/secrets/{name}", json={"value": value}, **request)


def stored(api: Api, path: Path, name: str, tenant: str = "default") -> str:
    """The value as a worker would read it."""
    sealed = api.control.run(tenant_secrets.read_sealed_secrets(tenant, [name]))[name]
    assert sealed is not None
    return secret_keys.decrypt_secret(secret_keys.read_keys(path), tenant, name, sealed)


# -- put, list, delete -----------------------------------------------------------------------------


async def test_a_secret_is_stored_listed_and_deleted_and_its_value_is_never_shown(api: Api, key_file: Path) -> None:
    made = await put(api, "hf")
    assert (made.status_code, made.json().keys()) == (201, {"name", "created_at", "updated_at"})
    again = await put(api, "hf", VALUE + "!")
    assert (again.status_code, again.json()["created_at"]) == (200, made.json()["created_at"])
    assert stored(api, key_file, "hf") == VALUE + "!"
    assert await api.get("/v1/secrets") == {"secrets": [again.json()], "total": 1}
    assert VALUE not in made.text + again.text
    assert VALUE.encode() not in b"".join(api.control.client.dump(key) or b"" for key in api.control.client.keys("*"))
    assert (await api.client.delete("/v1/secrets/hf")).status_code == 204
    assert (await api.client.delete("/v1/secrets/hf")).json()["code"] == "not_found"
    assert await api.get("/v1/secrets") == {"secrets": [], "total": 0}


async def test_tenants_have_secrets_of_their_own(api: Api, key_file: Path) -> None:
    theirs = api.token(Scope.SUBMIT, tenant="rival")
    await put(api, "hf", "mine-mine-mine")
    assert (await put(api, "hf", "theirs-theirs", headers=theirs)).status_code == 201
    assert (stored(api, key_file, "hf"), stored(api, key_file, "hf", "rival")) == ("mine-mine-mine", "theirs-theirs")
    assert (await api.client.delete("/v1/secrets/hf", headers=theirs)).status_code == 204
    assert (await api.get("/v1/secrets", headers=theirs))["secrets"] == []
    assert [one["name"] for one in (await api.get("/v1/secrets"))["secrets"]] == ["hf"]


async def test_a_token_that_may_read_sees_names_and_changes_nothing(api: Api, key_file: Path) -> None:
    reader = api.token(Scope.READ)
    await put(api, "hf")
    assert (await put(api, "hf", "other", headers=reader)).json()["code"] == "forbidden"
    assert (await api.client.delete("/v1/secrets/hf", headers=reader)).json()["code"] == "forbidden"
    assert [one["name"] for one in (await api.get("/v1/secrets", headers=reader))["secrets"]] == ["hf"]


@pytest.mark.parametrize("value", ["", "a\0b", "ü" * 40_000, 7, None, ["hf_refused_value"], {"hf_refused_value": 1}])
async def test_a_value_that_cannot_be_used_is_refused_and_not_repeated(api: Api, key_file: Path, value: Any) -> None:
    answer = await put(api, "hf", value)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    (wrong,) = answer.json()["errors"]
    assert wrong == {
        "field": "value",
        "message": 'send {"value": "..."} with text of 1 to 65536 bytes, and without NUL',
    }
    assert "hf_refused_value" not in answer.text


async def test_a_name_that_cannot_be_used_is_refused(api: Api, key_file: Path) -> None:
    for name in ("-x", "x" * 64, "a b", "a%2Fb", "x."):
        answer = await put(api, name)
        assert answer.status_code in (404, 422), name
        if answer.status_code == 422:
            assert answer.json()["errors"][0]["field"] == "name"
    assert (await put(api, "a" * 63)).status_code == 201


async def test_the_largest_value_is_stored(api: Api, key_file: Path) -> None:
    assert (await put(api, "large", "\x01" * 65_536)).status_code == 201
    assert stored(api, key_file, "large") == "\x01" * 65_536


async def test_the_audit_has_names_and_no_values(api: Api, key_file: Path) -> None:
    with capture_logs() as logs:
        await put(api, "hf")
        await put(api, "hf")
        await api.client.delete("/v1/secrets/hf")
    events = [
        (entry["event"], entry["secret"], entry["tenant"]) for entry in logs if entry["event"].startswith("secret_")
    ]
    assert events == [(event, "hf", "default") for event in ("secret_created", "secret_replaced", "secret_deleted")]
    assert VALUE not in str(logs)


async def test_there_is_a_limit_on_how_many(api: Api, key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_secrets, "MAX_SECRETS", 1)
    assert (await put(api, "one")).status_code == 201
    refused = await put(api, "two")
    assert (refused.status_code, refused.json()["code"]) == (409, "secret_quota")


# -- the key ---------------------------------------------------------------------------------------


async def test_without_a_key_the_answer_says_what_to_do(api: Api, settings: Settings) -> None:
    answer = await put(api, "hf")
    assert (answer.status_code, answer.json()["code"]) == (503, "secret_key_unusable")
    assert f"`shardyard secret new-key {settings.secret_keys()}`" in answer.json()["detail"]
    assert (await api.get("/v1/secrets")) == {"secrets": [], "total": 0}


async def test_secrets_are_encrypted_with_a_new_key_and_then_need_the_older_one_no_more(
    api: Api, key_file: Path
) -> None:
    await put(api, "hf")
    await put(api, "wandb", "another-value", headers=api.token(Scope.SUBMIT, tenant="rival"))
    secret_keys.add_key(key_file)
    with capture_logs() as logs:
        secret_rotation.rotate_secrets(api.control, key_file)
        secret_rotation.rotate_secrets(api.control, key_file)
    assert [(entry["event"], entry["for_tenant"], entry["secrets"]) for entry in logs] == [
        ("secrets_reencrypted", "default", 1),
        ("secrets_reencrypted", "rival", 1),
    ]
    key_file.write_text(key_file.read_text().splitlines()[0])
    assert (stored(api, key_file, "hf"), stored(api, key_file, "wandb", "rival")) == (VALUE, "another-value")


async def test_a_key_file_of_another_service_is_reported_and_changes_nothing(api: Api, key_file: Path) -> None:
    await put(api, "hf")
    kept = key_file.read_text()
    key_file.write_text(secret_keys.new_key_line())
    with capture_logs() as logs:
        secret_rotation.rotate_secrets(api.control, key_file)
        key_file.unlink()
        secret_rotation.rotate_secrets(api.control, key_file)
    assert [entry["event"] for entry in logs] == ["secret_unreadable", "secrets_unreadable"]
    assert all(entry["log_level"] == logging.getLevelName(logging.ERROR).lower() for entry in logs)
    secret_keys.create_key_file(key_file)
    key_file.write_text(kept)
    assert stored(api, key_file, "hf") == VALUE


# -- jobs that name secrets ------------------------------------------------------------------------


def with_secrets(**secrets: str) -> dict[str, Any]:
    body = script()
    body["program"]["secrets"] = secrets
    return body


async def test_a_job_that_names_a_secret_shows_its_name(api: Api, key_file: Path) -> None:
    api.node()
    await upload(api)
    await put(api, "hf")
    answer = await submit(api, with_secrets(HF_TOKEN="hf"))
    assert answer.status_code == 201, answer.text
    assert answer.json()["spec"]["program"]["secrets"] == {"HF_TOKEN": "hf"}
    again = await api.client.post(f"/v1/jobs/{answer.json()['id']}/resubmit")
    assert again.json()["spec"]["program"]["secrets"] == {"HF_TOKEN": "hf"}


async def test_a_job_that_names_a_secret_which_is_not_there_is_refused(api: Api, key_file: Path) -> None:
    api.node()
    await upload(api)
    await put(api, "huggingface")
    await put(api, "theirs", headers=api.token(Scope.SUBMIT, tenant="rival"))
    answer = await submit(api, with_secrets(HF_TOKEN="hugingface", A="huggingface", OTHER="theirs"))
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_secret")
    assert answer.json()["errors"] == [
        {
            "field": "program.secrets.HF_TOKEN",
            "message": "there is no secret 'hugingface'; did you mean 'huggingface'?",
        },
        {
            "field": "program.secrets.OTHER",
            "message": "there is no secret 'theirs'; `shardyard secret put theirs` stores one",
        },
    ]
    assert (await api.get("/v1/jobs"))["jobs"] == []


async def test_a_job_whose_secret_was_deleted_cannot_be_submitted_again(api: Api, key_file: Path) -> None:
    api.node()
    await upload(api)
    await put(api, "hf")
    job = (await submit(api, with_secrets(HF_TOKEN="hf"))).json()["id"]
    await api.client.delete("/v1/secrets/hf")
    assert (await api.client.post(f"/v1/jobs/{job}/resubmit")).json()["code"] == "unknown_secret"
