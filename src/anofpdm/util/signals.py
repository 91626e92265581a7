"""Ctrl-C and SIGTERM, in one place.

They are blocked while the program starts and while torch is imported, which an interrupt would crash. The system keeps
a blocked signal; it is raised as KeyboardInterrupt or Terminated as soon as a command can report it.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

from anofpdm.errors import Terminated

STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})


def block_signals(blocked: bool = True) -> set[signal.Signals]:
    """In this thread, and in processes and threads that it starts; False: let them through. Returns those that were
    blocked before."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        return set()
    how = signal.SIG_BLOCK if blocked else signal.SIG_UNBLOCK
    return {signal.Signals(number) for number in signal.pthread_sigmask(how, STOP_SIGNALS)}


@contextlib.contextmanager
def blocked_signals(blocked: bool = True) -> Iterator[None]:
    were_blocked = bool(block_signals(blocked) & STOP_SIGNALS)
    try:
        yield
    finally:
        block_signals(were_blocked)


def raise_on_sigterm() -> None:
    """Raise Terminated on SIGTERM, and repeat interrupts that Python would lose."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _repeat_lost_interrupt


def _terminate(_number: int, _frame: object) -> None:
    raise Terminated


def _repeat_lost_interrupt(unraisable: "sys.UnraisableHookArgs") -> None:
    """Python ignores exceptions in callbacks of its garbage collection, an interrupt too. Raise it again, outside."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        number = signal.SIGTERM if isinstance(unraisable.exc_value, Terminated) else signal.SIGINT
        timer = threading.Timer(0.05, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()
    else:
        sys.__unraisablehook__(unraisable)
