"""Worker processes that end with the process that started them, and with its work where that is stopped."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from kernelsight.dataflow.signals import ENDING, blocked, handle

Result = TypeVar("Result")
_working = False


@contextlib.contextmanager
def worker_pool(count: int, begin: Callable[..., None] | None = None, *words: Any) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of processes that call ``begin`` first; its tasks are calls of :func:`work`.

    Where the block is left by an error, such as Ctrl-C, running tasks are stopped instead of waited for.
    """
    # compiled code and threads do not survive a fork: spawn
    spawn = multiprocessing.get_context("spawn")
    with blocked():  # a closed terminal would end multiprocessing's own process before ours have cleaned up
        resource_tracker.ensure_running()
    # its end is seen by the workers: an Event would wait for those that have died
    seen, held = spawn.Pipe(duplex=False)
    pool = ProcessPoolExecutor(count, mp_context=spawn, initializer=_begin, initargs=(seen, begin, words))
    try:
        yield pool
    except BaseException:
        held.close()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        held.close()
        seen.close()


def work(task: Callable[..., Result], *words: Any) -> Result:
    """Call a task in a worker; a signal ends it there, so that it removes its drafts, and the process with it."""
    global _working
    _working = True
    try:
        return task(*words)
    except KeyboardInterrupt:
        os._exit(1)
    finally:
        _working = False


def _begin(seen: Connection, begin: Callable[..., None] | None, words: tuple[Any, ...]) -> None:
    usual = (signal.SIG_DFL, signal.default_int_handler)
    handle([number for number in (*ENDING, signal.SIGINT) if signal.getsignal(number) in usual], _end)
    threading.Thread(target=_end_with_pool, args=(seen,), daemon=True).start()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if begin:
        begin(*words)


def _end(number: int, _: Any) -> None:
    """End a worker: by an exception through its task, at once where it waits for one."""
    if _working:
        raise KeyboardInterrupt
    os._exit(128 + number)


def _end_with_pool(seen: Connection) -> None:
    """End this process once its pool is stopped; a signal to the main thread also ends its waiting for a task."""
    with contextlib.suppress(EOFError, OSError):
        seen.recv_bytes()
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
    else:
        os._exit(1)


def _end_with_parent() -> None:
    """End this process when the one that waits for it is killed; else it would wait for work for ever."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)
