"""A pool of worker processes that end with their parent process, and stop at once when its work is interrupted.

Results pass through files: a worker that ends halfway through a long message leaves its reader waiting for the rest,
for ever, and only what a pipe takes at once is never cut.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kernelsight.caches.durable import reason
from kernelsight.dataflow.signals import ENDING, blocked, handle
from kernelsight.errors import RunFailed
from kernelsight.files.own import own_bytes

# after which a signal that ended neither the task nor the process is sent again: what cleans up has this long
AGAIN_S = 5.0
_working = False
_folder = Path()  # of the results of a worker's pool


@contextlib.contextmanager
def worker_pool(count: int, begin: Callable[..., None] | None = None, *words: Any) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of ``count`` processes, each of which calls ``begin(*words)`` first; run tasks by :func:`work`.

    Where the block is left, running tasks are stopped: after an error, such as Ctrl-C, none is waited for.
    """
    # compiled code and threads do not survive a fork: spawn
    spawn = multiprocessing.get_context("spawn")
    with blocked():  # a closed terminal would end multiprocessing's own process before ours have cleaned up
        resource_tracker.ensure_running()
    # closing the pool's end stops the workers: an Event would wait for those that have died
    worker_end, pool_end = spawn.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="kernelsight-", ignore_cleanup_errors=True) as folder:
        begun = (worker_end, folder, begin, words)
        pool = ProcessPoolExecutor(count, mp_context=spawn, initializer=_begin, initargs=begun)
        try:
            yield pool
        finally:
            # also ends a worker that waits for the lock of the queue of tasks, which one that was killed still holds
            pool_end.close()
            pool.shutdown(wait=True, cancel_futures=True)
            worker_end.close()


@dataclass(frozen=True)
class Kept:
    """A result in a file; the process that receives it has the result itself, and the file is gone."""

    path: str

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self.path,)


def _received(path: str) -> Any:
    content = own_bytes(path)
    os.unlink(path)
    return pickle.loads(content)


def work(task: Callable[..., Any], *words: Any) -> Kept:
    """Call a task in a worker; the pool's process receives its result. RunFailed: the result could not be written.

    A signal raises in the task, so that it removes its drafts, and then ends the process.
    """
    global _working
    _working = True
    try:
        return _kept(task(*words))
    except KeyboardInterrupt:
        os._exit(1)
    finally:
        _working = False


def _kept(result: Any) -> Kept:
    content = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
    try:
        number, path = tempfile.mkstemp(dir=_folder)
        with os.fdopen(number, "wb") as file:
            file.write(content)
    except OSError as error:
        raise RunFailed(f"{_folder} could not be written: {reason(error)}; free space, or set TMPDIR.") from None
    return Kept(path)


def _begin(worker_end: Connection, folder: str, begin: Callable[..., None] | None, words: tuple[Any, ...]) -> None:
    global _folder
    _folder = Path(folder)
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
    while hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
        time.sleep(AGAIN_S)  # an exception may be lost: one in a destructor is
    os._exit(1)


def _end_with_parent() -> None:
    """End this process when its parent is killed; otherwise it would wait for tasks for ever."""
    if parent := multiprocessing.parent_process():
        parent.join()
        shutil.rmtree(_folder, ignore_errors=True)
        os._exit(1)
