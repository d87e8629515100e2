"""Shows the stacks of a rank that is asked for them by a signal."""

import faulthandler
import signal

#: Asks a rank for the stacks of all its threads. Programs have their own uses for the signals with names.
STACKS_SIGNAL = signal.SIGRTMIN + 9


def show_stacks_on_signal() -> None:
    """Have this rank write its stacks to stderr when the signal comes. It does so from within the signal handler, so
    it works even if a thread holds the interpreter's lock in a call that does not return."""
    faulthandler.register(STACKS_SIGNAL, file=2, all_threads=True)
