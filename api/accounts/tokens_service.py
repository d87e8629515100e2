"""The service of bearer tokens: issues, lists and revokes those of a tenant."""

import time

import msgspec

from api.data.fleet_cache import FleetCache
from api.http import audit
from api.http.auth import Authenticator, Principal
from api.schemas import views
from api.schemas.account_requests import make_quota, parse_new_token
from jobs.protocol.names import DEFAULT_TENANT
from jobs.store.accounts import quotas, tokens
from jobs.store.client import AsyncRedisStore
from shardyard.contract.errors import Forbidden, NotFound, UnboxedNodes
from shardyard.contract.responses import NewToken, TokenList, TokenView
from shardyard.contract.unboxed import refusal_text


class TokenService:
    """`jobs_unboxed`: a second tenant is accepted although nodes put no box around jobs."""

    def __init__(
        self, control: AsyncRedisStore, authenticator: Authenticator, fleet: FleetCache, *, jobs_unboxed: bool
    ) -> None:
        self._store = control
        self._authenticator = authenticator
        self._fleet = fleet
        self._jobs_unboxed = jobs_unboxed

    async def create_token(self, who: Principal, body: bytes) -> NewToken:
        """Raises:
        InvalidRequest: a field is wrong.
        Forbidden: the token is for another tenant, or a node, and the caller is not the operator.
        UnboxedNodes: it is for a tenant beside the operator's, and a node puts no box around jobs.
        """
        wanted = parse_new_token(body)
        tenant = wanted.tenant or who.tenant
        if tenant != who.tenant and who.tenant != DEFAULT_TENANT:
            raise Forbidden("only operators may create tokens for another tenant")
        if not wanted.scopes.isdisjoint(tokens.MACHINES_SCOPES) and who.tenant != DEFAULT_TENANT:
            raise Forbidden("only operators may create tokens for nodes")
        await self.require_boxes(tenant)
        quota = None if wanted.quota is None else make_quota(wanted.quota, "quota.", of_token=True)
        now = time.time_ns() // 1000
        expires = None if wanted.expires_in_seconds is None else now + wanted.expires_in_seconds * 1_000_000
        node = wanted.node or ""
        text, record = tokens.issue_token(tenant, wanted.scopes, wanted.name, created=now, expires=expires, node=node)
        if quota is not None:  # first: the token must not work without it
            await self._store.run(quotas.set_quota(tenant, record.id, quota))
        await self._store.run(tokens.put_token(record))
        details = {"created": record.id, "for_tenant": tenant, "scopes": sorted(record.scopes)}
        audit.log_audit_event(who, "token_created", **details, **({"for_node": node} if node else {}))
        return NewToken(**msgspec.structs.asdict(views.token_view(record)), token=text)

    async def require_boxes(self, tenant: str) -> None:
        """Raises:
        UnboxedNodes: it is not the operator's tenant, and a node puts no box around jobs.
        """
        if tenant == DEFAULT_TENANT or self._jobs_unboxed:
            return
        fleet = await self._fleet.read_fleet(max_age=0)
        unboxed = {node.id: node.info.why_no_box for node in fleet.nodes if node.alive and node.info.why_no_box}
        if unboxed:
            raise UnboxedNodes(refusal_text(unboxed, f"no token for a second tenant ({tenant})"))

    async def list_tokens(self, who: Principal) -> TokenList:
        found: list[TokenView] = [views.token_view(t) for t in await self._store.run(tokens.list_tokens(who.tenant))]
        return TokenList(found, len(found))

    async def revoke_token(self, who: Principal, token: str) -> None:
        """Other API processes notice within a few seconds. Raises NotFound."""
        known = any(found.id == token for found in await self._store.run(tokens.list_tokens(who.tenant)))
        try:
            await self._store.run(tokens.revoke_token(who.tenant, token))
        except NotFound:
            if not known:  # else it went by this very call, whose first reply was lost
                raise
        await self._store.run(quotas.set_quota(who.tenant, token, None))
        self._authenticator.forget_token(token)
        audit.log_audit_event(who, "token_revoked", revoked=token)
