"""Servers that tests start: Redis, receivers, an identity provider, a front with TLS."""
