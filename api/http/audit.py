"""The audit log: one entry for each change that a caller makes."""

import structlog

from api.http.auth import Principal

_log = structlog.get_logger("shardyard.audit")


def log_audit_event(who: Principal, event: str, **fields: object) -> None:
    _log.info(event, **fields, token=who.token, tenant=who.tenant)
