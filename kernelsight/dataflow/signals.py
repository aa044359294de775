"""Signals that end a command: what schedulers and closed terminals send does what Ctrl-C does."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
# one that follows this soon is the same wish: a terminal that closes may send both
REPEAT_S = 2.0


class Ending:
    """The last signal that was to end a command; ``number`` is 0 before the first."""

    number = 0
    _at = -REPEAT_S

    def receive(self, number: int, _: Any) -> None:
        """Raise KeyboardInterrupt; not again at once, where it would stop the removal of drafts and locks."""
        now = time.monotonic()
        if now - self._at >= REPEAT_S:
            self.number, self._at = number, now
            raise KeyboardInterrupt

    def status(self, otherwise: int) -> int:
        """Return the exit status of a command: 128 and the signal's number if it was ended by one."""
        return 128 + self.number if self.number and otherwise else otherwise


@contextlib.contextmanager
def ending_signals() -> Iterator[Ending]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt in the block, as Ctrl-C does, so that it cleans up.

    A signal that is ignored (nohup) or has a handler stays so, as do all outside the main thread. Compiled code runs to
    its end first.

    >>> with ending_signals() as ended:
    ...     try:
    ...         signal.raise_signal(signal.SIGTERM)
    ...     except KeyboardInterrupt:
    ...         print(ended.status(1))
    143
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
    """Keep SIGTERM and SIGHUP from programs that the block starts; here they take effect when it ends."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def handle(numbers: list[signal.Signals], handler: Callable[[int, Any], None] | signal.Handlers) -> None:
    """Set the handler of some signals."""
    for number in numbers:
        signal.signal(number, handler)
