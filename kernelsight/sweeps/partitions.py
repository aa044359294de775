"""Partitions of a sweep: scenarios of the same deployments simulated together, each saved once it is finished."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.caches.durable import draft_of, locked, reason
from kernelsight.errors import InvalidInput, KernelSightError, RunFailed, extra_missing
from kernelsight.files.bounded_values import read_json
from kernelsight.scenario.objectives import interval_columns
from kernelsight.scenario.plan import give_plan
from kernelsight.serving.costs.knots import FEW_DEPLOYMENTS
from kernelsight.serving.load.requests import LOAD_COLUMNS
from kernelsight.sweeps.percentiles import with_percentiles

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session
    from kernelsight.scenario.plan import Plan

    Connect = Callable[[], Session]

WITH_INTERVALS = ("ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "tpot_p99_ms", "output_throughput")

# most requests and deployments of a partition, whose memory grows with both
REQUESTS = 1 << 21
DEPLOYMENTS = 128
MANIFEST = "manifest.json"


class Partition(NamedTuple):
    """The unit of work of a sweep: rows of ``deployments`` and ``scenarios``, and tables to give the session."""

    deployments: list[dict[str, Any]]
    scenarios: list[dict[str, Any]]
    given: dict[str, pa.Table]
    threads: int | None = None
    lone: bool = False  # the only scenario of its sweep, whose errors are raised
    percentiles: tuple[str, ...] = ()  # columns such as ttft_p95_ms that ``scenario_summary`` lacks
    intervals: bool = False  # with 90 % intervals, for which each scenario is simulated again


def split(
    plan: Plan,
    requests: int,
    given: dict[str, pa.Table] | None = None,
    threads: int | None = None,
    percentiles: tuple[str, ...] = (),
    intervals: bool = False,
) -> list[Partition]:
    """Split a plan into partitions of at most ``requests`` requests: whole deployments, or parts of a larger one.

    Of few deployments, a partition has all, and whole loads: a load that several partitions share is drawn in each.
    """
    sizes = _sizes(plan)
    few = len({row["deployment_id"] for row in plan.planned}) <= FEW_DEPLOYMENTS
    rows: dict[Any, list[dict[str, Any]]] = {}
    for scenario in sorted(plan.planned, key=lambda row: (row["deployment_id"], row["scenario_id"])):
        shared = tuple(map(scenario.get, LOAD_COLUMNS)) if few else scenario["deployment_id"]
        rows.setdefault(shared, []).append(scenario)
    groups: list[list[dict[str, Any]]] = [[]]
    size_so_far, deployments = 0, 0
    for scenarios in rows.values():
        deployment_size = sum(sizes[row["scenario_id"]] for row in scenarios)
        if groups[-1] and (size_so_far + deployment_size > requests or (deployments == DEPLOYMENTS and not few)):
            groups.append([])
            size_so_far = deployments = 0
        deployments += 1
        for scenario in scenarios:
            size = sizes[scenario["scenario_id"]]
            if groups[-1] and size_so_far + size > requests:
                groups.append([])
                size_so_far, deployments = 0, 1
            groups[-1].append(scenario)
            size_so_far += size
    lone = len(plan.planned) == 1
    shared = (given or {}, threads, lone, percentiles, intervals)
    return [Partition(plan.deployments_of(group), group, *shared) for group in groups]


def total_requests(plan: Plan) -> int:
    """Return the number of requests of all scenarios of a plan."""
    return sum(_sizes(plan).values())


def _sizes(plan: Plan) -> dict[str, int]:
    """Return the number of requests by scenario; a trace is read once for all scenarios."""
    from kernelsight.serving.load.recorded_loads import read_trace

    traces = {path: read_trace(path).num_rows for path in {row["trace"] for row in plan.planned if row.get("trace")}}
    return {
        row["scenario_id"]: min(row.get("num_prompts", traces[row["trace"]]), traces[row["trace"]])
        if row.get("trace")
        else row["num_prompts"]
        for row in plan.planned
    }


# --- running ----------------------------------------------------------------------------------------------------------


def serve_partition(partition: Partition, session: Session) -> pa.Table:
    """Simulate a partition in a fork of a session; return its ``scenario_summary``.

    A scenario that cannot be served does not stop the others: its ``status`` says why.
    """
    with session.fork() as fork:
        fork.threads = partition.threads or session.threads
        for name, table in partition.given.items():
            fork.give(name, table)
        return _served(fork, partition.deployments, partition.scenarios, partition)


def _served(session: Session, deployments: list[dict], scenarios: list[dict], partition: Partition) -> pa.Table:
    """Simulate scenarios, bisected on an error, until the one that cannot be served has the error as its ``status``."""
    import pyarrow as pa

    try:
        with session.fork() as fork:
            give_plan(fork, deployments, scenarios)
            return _summary(fork, partition)
    except KernelSightError as error:
        if partition.lone:
            raise
        sentence = str(error).rstrip(".")
    if len(scenarios) > 1:
        middle = len(scenarios) // 2
        halves = scenarios[:middle], scenarios[middle:]
        return pa.concat_tables([_served(session, deployments, half, partition) for half in halves])
    with session.fork() as fork:
        give_plan(fork, deployments, scenarios)
        fault = {"deployment_id": scenarios[0]["deployment_id"], "fault": "load", "sentence": sentence}
        fork.give("deployment_faults", [fault])
        return _summary(fork, partition)


def _summary(session: Session, partition: Partition) -> pa.Table:
    if partition.intervals:
        session.compute("scenario_summary", "scenario_intervals")
    summary = with_percentiles(session, partition.percentiles)
    return with_intervals(session, summary) if partition.intervals else summary


def run_here(partitions: list[Partition], session: Session) -> Iterator[tuple[int, pa.Table]]:
    """Simulate partitions in turn in this process; yield the number and the summary of each."""
    for number, partition in enumerate(partitions):
        yield number, serve_partition(partition, session)


def _serve_in_worker(partition: Partition, connect: Connect) -> pa.Table:
    return serve_partition(partition, _session_of_worker(connect))


@cache
def _session_of_worker(connect: Connect) -> Session:
    """Return the session of this worker process, which reads queries and facts once for all partitions."""
    return connect()


def run_in_processes(partitions: list[Partition], workers: int, connect: Connect) -> Iterator[tuple[int, pa.Table]]:
    """Simulate partitions in worker processes; yield each as it finishes. RunFailed: a worker died."""
    from concurrent.futures import as_completed
    from concurrent.futures.process import BrokenProcessPool

    from kernelsight.dataflow.workers import work, worker_pool

    try:
        with worker_pool(min(workers, len(partitions))) as pool:
            waiting = {
                pool.submit(work, _serve_in_worker, partition, connect): number
                for number, partition in enumerate(partitions)
            }
            for future in as_completed(waiting):
                yield waiting[future], future.result()
    except BrokenProcessPool:
        raise RunFailed(
            "a worker died, possibly out of memory; use fewer --workers, and continue with --resume."
        ) from None


def run_on_ray(partitions: list[Partition], connect: Connect) -> Iterator[tuple[int, pa.Table]]:
    """Simulate partitions on a Ray cluster; yield each as it finishes.

    InvalidInput: Ray is not installed. RunFailed: it does not start, or a node of it died.
    """
    ray = import_ray()
    _of_ray(lambda: ray.init(ignore_reinit_error=True, log_to_driver=False))
    remote = ray.remote(_serve_in_worker)
    waiting = {remote.remote(partition, connect): number for number, partition in enumerate(partitions)}
    while waiting:
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


# --- keeping ----------------------------------------------------------------------------------------------------------


class Store:
    """A folder of finished partitions, with a manifest that identifies their sweep."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def locked(self) -> AbstractContextManager[None]:
        """Lock the folder against other processes; InvalidInput if another one runs this sweep."""
        return locked(self.folder)

    def open(self, facts: dict[str, Any], *, resume: bool) -> dict[str, Any]:
        """Create the folder, or continue it; return its manifest.

        ``facts``: the manifest of this sweep. InvalidInput: the folder exists without ``resume``, or belongs to another
        sweep, with the facts that differ.
        """
        path = self.folder / MANIFEST
        if not path.exists():
            if self.folder.exists() and any(not entry.name.startswith(".") for entry in self.folder.iterdir()):
                raise InvalidInput(f"{self.folder} exists, but has no manifest of a sweep; remove it.")
            self._do(lambda: self.folder.mkdir(exist_ok=True))
            self._write(path, lambda draft: draft.write_text(json.dumps(facts, indent=1), encoding="utf-8"))
            return facts
        if not resume:
            raise InvalidInput(
                f"{self.folder} has partitions of an unfinished sweep; continue it with --resume, or remove the folder."
            )
        again = f"remove {self.folder} and start again."
        try:
            manifest = read_json(path, lambda problem: InvalidInput(f"{path} {problem}; {again}"))
            names = {name for name in (*facts, *manifest) if name.endswith(("sha256", "version"))}
            differing = sorted(name for name in names if manifest.get(name) != facts.get(name))
            manifest["requests_per_partition"]
        except (KeyError, TypeError, AttributeError):
            raise InvalidInput(f"{path} is not a manifest of a sweep; {again}") from None
        if differing:
            names = ", ".join(name.removesuffix("_sha256").replace("_", " ") for name in differing)
            raise InvalidInput(f"{self.folder} belongs to a sweep with another {names}; remove it, or use another -o.")
        return manifest

    def finished(self) -> set[int]:
        """Return the numbers of the finished partitions, and remove drafts of a killed run.

        Only under ``locked``: otherwise it would remove the drafts of a running one.
        """
        for draft in self.folder.glob(".*"):
            draft.unlink()
        return {int(path.stem) for path in self.folder.glob("*.parquet")}

    def keep(self, number: int, table: pa.Table) -> None:
        """Write a finished partition, atomically and durably."""
        import pyarrow.parquet as pq

        self._write(self._path_of(number), lambda draft: pq.write_table(table, draft))

    def read(self, numbers: Iterable[int]) -> pa.Table:
        """Return the rows of several partitions, concatenated."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pa.concat_tables([pq.read_table(self._path_of(number)) for number in numbers])
        except pa.ArrowException as error:
            reason = str(error).splitlines()[0]
            raise InvalidInput(f"a partition in {self.folder} cannot be read ({reason}); remove the folder.") from None

    def remove(self) -> None:
        """Remove the partitions, the manifest last, and the folder."""
        for path in [*self.folder.glob("*.parquet"), *self.folder.glob(".*"), self.folder / MANIFEST]:
            path.unlink(missing_ok=True)
        self.folder.rmdir()

    def _path_of(self, number: int) -> Path:
        return self.folder / f"{number:06d}.parquet"

    def _write(self, path: Path, write: Callable[[Path], object]) -> None:
        def durably() -> None:
            with draft_of(path) as draft:
                write(draft)

        self._do(durably)

    def _do(self, work: Callable[[], object]) -> None:
        try:
            work()
        except OSError as error:
            raise RunFailed(
                f"{self.folder} could not be written: {reason(error)}; free space and continue with --resume."
            ) from None


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def with_intervals(session: Session, summary: pa.Table) -> pa.Table:
    """Return a summary with both ends of WITH_INTERVALS (``scenario_intervals``); null where no request was served."""
    import pyarrow as pa

    bounds_of = {
        (row["scenario_id"], row["metric"]): (row["low"], row["high"])
        for row in session.table("scenario_intervals").to_pylist()
    }
    names = summary["scenario_id"].to_pylist()
    for figure in WITH_INTERVALS:
        bounds = [bounds_of.get((name, figure), (None, None)) for name in names]
        for side, column in enumerate(interval_columns(figure)):
            summary = summary.append_column(column, pa.array([pair[side] for pair in bounds], pa.float64()))
    return summary
