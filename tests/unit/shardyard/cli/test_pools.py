"""What `shardyard pools` says of pools that an engine supplies."""

from shardyard.cli.fleet.pools import _engine_lines
from shardyard.contract.fleet import BlockView, EngineView, PoolView

BLOCKS = [
    BlockView(id="4710", nodes=2, state="running"),
    BlockView(id="4711", nodes=1, state="pending", why="Priority"),
    BlockView(nodes=1, state="submitting"),
]


def test_blocks_are_listed_with_what_the_engine_says() -> None:
    engine = EngineView(name="slurm", provider="login:/etc/pools.toml", node_devices=4, max_nodes=3, blocks=BLOCKS)
    assert list(_engine_lines([PoolView(name="gpus", engine=engine), PoolView(name="default")])) == [
        "gpus gets up to 3 nodes of 4 devices from slurm (login:/etc/pools.toml)",
        "  block 4710, 2 nodes, running",
        "  block 4711, 1 node, pending: Priority",
        "  block -, 1 node, submitting",
    ]


def test_an_error_and_a_provider_that_is_gone_are_named() -> None:
    engine = EngineView(name="slurm", provider="login:/etc/pools.toml", error="invalid account", silent=True)
    lines = list(_engine_lines([PoolView(name="gpus", engine=engine)]))
    assert lines[1:] == [
        "  nothing is heard from its provider; start `shardyard provider` on login again",
        "  invalid account",
    ]
