"""Derivatives of scenarios against simulations on GPUs whose facts differ by 1 %."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

import kernelsight as ks
from kernelsight.errors import InvalidInput, UnknownName
from kernelsight.sweeps.runs import Run

DEPLOYMENT = {"model": "qwen3-8b", "gpu": "h100_sxm"}
AT_ONCE = {"request_rate": math.inf, "num_prompts": 60, "input_len": 400, "output_len": 40, "range_ratio": 0.5}
ARRIVING = AT_ONCE | {"request_rate": 12.0}
MEMORY, CORES = "memory_bandwidth_bytes_per_s", "bf16_flops_per_s"
METRICS = ("ttft_mean_ms", "tpot_p50_ms", "e2e_p90_ms", "output_throughput")


def simulated(asked: list[tuple[dict, str, float]]) -> list[dict]:
    """Return the summary of each scenario on a GPU with another fact: that fact's factor."""
    with ks.connect() as session:
        [gpu] = (row for row in session.table("gpus").to_pylist() if row["gpu"] == DEPLOYMENT["gpu"])
        twins = [
            gpu | {"gpu": f"twin_{place}", "measured_as": gpu["gpu"], fact: factor * gpu[fact]}
            for place, (_, fact, factor) in enumerate(asked)
        ]
        session.extend("gpus", pa.Table.from_pylist(twins, schema=session.table("gpus").schema))
        rows = [DEPLOYMENT | load | {"gpu": f"twin_{place}"} for place, (load, _, _) in enumerate(asked)]
        found = {row["gpu"]: row for row in session.what_if(rows).summary.to_pylist()}
        return [found[f"twin_{place}"] for place in range(len(asked))]


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    session = ks.connect()
    loads = {"replay in order": AT_ONCE, "replay": ARRIVING}
    return {method: session.simulate(**DEPLOYMENT, **load) for method, load in loads.items()}


@pytest.mark.whole
def test_elasticities_are_those_of_central_differences(runs: dict[str, Run]) -> None:
    loads = (("replay in order", AT_ONCE, MEMORY), ("replay in order", AT_ONCE, CORES), ("replay", ARRIVING, MEMORY))
    found = iter(simulated([(load, fact, factor) for _, load, fact in loads for factor in (1.01, 0.99)]))
    for method, _, fact in loads:
        more, less = next(found), next(found)
        rows = runs[method].table("scenario_sensitivities").to_pylist()
        assert {row["method"] for row in rows} == {method}
        elasticities = {row["metric"]: row["elasticity"] for row in rows if row["fact"] == fact}
        for metric in METRICS:
            difference = math.log(more[metric] / less[metric]) / math.log(1.01 / 0.99)
            assert elasticities[metric] == pytest.approx(difference, abs=0.02), (method, fact, metric)


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
