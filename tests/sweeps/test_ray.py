"""Under Ray the same function serves the same partitions, each once; what needs Ray is skipped where it is missing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kernelsight.errors import RunFailed
from kernelsight.session import Session
from kernelsight.sweeps import executors
from tests.asked import sweep

from .conftest import rows_of, table_bytes


@pytest.mark.filterwarnings("ignore")  # Ray's own
@pytest.mark.whole
def test_the_same_bytes_under_ray(session: Session) -> None:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    rows = rows_of(tp=[1, 2, 3], max_concurrency=[1, 4])
    try:
        found = sweep(session, rows, executor="ray", partition_requests=48)
    finally:
        ray.shutdown()
    assert table_bytes(found) == table_bytes(sweep(session, rows))


class FakeRay(SimpleNamespace):
    """Tasks of Ray that end in the opposite order; ``most``: of how many at once the last ones were."""

    most, puts = 0, 0

    def init(self, **_: Any) -> None: ...

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def put(self, value: Any) -> Any:
        self.puts += 1
        return value

    def remote(self, **_: Any) -> Callable[[Callable[..., Any]], SimpleNamespace]:
        return lambda function: SimpleNamespace(remote=lambda *words: (function, words))

    def wait(self, tasks: list[tuple], num_returns: int) -> tuple[list[tuple], list[tuple]]:
        self.most = max(self.most, len(tasks))
        return tasks[-num_returns:], tasks[:-num_returns]

    def get(self, task: tuple) -> Any:
        function, words = task
        return function(*words)


WORK = executors.Work(lambda part, session: f"{part} served", lambda: None)


@pytest.mark.parametrize("call", ["init", "put", "wait", "get"])
def test_what_fails_of_ray_is_one_sentence(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("The node died.\nCheck raylet.out.")

    monkeypatch.setattr(executors, "import_ray", lambda: FakeRay(**{call: fail}))
    with pytest.raises(RunFailed, match=r"Ray failed \(OSError: The node died\); start or reach it, and continue with"):
        list(executors.run_on_ray(["a"], WORK))


def test_few_tasks_are_submitted_at_once_and_each_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What all share is put once, not sent with each task."""
    ray = FakeRay()
    monkeypatch.setattr(executors, "import_ray", lambda: ray)
    served = list(executors.run_on_ray([*"abcdefg"], WORK))
    assert sorted(served) == [(number, f"{part} served") for number, part in enumerate("abcdefg")]
    assert served[0] == (3, "d served") and (ray.most, ray.puts) == (2 * executors.AHEAD, 1)
