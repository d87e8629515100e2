"""The floor of a start: a process that has torch imported forks the ranks of `ddp_linear.py`, and nothing else.

Reads lines `RANKS KIND FIRST_STEP_FILE` from stdin (no rank variables where RANKS is 0: plain python), forks that many
processes, serves the store through which they meet, and answers `done` when all have left, or `failed`. There is no
service here: no request, no queue, no lease, no log, no credentials; nobody watches, and nobody is told.
"""

import gc
import os
import socket
import sys
from pathlib import Path

import torch._dynamo  # the first optimizer or DDP constructor imports it otherwise
from torch.distributed import TCPStore  # type: ignore[attr-defined]

# Under the name that a program has which is started by itself or by torchrun.
sys.path.insert(0, str(Path(__file__).parent))
import ddp_linear  # type: ignore[import-not-found]

gc.collect()
gc.freeze()


def _run(ranks: int, kind: str, first_step_file: Path) -> bool:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    pids = []
    for rank in range(max(ranks, 1)):
        pid = os.fork()
        if pid == 0:
            try:
                listener.close()
                torch.set_num_threads(1)
                if ranks:
                    os.environ.update(_variables(rank, ranks, port))
                ddp_linear.main(first_step_file, kind)
                os._exit(0)
            finally:
                os._exit(1)
        pids.append(pid)
    # After the forks: it has a thread, and a process with threads must not fork.
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    del store
    return not any(ended)


def _variables(rank: int, ranks: int, port: int) -> dict[str, str]:
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


if __name__ == "__main__":
    print("ready", flush=True)
    for line in sys.stdin:
        count, device, path = line.rstrip("\n").split(" ", 2)
        print("done" if _run(int(count), device, Path(path)) else "failed", flush=True)
