"""Lets SIGTERM and SIGHUP, sent by schedulers and closed terminals, end a command as cleanly as Ctrl-C does."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
# a second signal this soon is ignored: a terminal that closes may send both
REPEAT_S = 2.0


class Ending:
    """The last signal that a command was ended by; ``number`` is 0 before the first."""

    number = 0
    _at = -REPEAT_S

    def receive(self, number: int, _: Any) -> None:
        """Handle a signal: raise KeyboardInterrupt, but not twice at once, which would stop the removal of drafts."""
        now = time.monotonic()
        if now - self._at >= REPEAT_S:
            self.number, self._at = number, now
            raise KeyboardInterrupt

    def status(self, otherwise: int) -> int:
        """Return the exit status of a command: 128 plus the signal's number if one ended it, else ``otherwise``."""
        return 128 + self.number if self.number and otherwise else otherwise


@contextlib.contextmanager
def ending_signals() -> Iterator[Ending]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt in the block, as Ctrl-C does, so that it cleans up.

    A signal that is ignored (nohup) or has a handler keeps it; outside the main thread nothing changes. Compiled code
    runs to its end first.
    """
    ended = Ending()
    main = threading.current_thread() is threading.main_thread()
    ours = [number for number in ENDING if main and signal.getsignal(number) is signal.SIG_DFL]
    try:
        handle(ours, ended.receive)
        yield ended
    finally:
        handle(ours, signal.SIG_DFL)


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Block SIGTERM and SIGHUP for programs that the block starts; in this process they are delivered at its end."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def handle(numbers: list[signal.Signals], handler: Callable[[int, Any], None] | signal.Handlers) -> None:
    """Set the handler of several signals."""
    for number in numbers:
        signal.signal(number, handler)
