"""Deployments of a sweep that launch the same kernels are lowered once, and equal calls priced once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kernelsight.scenario.plan import give_plan
from kernelsight.session import connect
from kernelsight.sweeps.knot_costs import distinct_rows, knot_costs
from kernelsight.sweeps.step_costs import put_step_costs
from kernelsight.sweeps.summarise import draw_loads

from .conftest import LOAD

BASE = {"model": "llama-3.1-8b", "gpu": "h100_sxm", "max_num_seqs": 64, "max_num_batched_tokens": 2048}


ATTENTION = ["decode_attention", "prefill_attention"]


def shared(rows: list[dict]) -> list[int]:
    """Return whose costs are the same arrays: equal numbers, in no order."""
    with connect() as session:
        give_plan(session, [{**BASE, **row, **LOAD, "max_concurrency": 4} for row in rows])
        scenarios = session.table("scenarios")
        put_step_costs(session, scenarios, draw_loads(scenarios))
        costs = knot_costs(session)
        assert sorted(costs) == sorted(session.table("deployments")["deployment_id"].to_pylist())
    # the same arrays, not equal ones: of one group, on one GPU
    return [id(one.launches) for one in costs.values()]


@pytest.mark.parametrize(
    ("other", "kinds"),
    [
        ({"gpu_memory_utilization": 0.8}, 1),  # changes no kernel
        ({"gpu": "h200_sxm"}, 2),  # the same kernels, at another price
        ({"tensor_parallel_size": 2}, 2),
        ({"tier": "roofline"}, 2),
    ],
)
def test_deployments_that_cost_the_same_share_their_costs(other: dict, kinds: int):
    assert len(set(shared([{}, other]))) == kinds


def test_given_calls_are_read_as_they_are():
    with connect() as session:
        give_plan(session, [{**BASE, **LOAD, "max_concurrency": 4}])
        scenarios = session.table("scenarios")
        calls, own = session.table("gemm_calls"), session.table("step_costs")
        thrice = pa.array(3 * calls["count"].to_numpy())
        with session.fork() as fork:
            fork.give("gemm_calls", calls.set_column(calls.column_names.index("count"), "count", thrice))
            put_step_costs(fork, scenarios, draw_loads(scenarios))
            given = fork.table("step_costs")
        given, own = (table.sort_by("step_shape_id") for table in (given, own))
        largest = pc.max_element_wise(given["gpu_us"], own["gpu_us"])
        grown = pc.greater(given["gpu_us"], pc.multiply(own["gpu_us"], 1.5))
        assert largest.equals(given["gpu_us"])
        assert pc.all(pc.or_(grown, pc.is_in(own["part"], pa.array(ATTENTION)))).as_py()


def test_distinct_rows_are_those_of_a_sort():
    random = np.random.default_rng(0)
    columns = [random.integers(0, 4, 500).astype(float) for _ in range(4)]
    kept, number = distinct_rows(columns)
    rows = np.stack(columns, axis=1)
    assert np.array_equal(rows[kept][number], rows)
    assert kept.size == np.unique(rows, axis=0).shape[0]
    assert np.array_equal(kept, np.sort(kept)) and np.array_equal(np.unique(number), np.arange(kept.size))
