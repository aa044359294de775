"""The numbered invariants of serving: on random small worlds of the loop, and on tables of a session.

INV-1 to INV-5 and INV-8 read what the loop gives back and know nothing of how it works; INV-6, INV-7, INV-9 and INV-10
ask a session, from deployments and scenarios to events, breakdown and kernel latencies.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given

from kernelsight.serving.engine import records
from kernelsight.serving.engine.inputs import together_until
from kernelsight.serving.engine.limits import Limits
from kernelsight.serving.engine.served import Served
from kernelsight.session import Session, connect
from tests.conftest import random_worlds
from tests.serving.engine.worlds import (
    World,
    caching_worlds,
    load_with_last,
    policy_worlds,
    run_loop,
    run_reference,
    worlds,
)

START, END, PROMPT, DECODE, RUNNING, WAITING, UNITS = range(7)
SLACK_US = 1e-6


def finished(served: Served) -> np.ndarray:
    return served.out.status == records.FINISHED


def visible_us(world: World, served: Served) -> np.ndarray:
    """When the engine may see each request; infinite for those that it never serves."""
    load, host, sent = world.load, world.host, served.out.sent_us
    until = together_until(load.arrival_us, load.warmups, load.max_concurrency, load.user_us)
    found, busy_us, latest_us = np.full(sent.size, np.inf), -np.inf, -np.inf
    alone_us = sent + host.request_us + host.per_prompt_token_us * load.prompt_tokens
    for r in np.argsort(sent, kind="stable"):
        if finished(served)[r]:
            busy_us = max(sent[r], busy_us) + host.serial_us + host.serial_token_us * load.prompt_tokens[r]
            others = max(until - 1 - r, 0) if r >= load.warmups else 0
            latest_us = found[r] = max(alone_us[r], busy_us + others * host.serial_us, latest_us)
    return found


def units_of(tokens: int, limits: Limits) -> int:
    """KV units of a request with this many cached tokens."""
    blocks = -(-tokens // limits.block_size)
    full, windows = limits.full_units * blocks, limits.window_units * min(blocks, limits.window_blocks)
    return (max(full, windows) if limits.windows_apart else full + windows) + limits.sequence_units


# ---------------------------------------------------------------- one replica


@random_worlds(120)
@given(world=worlds() | caching_worlds() | policy_worlds())
def test_inv_1_inv_3_and_inv_5_hold_in_every_world(world: World) -> None:
    served = run_loop(world)
    every_request_ends_once_or_is_rejected_with_a_reason(world, served)
    clocks_never_run_backwards(world, served)
    budget_and_caps_hold_at_every_step(world, served)


def every_request_ends_once_or_is_rejected_with_a_reason(world: World, served: Served) -> None:
    """Assert INV-1."""
    out, load, limits = served.out, world.load, world.limits
    whole = load.prompt_tokens + load.output_tokens
    largest_prompt = limits.max_model_len if limits.chunked else limits.max_num_batched_tokens
    too_long = (whole > limits.max_model_len) | (load.prompt_tokens > largest_prompt)
    too_large = np.array([units_of(int(n) - 1, limits) > limits.capacity_units for n in whole])
    assert np.array_equal(out.status == records.TOO_LONG, too_long)
    assert np.array_equal(out.status == records.NO_MEMORY, too_large & ~too_long)
    served = out.status == records.FINISHED
    assert np.all(out.finish_us[served] >= 0.0)
    assert np.all(out.finish_us[~served] == -1.0)
    assert np.all(out.scheduled_us[~served] == -1.0)


def clocks_never_run_backwards(world: World, served: Served) -> None:
    """Assert INV-3."""
    out, done, steps = served.out, finished(served), served.steps
    moments = [world.load.arrival_us, out.sent_us, out.scheduled_us, out.first_token_us, out.finish_us]
    for before, after in zip(moments, moments[1:], strict=False):
        assert np.all(before[done] <= after[done] + SLACK_US)
    assert np.all(np.diff(out.sent_us) >= 0.0)
    assert np.all(steps[:, START] < steps[:, END])
    assert np.all(steps[1:, START] >= steps[:-1, END] - SLACK_US)
    # a step that waits for adapters lasts longer, and this part of it is idle
    busy, working = (steps[:, END] - steps[:, START]).sum(), served.totals.gpu_us + served.totals.host_us
    assert busy >= working - 1e-3 if world.load.adapter.size else busy == pytest.approx(working, abs=1e-3)
    assert working + served.totals.idle_us == pytest.approx(served.totals.last_us - served.totals.first_us, abs=1e-3)


def budget_and_caps_hold_at_every_step(world: World, served: Served) -> None:
    """Assert INV-5."""
    limits, steps = world.limits, served.steps
    assert np.all(steps[:, PROMPT] + steps[:, DECODE] <= limits.max_num_batched_tokens)
    assert np.all(steps[:, PROMPT] + steps[:, DECODE] >= 1)
    assert np.all(steps[:, DECODE] <= steps[:, RUNNING])
    assert np.all(steps[:, RUNNING] <= limits.max_num_seqs)
    assert np.all(steps[:, RUNNING] + steps[:, WAITING] <= world.load.max_concurrency)


@random_worlds(250)
@given(world=worlds())
def test_inv_2_and_inv_8_hold_without_a_cache(world: World) -> None:
    served = run_loop(world)
    tokens_are_computed_as_asked(world, served)
    no_step_leaves_out_a_request_that_it_could_take(world, served)


def tokens_are_computed_as_asked(world: World, served: Served) -> None:
    """Assert INV-2."""
    done = finished(served)
    prompts, outputs = world.load.prompt_tokens[done], world.load.output_tokens[done]
    preempted = served.out.preemptions[done]
    scheduled = served.steps[:, PROMPT].sum()
    assert scheduled == served.totals.prompt_tokens
    # every output but the first follows a gap
    assert served.histogram.sum() == (outputs - 1).sum()
    # a preemption recomputes at most all that the request knew, and saves it one decode step
    assert prompts.sum() <= scheduled <= (prompts + preempted * (prompts + outputs - 1)).sum()
    decodes = served.steps[:, DECODE].sum()
    assert (outputs - 1 - preempted).sum() <= decodes <= (outputs - 1).sum()
    if not preempted.any():
        assert scheduled == prompts.sum()
        assert decodes == (outputs - 1).sum()


def no_step_leaves_out_a_request_that_it_could_take(world: World, served: Served) -> None:
    """Assert INV-8."""
    limits, out, steps = world.limits, served.out, served.steps
    visible = visible_us(world, served)
    for i in range(1, len(steps)):
        if steps[i, START] > steps[i - 1, END] + SLACK_US:
            # idle: nothing runs, and whatever has not ended becomes visible only when the next step starts
            left = out.finish_us > steps[i - 1, END] + SLACK_US
            assert np.all(visible[left] >= steps[i, START] - SLACK_US)
    if limits.prefill_first or not limits.chunked or served.totals.preemptions:
        return
    for i in range(1, len(steps)):
        idle_before = steps[i, START] > steps[i - 1, END] + SLACK_US
        horizon = steps[i - 1, START] if limits.asynchronous and not idle_before else steps[i, START]
        waits = np.flatnonzero((visible < horizon - SLACK_US) & (out.scheduled_us > steps[i, START] + SLACK_US))
        budget = int(limits.max_num_batched_tokens - steps[i, PROMPT] - steps[i, DECODE])
        if waits.size == 0 or budget == 0 or steps[i, RUNNING] == limits.max_num_seqs:
            continue
        chunk = min(int(world.load.prompt_tokens[waits[0]]), budget, limits.long_prefill_token_threshold or budget)
        if limits.whole_prompts:
            chunk = max(chunk, int(world.load.prompt_tokens[waits[0]]))
        assert units_of(chunk, limits) > limits.capacity_units - steps[i, UNITS]


@random_worlds(120)
@given(world=caching_worlds())
def test_inv_2_and_inv_4_hold_where_prefixes_are_cached(world: World) -> None:
    """Tokens that the cache has are not computed; every block is free or in use, and none in use is lost."""
    served = run_loop(world)
    # the reference has real blocks: it fails where one is in two places, nowhere, or lost while a request keeps it
    assert served.steps[:, UNITS].tolist() == [step.units for step in run_reference(world).steps]
    done = finished(served)
    prompts, outputs = world.load.prompt_tokens[done], world.load.output_tokens[done]
    cached, preempted = served.out.cached_tokens[done], served.out.preemptions[done]
    assert np.all(cached % world.limits.block_size == 0)
    # one token at least is computed; a request that was never admitted found nothing
    assert np.all((cached >= 0) & (cached < prompts))
    assert np.all(served.out.cached_tokens[~done] == 0)
    # each admission computes a token at least; one after a preemption at most all that the request knew
    scheduled, first = served.steps[:, PROMPT].sum(), prompts - cached
    least = np.where(preempted > 0, preempted + 1, first).sum()
    assert least <= scheduled <= (first + preempted * (prompts + outputs - 1)).sum()


@random_worlds(120)
@given(world=worlds() | caching_worlds() | policy_worlds())
def test_inv_4_kv_units_stay_within_capacity_and_all_come_back(world: World) -> None:
    # a request of one token long after all others finds the memory empty
    served = run_loop(world._replace(load=load_with_last(world.load)))
    units = served.steps[:, UNITS]
    assume(finished(served)[-1])
    assert np.all(units >= 0)
    assert np.all(units <= world.limits.capacity_units)
    assert served.totals.peak_units == units.max()
    assert units[-1] == units_of(1, world.limits)


# ---------------------------------------------------------------- a session

SMALL = {
    **{"tp": 1, "pp": 1, "dp": 1, "ep": 1, "engine": "vllm", "max_num_seqs": 16, "max_num_batched_tokens": 256},
    **{"max_model_len": 2048, "kv_cache_tokens": 4096},
}
LOADS = {"burstiness": 1.0, "range_ratio": 0.5, "seed": 3, "num_prompts": 30, "input_len": 300, "output_len": 40}
# a table takes its columns from its first row
UNSTATED = dict.fromkeys(
    ("request_rate", "max_concurrency", "num_turns", "think_time_s", "router", "num_warmups"), None
)
DEPLOYMENTS = [
    {"deployment_id": "dense", "model": "llama-3.1-8b", "gpu": "h100_sxm"},
    {"deployment_id": "experts", "model": "qwen3-30b-a3b", "gpu": "a100_sxm", "tp": 2, "dp": 2, "engine": "sglang"},
    {"deployment_id": "latent", "model": "deepseek-v3", "gpu": "h200_sxm", "tp": 8},
    {
        "deployment_id": "windows",
        "model": "gpt-oss-20b",
        "gpu": "l40s",
        "tp": 2,
        "engine": "trtllm",
        "max_num_batched_tokens": 320,
    },
    {"deployment_id": "stages", "model": "llama-3.1-8b", "gpu": "l40s", "pp": 3},
]
SERVED = ("request_events", "step_cost_uses", "itl_histogram", "replica_totals", "steps")
TOLD = (*SERVED, "request_metrics", "scenario_summary", "kernel_breakdown")


def scenarios() -> list[dict]:
    """Return an open and a closed load on each deployment, the latter crowding the KV cache; and one of sessions."""
    rows = []
    for deployment in (row["deployment_id"] for row in DEPLOYMENTS):
        common = LOADS | UNSTATED | {"deployment_id": deployment}
        rows.append(common | {"scenario_id": f"{deployment} open", "request_rate": 40.0})
        closed = {"scenario_id": f"{deployment} closed", "max_concurrency": 14, "output_len": 200}
        rows.append(common | closed)
    sessions = {"num_turns": 3, "think_time_s": 0.2, "router": "prefix_aware", "num_warmups": 2}
    rows.append(
        common | {"scenario_id": "experts sessions", "deployment_id": "experts", "request_rate": 9.0} | sessions
    )
    return rows


def serving(rows: list[dict]) -> Session:
    """Return a session that serves these scenarios."""
    session = connect()
    session.give("deployments", pa.Table.from_pylist([SMALL | row for row in DEPLOYMENTS]))
    session.give("scenarios", pa.Table.from_pylist(rows))
    return session


def sorted_bytes(session: Session, name: str, scenario: str | None = None) -> bytes:
    """Return a table's rows, or a scenario's, sorted by all columns, as Arrow bytes without what lies under nulls."""
    table = session.table(name)
    if scenario is not None:
        table = table.filter(pc.field("scenario_id") == scenario)
    table = table.sort_by([(column, "ascending") for column in table.column_names]).combine_chunks()
    assert table.num_rows > 0
    for position, field in enumerate(table.schema):
        column = table.column(position)
        if column.null_count:
            nothing = pa.scalar("" if pa.types.is_string(field.type) else 0).cast(field.type)
            table = table.set_column(position, field.name, pc.fill_null(column, nothing))
            table = table.append_column(f"{field.name} is null", column.is_null())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with serving(scenarios()) as served:
        yield served


def test_the_session_serves_what_the_invariants_need(session: Session) -> None:
    summary = {row["scenario_id"]: row for row in session.table("scenario_summary").to_pylist()}
    assert [row["completed"] for row in summary.values()] == [LOADS["num_prompts"]] * 11
    assert sum(row["preemptions"] for row in summary.values()) > 0
    assert summary["dense closed"]["duration_s"] != summary["dense open"]["duration_s"]


def test_inv_6_same_input_same_bytes_in_any_order(session: Session) -> None:
    shuffled = scenarios()
    random.Random(1).shuffle(shuffled)
    with serving(shuffled) as other:
        for name in TOLD:
            assert sorted_bytes(other, name) == sorted_bytes(session, name), name


def test_inv_7_a_scenario_alone_is_the_same_as_among_others(session: Session) -> None:
    # one that crowds the memory of an engine with windows, one of sessions over replicas with a router
    for row in scenarios()[7::3]:
        with serving([row]) as alone:
            for name in TOLD:
                among = sorted_bytes(session, name, row["scenario_id"])
                assert sorted_bytes(alone, name) == among, (name, row["scenario_id"])


def test_inv_9_the_breakdown_adds_up_to_the_step_time(session: Session) -> None:
    spent = session.query("""
        with broken as (select scenario_id, sum(total_us) as kernels_us from kernel_breakdown group by all),
        clock as (
          select scenario_id, sum((last_ns - first_ns) * pp - host_ns - idle_ns) / 1e3 as steps_us
          from replica_totals join deployment_settings using (deployment_id) group by all
        )
        select * from broken full join clock using (scenario_id)
    """).to_pylist()
    assert len(spent) == 11
    for row in spent:
        assert row["kernels_us"] == pytest.approx(row["steps_us"], rel=1e-7), row["scenario_id"]


def test_inv_9_phases_of_the_breakdown_add_up_to_the_kept_steps(session: Session) -> None:
    spent = session.query("""
        with phases as (
          select scenario_id, end_ns - start_ns - host_ns - stage_wait_ns as gpu_ns,
            case when decode_tokens = 0 then 'prefill' when prefill_tokens = 0 then 'decode' else 'mixed' end as phase
          from steps
        ),
        kept as (select scenario_id, phase, sum(gpu_ns) / 1e3 as steps_us from phases group by all),
        broken as (select scenario_id, phase, sum(total_us) as kernels_us from kernel_breakdown group by all)
        select * from kept left join broken using (scenario_id, phase)
    """).to_pylist()
    assert len({row["scenario_id"] for row in spent}) == 11
    for row in spent:
        assert row["kernels_us"] == pytest.approx(row["steps_us"], rel=1e-6), row


FASTER = {
    "bandwidth": ("memory_bandwidth_bytes_per_s",),
    "compute": tuple(f"{kind}_flops_per_s" for kind in ("fp32", "fp16", "bf16", "fp8", "fp4", "int8")),
    "link": ("link_bytes_per_s",),
}
ALONE = ("sm_clock_hz", "pcie_bytes_per_s", *(column for columns in FASTER.values() for column in columns))


def given_twins(session: Session, deployments: list[dict], faster: dict[str, tuple[float, tuple[str, ...]]]) -> None:
    """Give each deployment, and one on a hypothetical GPU for each part, that many times faster in its columns."""
    known = {row["gpu"]: row for row in session.table("gpus").to_pylist()}
    gpus, rows = {}, [*deployments]
    for row in deployments:
        for what, (factor, columns) in faster.items():
            real = known[row["gpu"]]
            rates = {name: factor * real[name] if real[name] is not None else None for name in columns}
            twin = real | rates | {"gpu": f"{row['gpu']} {what}", "measured_as": row["gpu"]}
            gpus[twin["gpu"]] = twin
            rows.append(row | {"deployment_id": f"{row['deployment_id']}/{what}", "gpu": twin["gpu"]})
    session.extend("gpus", pa.Table.from_pylist(list(gpus.values()), schema=session.table("gpus").schema))
    session.give("deployments", pa.Table.from_pylist(rows))


# single kernels at the roofline under any factor: tests/kernels/test_properties.py
def test_inv_10_faster_hardware_makes_no_kernel_and_no_step_slower() -> None:
    # the roofline tier is that of tests/kernels/test_properties.py
    rows = [SMALL | row | {"tier": "auto", "deployment_id": f"{row['deployment_id']} auto"} for row in DEPLOYMENTS]
    twins = {f"{what} {factor}": (factor, columns) for what, columns in FASTER.items() for factor in (1.07, 3.0)}
    with connect() as session:
        given_twins(session, rows, twins)
        kernels = compared(session, "kernel_latencies", "call", "latency_us")
        steps = compared(session, "step_costs", "", "gpu_us")
    for what in twins:
        for ratios in (kernels[what, "auto"], steps[what, "auto"]):
            # and the faster part is felt somewhere
            assert ratios["worst"] <= 1.0 + 1e-9 and ratios["best"] < 1.0, what


@pytest.mark.whole
def test_inv_10_holds_for_each_rate_of_a_measured_gpu_and_its_twin() -> None:
    """Alone, one rate at a time; as it is, a twin takes as long as the GPU whose fit it has."""
    twins = {"itself": (1.5, ())} | {column: (1.5, (column,)) for column in ALONE}
    deployments = [
        SMALL
        | row
        | {"gpu": "h100_sxm", "max_num_batched_tokens": 4096, "max_num_seqs": 64}
        | {"deployment_id": f"{row['deployment_id']} auto"}
        for row in DEPLOYMENTS
        if row["deployment_id"] in ("dense", "experts")
    ]
    with connect() as session:
        given_twins(session, deployments, twins)
        kernels = compared(session, "kernel_latencies", "call", "latency_us")
        tiers = session.query("""
            select distinct deployments.gpu = 'h100_sxm' as built, kernels.tier as tier
            from kernel_latencies as kernels join deployments using (deployment_id) where kernels.family = 'gemm'
        """).to_pylist()
    assert {what for what, _ in kernels} == set(twins)
    assert all(ratios["worst"] <= 1.0 + 1e-9 for ratios in kernels.values()), kernels
    assert kernels["itself", "auto"]["best"] == 1.0
    assert {(row["built"], row["tier"]) for row in tiers} == {(True, "target-measured"), (False, "hypothetical")}


def compared(session: Session, table: str, key: str, column: str) -> dict[tuple[str, str], dict]:
    """Return the largest and smallest ratio of a column on each faster GPU to the same row on the real one, by tier."""
    keys = ", ".join(filter(None, ("step_shape_id", key)))
    rows = session.query(f"""
        with known as (select deployment_id as real, {keys}, {column} as us from {table}
                       where not contains(deployment_id, '/')),
        faster as (select split_part(deployment_id, '/', 1) as real, split_part(deployment_id, '/', 2) as what,
                     {keys}, {column} as us from {table} where contains(deployment_id, '/')),
        wanted as (select * from known cross join (select distinct what from faster))
        select what, split_part(real, ' ', 2) as tier, max(faster.us / wanted.us) as worst,
          min(faster.us / wanted.us) as best, count(*) as joined,
          count(*) filter (where wanted.us is null or faster.us is null) as lonely
        from wanted full join faster using (real, what, {keys})
        where coalesce(wanted.us, 1) > 0
        group by all
    """).to_pylist()
    assert all(row["joined"] > 0 and row["lonely"] == 0 for row in rows), rows
    return {(row["what"], row["tier"]): row for row in rows}
