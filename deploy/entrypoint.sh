#!/bin/sh
# Settings that are secret come as files, each named after its variable: a variable that compose sets
# would show in `docker inspect`. Values have one line.
set -eu
for file in /run/shardyard/settings/*; do
  if [ -f "$file" ]; then
    export "$(basename "$file")=$(cat "$file")"
  fi
done
exec "$@"
