"""Under Ray the same function serves the same partitions; skipped where Ray is not installed."""

from __future__ import annotations

import pytest

from kernelsight.session import Session
from tests.asked import sweep

from .conftest import rows_of, table_bytes


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_the_same_bytes_under_ray(session: Session) -> None:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    rows = rows_of(tp=[1, 2, 3], max_concurrency=[1, 4])
    try:
        found = sweep(session, rows, executor="ray", partition_requests=48)
    finally:
        ray.shutdown()
    assert table_bytes(found) == table_bytes(sweep(session, rows))
