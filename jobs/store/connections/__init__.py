"""Ways to a Redis server: one connection for many tasks, Sentinels to ask, and changes that replicas confirm."""
