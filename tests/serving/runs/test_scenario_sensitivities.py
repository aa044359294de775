"""Derivatives of scenarios against simulations on GPUs whose facts differ by 1 %."""

from __future__ import annotations

import math

import pyarrow.compute as pc
import pytest

import kernelsight as ks
from kernelsight.errors import InvalidInput, UnknownName
from kernelsight.sweeps.runs import Run

DEPLOYMENT = {"model": "qwen3-8b", "gpu": "h100_sxm"}
AT_ONCE = {"request_rate": math.inf, "num_prompts": 60, "input_len": 400, "output_len": 40, "range_ratio": 0.5}
ARRIVING = AT_ONCE | {"request_rate": 12.0}
MEMORY, CORES = "memory_bandwidth_bytes_per_s", "bf16_flops_per_s"
METRICS = ("ttft_mean_ms", "tpot_p50_ms", "e2e_p90_ms", "output_throughput")


def simulated(flags: dict, fact: str, factor: float) -> dict:
    """Return the summary of a scenario on a GPU with another fact."""
    with ks.connect() as session:
        gpus = session.table("gpus")
        own = pc.if_else(pc.equal(gpus["gpu"], flags["gpu"]), factor, 1.0)
        values = pc.multiply(gpus[fact], own)
        session.give("gpus", gpus.set_column(gpus.column_names.index(fact), fact, values))
        return session.simulate(**flags).table("scenario_summary").to_pylist()[0]


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    session = ks.connect()
    loads = {"replay in order": AT_ONCE, "replay": ARRIVING}
    return {method: session.simulate(**DEPLOYMENT, **load) for method, load in loads.items()}


@pytest.mark.parametrize(("method", "facts"), [("replay in order", (MEMORY, CORES)), ("replay", (MEMORY,))])
def test_elasticities_are_those_of_central_differences(
    runs: dict[str, Run], method: str, facts: tuple[str, ...]
) -> None:
    table = runs[method].table("scenario_sensitivities")
    assert set(table["method"].to_pylist()) == {method}
    found = {(row["fact"], row["metric"]): row["elasticity"] for row in table.to_pylist()}
    for fact in facts:
        flags = DEPLOYMENT | (AT_ONCE if method == "replay in order" else ARRIVING)
        more, less = (simulated(flags, fact, factor) for factor in (1.01, 0.99))
        for metric in METRICS:
            difference = math.log(more[metric] / less[metric]) / math.log(1.01 / 0.99)
            assert found[fact, metric] == pytest.approx(difference, abs=0.02), (fact, metric)


def test_what_limits_agrees_with_the_gains_of_resources(runs: dict[str, Run]) -> None:
    run = runs["replay in order"]
    gains = {row["resource"]: row for row in run.table("resource_gains").to_pylist()}
    for fact, resource in ((MEMORY, "decode bandwidth"), (CORES, "prefill compute")):
        slope = run.gradient("e2e_mean_ms", fact).elasticity
        # a fifth more of it, as a power
        assert 1.0 - 1.2**slope == pytest.approx(gains[resource]["e2e_gain"], abs=0.03)


def test_a_gradient_has_the_units_of_its_metric_and_fact(runs: dict[str, Run]) -> None:
    found = runs["replay in order"].gradient("tpot_p50_ms", MEMORY)
    strongest, *others = runs["replay in order"].gradient("tpot_p50_ms")
    assert found.derivative == pytest.approx(found.elasticity * found.value / found.at)
    assert found.at > 3e12
    assert abs(strongest.elasticity) >= max(abs(one.elasticity) for one in others)
    assert -1.0 < found.elasticity < 0.0


def test_refusals(runs: dict[str, Run]) -> None:
    with ks.connect() as session, pytest.raises(InvalidInput, match="holds 0; give the flags of one"):
        session.gradient("tpot_p50_ms", MEMORY)
    with pytest.raises(UnknownName, match="unknown metric 'tpot_p5_ms'"):
        runs["replay in order"].gradient("tpot_p5_ms", MEMORY)
    with pytest.raises(UnknownName, match="Did you mean memory_bandwidth_bytes_per_s"):
        runs["replay in order"].gradient("tpot_p50_ms", "memory_bandwidth")
