# pyright: strict
"""Every public name, used as README and docs/ use it: read by a type checker in test_types.py, not run."""

from typing import Any, assert_type

import duckdb
import pyarrow as pa

import kernelsight as ks

LOAD: dict[str, Any] = {"max_concurrency": 4, "num_prompts": 8, "input_len": 64, "output_len": 8}


def session() -> None:
    with ks.connect() as s:
        assert_type(s, ks.Session)
        s.give("mine", [{"gpu": "l4", "price": 0.8}])
        s.extend("gpus", s.table("gpus"))
        assert_type(s.table("gpus"), pa.Table)
        assert_type(s.query("select * from mine"), pa.Table)
        assert_type(s.sql("select * from mine"), duckdb.DuckDBPyRelation)
        assert_type(s.explain("kernel_calls"), str)
        assert_type(s.tables(), pa.Table)
        assert_type(s.columns("gpus"), pa.Table)
        s.compute("gpus", "fabrics")
        s.save("facts.duckdb", ["gpus"])
        assert_type(s.fork(), ks.Session)
        assert_type(s.predict(model="qwen3-0.6b", gpu="l4", phase="decode", context_len=1024), ks.Prediction)
        assert_type(s.simulate(model="qwen3-0.6b", gpu="l4", **LOAD), ks.Run)
        assert_type(s.what_if([{"model": "qwen3-0.6b", "gpu": "l4", **LOAD}]), ks.WhatIf)
        assert_type(s.sweep({"gpu": ["l4", "h100_sxm"]}, slo={"ttft_p99_ms": 500.0}, folder="parts"), ks.WhatIf)
        assert_type(s.find_rates([{"gpu": "l4"}], {"ttft_p99_ms": 500.0}), pa.Table)
    with ks.connect("run.duckdb", read_only=True, files=False) as saved:
        assert_type(saved.table("request_metrics"), pa.Table)


def step() -> None:
    found = ks.predict(model="qwen3-0.6b", gpu="l4", phase="mixed", batch_size=8, input_len=256, context_len=1024)
    assert_type(found, ks.Prediction)
    assert_type((found.p05_us, found.total_us, found.p95_us), tuple[float, float, float])
    assert_type(found.kernels, pa.Table)
    assert_type(found.assumed, list[str])
    assert_type(found.as_dict(), dict[str, Any])


def run() -> None:
    found = ks.simulate(model="qwen3-0.6b", gpu="l4", **LOAD)
    assert_type(found, ks.Run)
    assert_type(found.summary, dict[str, Any])
    assert_type(found.table("request_metrics"), pa.Table)
    assert_type(found.sql("select * from kernel_breakdown"), duckdb.DuckDBPyRelation)
    assert_type(found.session.table("kernel_calls"), pa.Table)
    found.save("run.duckdb", steps=True)
    found.close()


def many() -> None:
    grid = {"model": "qwen3-0.6b", "gpu": ["l4", "h100_sxm"], **LOAD}
    for found in (ks.what_if(grid), ks.sweep(grid, slo={"ttft_p99_ms": 500.0}, workers=2)):
        assert_type(found, ks.WhatIf)
        assert_type(found.summary, pa.Table)
        assert_type(found.table("scenario_summary"), pa.Table)
        assert_type(found.table("request_metrics", found.scenarios[0]), pa.Table)
        assert_type(found.scenario(found.scenarios[0]), ks.Run)
        assert_type(found.pareto_front, pa.Table)
        assert_type(found.sql("select * from sweep"), duckdb.DuckDBPyRelation)
        assert_type(len(found), int)
        found.save("sweep.duckdb")
    assert_type(ks.find_rates([grid], {"ttft_p99_ms": 500.0}, tolerance=0.05), pa.Table)


def refused() -> str:
    try:
        ks.connect().table("no_such_table")
    except ks.KernelSightError as error:
        assert_type(error.exit_code, int)
        return f"{error}, version {ks.__version__}"
    return ""
