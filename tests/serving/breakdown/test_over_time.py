"""Kernels of steps and of windows: both sums are kept, and what one step shows is what the kernel model says of it."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsight.serving.breakdown import step_kernels
from kernelsight.serving.breakdown.step_kernels import spread, widest_windows
from kernelsight.session import Session
from kernelsight.sweeps.runs import WhatIf
from tests.present.conftest import KINDS, SMALL

KEY = ("scenario_id", "phase", "family", "name")


def totals(table: pa.Table, column: str) -> dict[tuple, float]:
    found: dict[tuple, float] = defaultdict(float)
    for row in table.to_pylist():
        found[tuple(row[name] for name in KEY)] += row[column]
    return found


@pytest.fixture(scope="module")
def kinds(session: Session) -> WhatIf:
    """Runs of every kind, served together."""
    return session.what_if([SMALL | flags for flags in KINDS.values()])


def test_windows_add_up_to_the_breakdown(kinds: WhatIf) -> None:
    over_time, whole = kinds.table("kernel_breakdown_over_time"), kinds.table("kernel_breakdown")
    for column in ("total_us", "calls"):
        wanted = totals(whole, column)
        assert totals(over_time, column) == pytest.approx(wanted, rel=1e-6, abs=1e-4), column
    rows, most = (Counter(table["scenario_id"].to_pylist()) for table in (whole, over_time))
    assert len(rows) == len(KINDS) and all(most[name] > count for name, count in rows.items())


@pytest.mark.parametrize("flags", [{}, {"enforce_eager": True}, {"model": "deepseek-v3", "gpu": "h200_sxm", "tp": 8}])
def test_what_steps_show_is_near_the_totals_before_it_is_fitted_to_them(
    flags: dict[str, object], session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {("tensor_parallel_size" if name == "tp" else name): value for name, value in flags.items()}
    run = session.simulate(**(SMALL | {"num_prompts": 100} | flags))
    monkeypatch.setattr(step_kernels, "spread", lambda weights, rows, columns: weights)
    found, wanted = (
        totals(run.table("kernel_breakdown_over_time"), "total_us"),
        totals(run.table("kernel_breakdown"), "total_us"),
    )
    attention = [key for key in wanted if key[2] in ("prefill_attention", "decode_attention")]
    linear = [key for key in wanted if key[2] in ("norm", "activation", "moe", "rope", "all_reduce")]
    assert {key: found[key] for key in linear} == pytest.approx({key: wanted[key] for key in linear}, rel=1e-3)
    assert {key: found[key] for key in attention} == pytest.approx({key: wanted[key] for key in attention}, rel=0.05)


def test_windows_are_those_of_the_engine(session: Session) -> None:
    run = session.simulate(**SMALL)
    found = run.sql("""
        select count(*) as windows, max(abs(parts.busy_us - (windows.busy_us - host.us))) as off
        from (select "window", sum(total_us) as busy_us from kernel_breakdown_over_time group by all) as parts
        join serving_windows as windows using ("window")
        join (
          select "window", sum(host_ns / 1e3 * greatest(least(w.end_ns, s.end_ns) - greatest(w.start_ns, s.start_ns), 0)
            / (s.end_ns - s.start_ns)) as us
          from serving_windows as w, steps as s where s.start_ns < w.end_ns and s.end_ns > w.start_ns group by all
        ) as host using ("window")
    """).fetchall()[0]
    assert found[0] > 20 and found[1] < 1.0
    edges = run.sql("""
        select count(*) from kernel_breakdown_over_time as mine
        left join serving_windows as theirs using (scenario_id, "window")
        where abs(mine.start_s - theirs.start_ns / 1e9) > 1e-9 or abs(mine.end_s - theirs.end_ns / 1e9) > 1e-9
          or theirs.start_ns is null
    """).fetchall()
    assert edges == [(0,)]


def test_a_prompt_alone_in_a_step_has_the_kernels_that_predict_shows(session: Session) -> None:
    flags = {"model": "qwen3-0.6b", "gpu": "l4"}
    run = session.simulate(**flags, max_concurrency=1, num_prompts=4, input_len=512, output_len=1)
    predicted = session.predict(**flags, phase="prefill", batch_size=1, input_len=512)
    wanted: dict[str, float] = defaultdict(float)
    for row in predicted.kernels.to_pylist():
        wanted[row["name"]] += 4 * row["count"] * row["latency_us"]
    found: dict[str, float] = defaultdict(float)
    for row in run.table("kernel_breakdown_over_time").to_pylist():
        found[row["name"]] += row["total_us"]
    shared = set(found) & set(wanted)
    assert {"qkv_proj", "gate_up_proj", "prefill_attention", "lm_head"} <= shared
    assert {name: found[name] for name in shared} == pytest.approx({name: wanted[name] for name in shared}, rel=0.01)


def test_replicas_with_windows_of_two_widths_have_the_wider_ones() -> None:
    narrow = [("s", 0, i, 10 * i, 10 * i + 10) for i in range(3)]
    wide = [("s", 1, i, 20 * i, min(20 * i + 20, 90)) for i in range(5)]
    names = ("scenario_id", "replica", "window", "start_ns", "end_ns")
    table = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in narrow + wide])
    assert widest_windows(table, "s").tolist() == [0, 20, 40, 60, 80, 90]


@given(
    steps=st.lists(st.floats(0.1, 100.0), min_size=1, max_size=20),
    kernels=st.lists(st.floats(0.0, 100.0), min_size=1, max_size=6),
    seed=st.integers(0, 100),
)
def test_spreading_keeps_both_sums(steps: list[float], kernels: list[float], seed: int) -> None:
    # of weights that differ by more, the rounds are too few: such rows are met within some percent
    weights = 0.02 + np.random.default_rng(seed).random((len(steps), len(kernels))) ** 4
    columns = np.array(kernels)
    rows = np.array(steps) / sum(steps) * columns.sum()
    found = spread(weights, rows, columns)
    assert found.min() >= 0.0
    assert found.sum(axis=0) == pytest.approx(columns, rel=1e-6, abs=1e-9)
    # rows are met as far as the last round brings them
    assert found.sum(axis=1) == pytest.approx(rows, rel=5e-4, abs=1e-9)
