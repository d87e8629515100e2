"""The file with the keys of secrets, and what they encrypt."""

import os
from pathlib import Path

import pytest

from jobs.support import secret_keys
from shardyard.contract.errors import SecretKeyUnusable


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with one key."""
    secret_keys.create_key_file(tmp_path / "keys" / "secret-key")
    return tmp_path / "keys" / "secret-key"


def refusal(path: Path) -> str:
    with pytest.raises(SecretKeyUnusable) as caught:
        secret_keys.read_keys(path)
    return caught.value.message


def test_a_value_comes_back_and_is_not_in_its_ciphertext(path: Path) -> None:
    keys = secret_keys.read_keys(path)
    sealed = secret_keys.encrypt_secret(keys, "acme", "hf", "a välue\nof two lines")
    assert b"lue" not in sealed
    assert secret_keys.decrypt_secret(keys, "acme", "hf", sealed) == "a välue\nof two lines"
    assert secret_keys.encrypt_secret(keys, "acme", "hf", "a välue\nof two lines") != sealed


@pytest.mark.parametrize(("tenant", "name"), [("rival", "hf"), ("acme", "wandb")])
def test_a_ciphertext_is_none_of_another_tenant_or_name(path: Path, tenant: str, name: str) -> None:
    keys = secret_keys.read_keys(path)
    sealed = secret_keys.encrypt_secret(keys, "acme", "hf", "value")
    with pytest.raises(SecretKeyUnusable, match=f"the secret '{name}' is damaged"):
        secret_keys.decrypt_secret(keys, tenant, name, sealed)


def test_what_was_changed_or_cut_is_refused(path: Path) -> None:
    keys = secret_keys.read_keys(path)
    sealed = secret_keys.encrypt_secret(keys, "acme", "hf", "value")
    for damaged in (sealed[:-1], sealed[:-1] + bytes([sealed[-1] ^ 1]), sealed[:8], b""):
        with pytest.raises(SecretKeyUnusable, match="'hf'"):
            secret_keys.decrypt_secret(keys, "acme", "hf", damaged)


def test_the_newest_key_encrypts_and_all_decrypt(path: Path) -> None:
    older = secret_keys.read_keys(path)
    sealed = secret_keys.encrypt_secret(older, "acme", "hf", "value")
    secret_keys.add_key(path)
    both = secret_keys.read_keys(path)
    assert secret_keys.decrypt_secret(both, "acme", "hf", sealed) == "value"
    anew = secret_keys.encrypt_secret(both, "acme", "hf", "value")
    assert anew[: secret_keys.HEAD_BYTES] == both.newest_head != older.newest_head
    with pytest.raises(SecretKeyUnusable, match=r"a key that .* does not have: put the service's file"):
        secret_keys.decrypt_secret(older, "acme", "hf", anew)


def test_a_file_is_made_once_and_private(path: Path) -> None:
    before = path.read_bytes()
    secret_keys.create_key_file(path)
    assert path.read_bytes() == before
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == [path.name]


def test_a_file_that_cannot_be_used_says_what_to_do(path: Path) -> None:
    assert f"`shardyard secret new-key {path}x`" in refusal(Path(f"{path}x"))
    path.chmod(0o640)
    assert refusal(path) == f"the file of secret keys, {path}, can be read by others; run `chmod 600 {path}`"
    path.chmod(0o600)
    path.write_text("# nothing\n\n")
    assert refusal(path) == f"the file of secret keys, {path}, has none; `shardyard secret new-key {path}` adds one"
    for line in ("c2hvcnQ=", "no base64!", "ü"):
        path.write_text(line)
        assert "has a line that is not a key" in refusal(path)


def test_keys_are_not_shown(path: Path) -> None:
    keys = secret_keys.read_keys(path)
    assert not any(repr(key) in repr(keys) for key in keys.by_head.values())
