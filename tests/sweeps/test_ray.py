"""Under Ray the same function serves the same partitions, each once; what needs Ray is skipped where it is missing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kernelsight.errors import RunFailed
from kernelsight.session import Session
from kernelsight.sweeps import partitions
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
    """Tasks of Ray that end in the opposite order."""

    def init(self, **_: Any) -> None: ...

    def remote(self, function: Callable[..., Any]) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda *words: (function, words))

    def wait(self, tasks: list[tuple], num_returns: int) -> tuple[list[tuple], list[tuple]]:
        return tasks[-num_returns:], tasks[:-num_returns]

    def get(self, task: tuple) -> Any:
        function, words = task
        return function(*words)


@pytest.mark.parametrize("call", ["init", "wait", "get"])
def test_what_fails_of_ray_is_one_sentence(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("The node died.\nCheck raylet.out.")

    monkeypatch.setattr(partitions, "import_ray", lambda: FakeRay(**{call: fail}))
    monkeypatch.setattr(partitions, "_serve_in_worker", lambda part, connect: part)
    with pytest.raises(RunFailed, match=r"Ray failed \(OSError: The node died\); start or reach it, and continue with"):
        list(partitions.run_on_ray(["a"], None))


def test_each_task_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "import_ray", FakeRay)
    monkeypatch.setattr(partitions, "_serve_in_worker", lambda part, connect: f"{part} served")
    served = partitions.run_on_ray(["a", "b", "c"], None)
    assert list(itertools.islice(served, 4)) == [(2, "c served"), (1, "b served"), (0, "a served")]
