#!/bin/sh
# Settings that are secret come as files, each named after its variable: a variable that compose sets
# would show in `docker inspect`. Values have one line.
set -eu
for file in /run/shardyard/settings/*; do
  if [ -f "$file" ]; then
    export "$(basename "$file")=$(cat "$file")"
  fi
done
# Compose mounts this read-only, and a worker limits each job by a cgroup of its own. Whoever may not change that, such as
# the API, or an engine with other mounts, goes on without: `shardyard nodes --box` says so.
if [ "$(id -u)" = 0 ]; then
  mount -o remount,rw /sys/fs/cgroup 2>/dev/null || true
fi
# The storage of an API that is not root, for a worker that is.
if [ "${MAP_STORAGE:-}" = 1 ] && [ "$(stat -c %u /var/lib/shardyard/storage)" != 0 ]; then
  python /opt/shardyard/own_storage.py
fi
exec "$@"
