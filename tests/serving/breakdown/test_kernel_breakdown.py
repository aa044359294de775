"""Kernels of knots weighted by their uses, against the same sums in DuckDB's 128-bit integers."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from kernelsight.serving.breakdown import kernel_breakdown
from kernelsight.serving.breakdown.kernel_breakdown import breakdown_of

EXACT = """
with factors as (
  select l.*, case when c.factor is null then 1 when family = 'moe' then moe_factor
    when family = 'all_reduce' then communication_factor else factor end as correction,
    tp * (energy_j * 1e6 + (correction - 1) * latency_us * (idle_w + active_w)) as energy
  from latencies l join settings using (deployment_id) join power using (gpu)
  left join corrections c using (deployment_id, step_shape_id)
),
spent as (
  select scenario_id, phase, family, name, bound,
    sum(round(weight * count * 1e6)::hugeint) as calls,
    sum(round(weight * count * latency_us * 1e6 * correction)::hugeint) as total,
    case when bool_and(energy is not null) then sum(round(weight * count * energy)::hugeint) end as energy
  from uses join factors using (deployment_id, step_shape_id) group by all
),
named as (
  select scenario_id, phase, family, name, sum(calls) as calls, sum(total) as total,
    arg_max(bound, (total, bound)) as bound, case when bool_and(energy is not null) then sum(energy) end as energy
  from spent group by all
)
select scenario_id, phase, family, name, calls / 1e6 as calls, total / 1e6 as total_us,
  total / sum(total) over (partition by scenario_id) as share, bound, energy / 1e6 * held_share as energy_j
from named left join energies using (scenario_id) order by scenario_id, phase, total_us desc, name
"""
FAMILIES = ("gemm", "moe", "norm", "all_reduce")


def drawn(seed: int, scale: float) -> dict[str, pa.Table]:
    """Uses and kernels of two deployments at 6 knots each; ``scale``: of the weights."""
    rng = np.random.default_rng(seed)

    def some(words: tuple[str, ...], size: int) -> list[str]:
        return [words[number] for number in rng.integers(0, len(words), size)]

    kernels = [(d, knot, n) for d in "pq" for knot in range(6) for n in range(5)]
    bare = rng.random(len(kernels)) < 0.1
    latencies = {
        "deployment_id": [d for d, _, _ in kernels],
        "step_shape_id": [knot for _, knot, _ in kernels],
        "family": [FAMILIES[n % 4] for _, _, n in kernels],
        "name": [f"kernel {n}" for _, _, n in kernels],
        "bound": some(("compute", "memory"), len(kernels)),
        "count": rng.integers(1, 90, len(kernels)),
        "latency_us": rng.uniform(1.0, 1e3, len(kernels)),
        "energy_j": pa.array(rng.uniform(0.0, 1.0, len(kernels)), mask=bare),
    }
    uses = {
        "scenario_id": some(("a", "b", "c"), 80),
        "phase": some(("decode", "mixed"), 80),
        "deployment_id": some(("p", "q", "unknown"), 80),
        "step_shape_id": rng.integers(0, 7, 80),
        "weight": rng.uniform(0.0, scale, 80),
    }
    corrections = {"deployment_id": ["p", "p"], "step_shape_id": [2, 0]}
    corrections |= {name: rng.uniform(0.5, 2.0, 2) for name in ("factor", "moe_factor", "communication_factor")}
    tables = {
        "uses": uses,
        "latencies": latencies,
        "settings": {"deployment_id": ["p", "q"], "gpu": ["h", "l"], "tp": [1, 4]},
        "power": {"gpu": ["h", "l"], "idle_w": [70.0, 30.0], "active_w": [100.0, 9.0]},
        "corrections": corrections,
        "energies": {"scenario_id": ["a", "b"], "held_share": [0.9, 1.0]},
    }
    return {name: pa.table(columns) for name, columns in tables.items()}


# weights of the second bring about sums far beyond 2^53 picoseconds
@pytest.mark.parametrize(("seed", "scale"), [(1, 1e3), (2, 1e5)])
def test_sums_are_exact_whatever_the_order_and_the_blocks(monkeypatch, seed, scale):
    tables = drawn(seed, scale)
    with duckdb.connect() as database:
        for name, table in tables.items():
            database.register(name, table)
        expected = database.sql(EXACT).to_arrow_table()
    found = breakdown_of(*tables.values())
    assert found.num_rows > 10 and found.equals(expected.cast(found.schema))
    monkeypatch.setattr(kernel_breakdown, "BLOCK", 7)
    order = pa.array(np.random.default_rng(seed).permutation(tables["uses"].num_rows))
    shuffled = tables | {"uses": tables["uses"].take(order)}
    assert breakdown_of(*shuffled.values()).equals(found)


def test_nothing_used_is_no_row():
    tables = drawn(3, 1.0)
    none = {name: table.slice(0, 0) for name, table in tables.items()}
    assert breakdown_of(*none.values()).num_rows == 0
    assert breakdown_of(*(tables | {"uses": none["uses"]}).values()).schema == breakdown_of(*tables.values()).schema
