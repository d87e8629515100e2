"""The service of secrets: encrypts, lists and deletes those of a tenant, and checks that those of a job exist."""

import asyncio
import difflib
from pathlib import Path

from api.http import audit
from api.http.auth import Principal
from api.schemas import views
from api.schemas.account_requests import parse_secret
from jobs.model.spec import JobSpec
from jobs.store.accounts import tenant_secrets
from jobs.store.client import AsyncRedisStore
from jobs.support import secret_keys
from shardyard.contract.errors import FieldError, NotFound, UnknownSecret
from shardyard.contract.responses import SecretList, SecretView


class SecretService:
    def __init__(self, control: AsyncRedisStore, key_file: Path) -> None:
        self._store = control
        self._key_file = key_file

    async def put_secret(self, who: Principal, name: str, body: bytes) -> tuple[SecretView, bool]:
        """The stored secret, and whether it is new.

        Raises:
            MalformedJson, InvalidRequest: the name or the value cannot be used.
            SecretQuota: the tenant has too many.
            SecretKeyUnusable: this process has no key to encrypt it with.
        """
        value = parse_secret(name, body)
        sealed = await asyncio.to_thread(self._encrypt_secret, who.tenant, name, value)
        record, is_new = await self._store.run(tenant_secrets.put_secret(who.tenant, name, sealed))
        audit.log_audit_event(who, "secret_created" if is_new else "secret_replaced", secret=name)
        return views.secret_view(record), is_new

    def _encrypt_secret(self, tenant: str, name: str, value: str) -> bytes:
        return secret_keys.encrypt_secret(secret_keys.read_keys(self._key_file), tenant, name, value)

    async def list_secrets(self, who: Principal) -> SecretList:
        records = await self._store.run(tenant_secrets.list_secrets(who.tenant))
        return SecretList([views.secret_view(record) for record in records], len(records))

    async def read_secret(self, who: Principal, name: str) -> SecretView:
        """Raises NotFound."""
        for record in await self._store.run(tenant_secrets.list_secrets(who.tenant)):
            if record.name == name:
                return views.secret_view(record)
        raise NotFound(f"there is no secret {name[:64]!r}")

    async def delete_secret(self, who: Principal, name: str) -> None:
        """Raises NotFound."""
        is_known = name in await self._store.run(tenant_secrets.read_secret_names(who.tenant))
        try:
            await self._store.run(tenant_secrets.delete_secret(who.tenant, name))
        except NotFound:
            if not is_known:  # else it went by this very call, whose first reply was lost
                raise
        audit.log_audit_event(who, "secret_deleted", secret=name)

    async def check_secrets(self, who: Principal, wanted: JobSpec) -> None:
        """Raises UnknownSecret where a job names secrets that the tenant does not have."""
        if not wanted.secrets:
            return
        known = await self._store.run(tenant_secrets.read_secret_names(who.tenant))
        missing = {variable: name for variable, name in wanted.secrets.items() if name not in known}
        if missing:
            fields = tuple(
                FieldError(f"program.secrets.{variable}", _describe_missing(name, known))
                for variable, name in missing.items()
            )
            raise UnknownSecret("the job names secrets that do not exist", fields=fields)


def _describe_missing(name: str, known: frozenset[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"`shardyard secret put {name}` stores one"
    return f"there is no secret {name!r}; {hint}"
