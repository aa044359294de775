"""A pool of worker processes that end with their parent process, and stop at once when its work is interrupted."""

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
    """Yield a pool of ``count`` processes, each of which calls ``begin(*words)`` first; run tasks by :func:`work`.

    Where the block is left by an error, such as Ctrl-C, running tasks are stopped instead of waited for.
    """
    # compiled code and threads do not survive a fork: spawn
    spawn = multiprocessing.get_context("spawn")
    with blocked():  # a closed terminal would end multiprocessing's own process before ours have cleaned up
        resource_tracker.ensure_running()
    # closing the pool's end stops the workers: an Event would wait for those that have died
    worker_end, pool_end = spawn.Pipe(duplex=False)
    pool = ProcessPoolExecutor(count, mp_context=spawn, initializer=_begin, initargs=(worker_end, begin, words))
    try:
        yield pool
    except BaseException:
        pool_end.close()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        pool_end.close()
        worker_end.close()


def work(task: Callable[..., Result], *words: Any) -> Result:
    """Call a task in a worker; a signal raises in it, so that it removes its drafts, and then ends the process."""
    global _working
    _working = True
    try:
        return task(*words)
    except KeyboardInterrupt:
        os._exit(1)
    finally:
        _working = False


def _begin(worker_end: Connection, begin: Callable[..., None] | None, words: tuple[Any, ...]) -> None:
    usual = (signal.SIG_DFL, signal.default_int_handler)
    handle([number for number in (*ENDING, signal.SIGINT) if signal.getsignal(number) in usual], _end)
    threading.Thread(target=_end_with_pool, args=(worker_end,), daemon=True).start()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if begin:
        begin(*words)


def _end(number: int, _: Any) -> None:
    """Handle a signal in a worker: raise through the running task, or exit at once without one."""
    if _working:
        raise KeyboardInterrupt
    os._exit(128 + number)


def _end_with_pool(worker_end: Connection) -> None:
    """End this process once its pool is closed; a signal to the main thread also ends its wait for a task."""
    with contextlib.suppress(EOFError, OSError):
        worker_end.recv_bytes()
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
    else:
        os._exit(1)


def _end_with_parent() -> None:
    """End this process when its parent is killed; otherwise it would wait for tasks for ever."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)
