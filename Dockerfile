# Two images from one file: `api`, without torch, and `worker`.
# The worker's image is the API's environment and training on top, so hosts that have both share most layers.

# By tag, so that a build has the newest fixes; name a digest to know what you build on.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
FROM $PYTHON_IMAGE AS base
RUN groupadd --gid 10001 shardyard \
 && useradd --uid 10001 --gid shardyard --no-create-home --home-dir /tmp --shell /usr/sbin/nologin shardyard \
 && install --directory --owner shardyard --group shardyard --mode 0700 /prepare/control /prepare/telemetry \
 && install --directory --mode 0700 /var/lib/shardyard/storage /prepare/settings /prepare/admin /prepare/keys \
      /prepare/storage
ENV PATH=/opt/venv/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/venv
WORKDIR /opt/shardyard
# An index to prefer builds from, for example that of PyTorch's CPU builds; docs/compose.md shows how.
ARG PIP_EXTRA_INDEX_URL

FROM base AS wheel
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY jobs jobs
COPY api api
COPY workers workers
COPY shardyard shardyard
# A link inside `shardyard` leads here, and the dashboard has them.
COPY examples examples
COPY web web
# The documents, which the API shows at /help. Where what makes them cannot be had the image has none.
COPY CHANGELOG.md CONTRIBUTING.md mkdocs.yml ./
COPY docs docs
COPY tools tools
COPY benchmarks benchmarks
COPY tests/faults/README.md tests/faults/
COPY locks/docs.txt locks/
RUN pip install --require-hashes --no-deps --requirement locks/docs.txt && python -m tools.site || rm -rf site
# The dashboard is built here, with npm from PyPI and packages from the npm registry. Where those cannot be had the image
# has none, and its start page says so; SHARDYARD_REQUIRE_WEB=1 makes that an error.
ARG SHARDYARD_REQUIRE_WEB
RUN NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt pip wheel --no-deps --wheel-dir /dist .

# What every process needs, in the versions that were tested. Sources come last, so that a change of them installs no
# dependency again.
FROM base AS service
COPY locks/api.txt ./
RUN pip install --require-hashes --no-deps --requirement api.txt
ENTRYPOINT ["/opt/shardyard/entrypoint.sh"]

# torch has no lock: its build is for the host's devices.
FROM service AS training
ARG TORCH="torch>=2.10,<2.14"
COPY locks/worker.txt ./
RUN pip install --require-hashes --no-deps --requirement worker.txt && pip install "$TORCH"

FROM service AS api
COPY deploy/entrypoint.sh deploy/prepare.py ./
COPY --from=wheel /dist /opt/shardyard/dist
RUN pip install --no-deps dist/*.whl && chown shardyard:shardyard /var/lib/shardyard/storage
USER 10001:10001
WORKDIR /tmp
CMD ["shardyard", "api"]

FROM training AS worker
COPY deploy/entrypoint.sh deploy/own_storage.py ./
COPY --from=wheel /dist /opt/shardyard/dist
RUN pip install --no-deps dist/*.whl && install --directory --mode 0700 /var/lib/shardyard/state
# Root, since it puts a box around each job; docker-compose.yml has the capabilities that this takes.
USER 0:0
WORKDIR /tmp
CMD ["shardyard", "worker", "--stop-attempts-on-exit"]
