"""The share of proposed tokens that is accepted, fitted on runs whose TPOT is what the simulation gives at one."""

from __future__ import annotations

import pytest

from kernelsight.evaluation.runs.simulate_runs import plan_runs, serve_runs
from kernelsight.laboratory.runs.acceptance import fit_acceptance, needs_acceptance_rate, with_acceptance_rate
from kernelsight.session import connect

FLAGS = {
    **{"model": "qwen3-0.6b", "gpu": "l4", "tensor_parallel_size": 1, "engine": "vllm", "input_len": 64},
    **{"output_len": 40, "max_concurrency": 2, "num_prompts": 12, "num_speculative_tokens": 3},
    "speculative_method": "ngram",
}


def run_of(number: int, tpot_ms: float, **more: object) -> dict:
    names = {"run_id": f"r{number}", "model": "m", "gpu": "g", "engine": "vllm", "quantization": None}
    return {**names, "fitting": True, "flags": {**FLAGS, "max_concurrency": number}, "tpot_ms": tpot_ms, **more}


@pytest.mark.whole
def test_the_rate_is_found_that_the_runs_were_made_with() -> None:
    with connect() as session:
        session.progress = None
        runs = [run_of(number, 1.0) for number in (1, 2, 4)]
        planned = plan_runs(session, [with_acceptance_rate(run["flags"], 0.75) for run in runs])
        [rows] = serve_runs(session, planned, [[None] * 3])
        for run, row in zip(runs, rows, strict=True):
            run["tpot_ms"] = row["tpot_mean_ms"]
        others = [run_of(5, 99.0, fitting=False), run_of(6, 99.0, fitting=False, engine="trtllm")]
        found = fit_acceptance(session, [*runs, *others], {})
        rate = pytest.approx(0.75, abs=0.01)
        assert found == {("vllm", "m"): rate, ("trtllm", "m"): rate}
        assert found["vllm", "m"] == found["trtllm", "m"]
        # a model of its own has a rate of its own, and one without a fitting run its engine's
        slower = run_of(4, runs[2]["tpot_ms"] * 1.3, model="n")
        found = fit_acceptance(session, [*runs, slower, run_of(5, 99.0, fitting=False, model="o")], {})
        assert found["vllm", "n"] < 0.6 < found["vllm", "m"] == rate
        assert found["vllm", "n"] < found["vllm", "o"] <= found["vllm", "m"]
        assert fit_acceptance(session, others, {}) == {}


def test_a_stated_rate_stays() -> None:
    assert not needs_acceptance_rate({"flags": {"model": "m"}})
    assert not needs_acceptance_rate({"flags": {**FLAGS, "draft_acceptance_rate": 0.5}})
    assert with_acceptance_rate({**FLAGS, "draft_acceptance_rate": 0.5}, 0.9)["draft_acceptance_rate"] == 0.5
    assert with_acceptance_rate({"model": "m"}, 0.9) == {"model": "m"}
