"""``--sampling``: what drawing a token costs, by the sampler of the engine's version."""

from __future__ import annotations

import pytest

STEP = ("predict", "--model", "qwen3-8b", "--gpu", "h100_sxm", "--phase", "decode", "--context-len", 300)


def sampled_us(command, *words) -> float:
    """Return the time of the step's sampling, us."""
    answer = command(*STEP, *words, "--format", "json")
    assert answer.status == 0, answer.err
    return next(kernel for kernel in answer.json["kernels"] if kernel["family"] == "sampling")["latency_us"]


def test_a_filter_costs_by_the_sampler_of_the_version(command) -> None:
    def top_p(version: str) -> float:
        return sampled_us(command, "--batch-size", 256, "--sampling", "top_p", "--engine-version", version)

    drawn = sampled_us(command, "--batch-size", 256, "--sampling", "random")
    assert sampled_us(command, "--batch-size", 256) < drawn < top_p("0.21.0") < top_p("0.17.0") < top_p("0.16.0")
    # FlashInfer was off by default between 0.11.0 and 0.21 (vLLM pull requests 26859 and 40376)
    assert top_p("0.11.0") == top_p("0.21.0") and top_p("0.11.1") == top_p("0.16.0")


def test_a_sort_of_many_rows_takes_what_was_published(command) -> None:
    """2,048 rows of 131,072 logits take 57.6 ms on a GPU of 3.35 TB/s, one row after another below 128."""
    many = sampled_us(command, "--batch-size", 512, "--sampling", "top_p", "--engine-version", "0.11.1")
    assert many == pytest.approx(57.6e3 * 512 * 151_936 / (2048 * 131_072), rel=0.12)
    few = [
        sampled_us(command, "--batch-size", n, "--sampling", "top_p", "--engine-version", "0.11.1") for n in (32, 96)
    ]
    assert few[1] - few[0] == pytest.approx(64 * 21.0, rel=0.25)


def test_a_sampling_that_does_not_exist_is_refused(command) -> None:
    assert "--sampling" in command(*STEP, "--sampling", "nucleus").err
