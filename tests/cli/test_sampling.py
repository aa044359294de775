"""``--sampling``: what drawing a token costs, by the sampler of the engine's version."""

from __future__ import annotations

import pytest

from kernelsight.session import connect
from tests.cli.conftest import predict_all

STEP = ("predict", "--model", "qwen3-8b", "--gpu", "h100_sxm", "--phase", "decode", "--context-len", 300)
DRAWN = {"random": {"sampling": "random"}, "greedy": {}}
VERSIONS = ("0.11.0", "0.11.1", "0.16.0", "0.17.0", "0.21.0")


@pytest.fixture(scope="module")
def sampled_us() -> dict[tuple[str, int], float]:
    """The time of a step's sampling, us, by how tokens are drawn (top_p: by the version) and the batch."""
    flags = DRAWN | {version: {"sampling": "top_p", "engine_version": version} for version in VERSIONS}
    asked = [*((name, 256) for name in flags), *(("0.11.1", batch) for batch in (32, 96, 512))]
    given = {"model": "qwen3-8b", "gpu": "h100_sxm"}
    sizes = {batch: {"context_len": 300, "batch_size": batch} for _, batch in asked}
    with connect() as session:
        steps = predict_all(session, {case: (given | flags[case[0]], "decode", sizes[case[1]]) for case in asked})
    return {
        case: next(kernel["latency_us"] for kernel in step["kernels"] if kernel["family"] == "sampling")
        for case, step in steps.items()
    }


def test_a_filter_costs_by_the_sampler_of_the_version(command, sampled_us) -> None:
    us = {name: latency for (name, batch), latency in sampled_us.items() if batch == 256}
    assert us["greedy"] < us["random"] < us["0.21.0"] < us["0.17.0"] < us["0.16.0"]
    # FlashInfer was off by default between 0.11.0 and 0.21 (vLLM pull requests 26859 and 40376)
    assert us["0.11.0"] == us["0.21.0"] and us["0.11.1"] == us["0.16.0"]
    words = ("--batch-size", 256, "--sampling", "top_p", "--engine-version", "0.21.0", "--format", "json")
    kernels = command(*STEP, *words).json["kernels"]
    assert [kernel["latency_us"] for kernel in kernels if kernel["family"] == "sampling"] == [us["0.21.0"]]


def test_a_sort_of_many_rows_takes_what_was_published(sampled_us) -> None:
    """2,048 rows of 131,072 logits take 57.6 ms on a GPU of 3.35 TB/s, one row after another below 128."""
    many, few = sampled_us["0.11.1", 512], [sampled_us["0.11.1", batch] for batch in (32, 96)]
    assert many == pytest.approx(57.6e3 * 512 * 151_936 / (2048 * 131_072), rel=0.12)
    assert few[1] - few[0] == pytest.approx(64 * 21.0, rel=0.25)
