"""Makes a rank that was forked from a warm server look like a Python process that was just started.

multiprocessing takes a forked rank for a child: data loaders then start their workers in the parent's way, a program
may not choose a start method, and what the server has left behind (descriptors that are closed by now, a resource
tracker that is not ours) would be used.
"""

import itertools
import logging
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
from multiprocessing import forkserver, process, resource_tracker, util
from multiprocessing.process import BaseProcess
from typing import Any, cast


class _MainProcess(BaseProcess):
    """As `multiprocessing.process` makes one for itself when it is imported; it keeps no class to make another."""

    def __init__(self) -> None:
        fields = {"_identity": (), "_name": "MainProcess", "_parent_pid": None, "_popen": None, "_closed": False}
        self.__dict__ |= fields
        self._config = {"authkey": cast(Any, process).AuthenticationString(os.urandom(32)), "semprefix": "/mp"}

    def close(self) -> None:
        pass


def become_main_process() -> None:
    """Forget the processes that this one descends from, and all that was drawn or looked up before the fork."""
    _forget_parents()
    _forget_servers()
    cast(Any, threading.main_thread())._set_native_id()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.root.handlers.clear()  # the service's own, with which `logging.basicConfig` would do nothing
    if logging.root.level != logging.WARNING:
        logging.root.setLevel(logging.WARNING)
    tempfile.tempdir = None  # looked up once: TMPDIR is another now
    _draw_seeds()
    cast(Any, sys).__stdin__ = sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  (open until the end)


def _draw_seeds() -> None:
    """Processes forked from one server would otherwise all draw the same numbers, where they set no seed."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def _forget_parents() -> None:
    state = cast(Any, process)
    state._parent_process = None
    state._current_process = _MainProcess()
    state._process_counter = itertools.count(1)
    state._children = set()
    state.ORIGINAL_DIR = os.getcwd()
    cast(Any, util)._finalizer_registry.clear()
    multiprocessing.set_start_method(cast(str, None), force=True)  # the default again, and open to be chosen


def _forget_servers() -> None:
    cast(Any, forkserver)._forkserver.__init__()
    cast(Any, resource_tracker)._resource_tracker.__init__()
