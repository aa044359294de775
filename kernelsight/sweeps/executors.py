"""Runs the tasks of a sweep in this process, in worker processes, or on Ray: few at a time, each result once.

What all tasks share, such as given tables, is sent once to each worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.errors import KernelSightError, RunFailed, extra_missing

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

    # of a task and a session
    Serve = Callable[[Any, Session], Any]

# tasks that are submitted for each worker: the next one is there when one ends
AHEAD = 2
# times that Ray runs a task again whose worker or machine died
RETRIES = 10


class Work(NamedTuple):
    """What all tasks of a sweep share: ``serve`` computes one; ``connect`` opens the session of a worker."""

    serve: Serve
    connect: Callable[[], Session] | None


def run_here(tasks: Sequence[Any], work: Work, session: Session) -> Iterator[tuple[int, Any]]:
    """Run tasks in turn in this process; yield the number and the result of each."""
    for number, task in enumerate(tasks):
        yield number, work.serve(task, session)


@cache
def _session_of_worker(connect: Callable[[], Session]) -> Session:
    """Return the session of this worker process, which reads queries and facts once for all tasks."""
    return connect()


_work: Work | None = None  # of a worker process


def _begin(work: Work) -> None:
    global _work
    _work = work


def _serve_in_process(task: Any) -> Any:
    assert _work is not None
    return _work.serve(task, _session_of_worker(_work.connect))


def _serve_on_ray(task: Any, work: Work) -> Any:
    return work.serve(task, _session_of_worker(work.connect))


def run_in_processes(tasks: Sequence[Any], work: Work, workers: int) -> Iterator[tuple[int, Any]]:
    """Run tasks in worker processes; yield each result as it is there. RunFailed: a worker died."""
    from concurrent.futures import FIRST_COMPLETED, wait
    from concurrent.futures.process import BrokenProcessPool

    from kernelsight.dataflow.workers import work as in_worker
    from kernelsight.dataflow.workers import worker_pool

    workers, waiting, ahead = min(workers, len(tasks)), {}, iter(enumerate(tasks))
    try:
        with worker_pool(workers, _begin, work) as pool:
            while True:
                for number, task in _next(ahead, AHEAD * workers - len(waiting)):
                    waiting[pool.submit(in_worker, _serve_in_process, task)] = number
                if not waiting:
                    return
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(future), future.result()
    except BrokenProcessPool:
        raise RunFailed(
            "a worker died, possibly out of memory; use fewer --workers, and continue with --resume."
        ) from None


def _next(tasks: Iterator[tuple[int, Any]], count: int) -> Iterator[tuple[int, Any]]:
    """Yield at most ``count`` of the tasks that are left."""
    for _, task in zip(range(count), tasks, strict=False):
        yield task


def run_on_ray(tasks: Sequence[Any], work: Work) -> Iterator[tuple[int, Any]]:
    """Run tasks on a Ray cluster; yield each result as it is there. A task whose machine dies is run on another one.

    InvalidInput: Ray is not installed. RunFailed: it does not start, or died.
    """
    import logging

    ray = import_ray()
    _of_ray(lambda: ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR))
    shared = _of_ray(lambda: ray.put(work))
    remote = ray.remote(max_retries=RETRIES)(_serve_on_ray)
    waiting, ahead = {}, iter(enumerate(tasks))
    while True:
        processors = int(_of_ray(ray.cluster_resources).get("CPU", 1))
        for number, task in _next(ahead, AHEAD * processors - len(waiting)):
            waiting[_of_ray(lambda task=task: remote.remote(task, shared))] = number
        if not waiting:
            return
        (done,), _ = _of_ray(lambda: ray.wait(list(waiting), num_returns=1))
        yield waiting.pop(done), _of_ray(lambda done=done: ray.get(done))


def _of_ray(call: Callable[[], Any]) -> Any:
    """Return what a call of Ray returns; RunFailed: Ray failed, and not the work."""
    try:
        return call()
    except KernelSightError:
        raise
    except Exception as error:
        why = next(iter(str(error).splitlines()), "")[:200].rstrip(".")
        words = "start or reach it, and continue with --resume, or use --executor local"
        raise RunFailed(f"Ray failed ({type(error).__name__}: {why}); {words}.") from None


def import_ray() -> Any:
    """Import Ray; InvalidInput where it is not installed."""
    try:
        import ray
    except ImportError:
        raise extra_missing("--executor ray", "Ray", "ray", "use --executor local") from None
    return ray
