"""The sentence on CUDA graphs that end below the batches, against a simulation with larger ones."""

from __future__ import annotations

import re

import pytest

from kernelsight.session import connect

FLAGS = {"model": "qwen3-0.6b", "gpu": "h100_sxm", "num_prompts": 240, "input_len": 64, "output_len": 128}
LOAD = {"max_concurrency": 60, "max_num_seqs": 64}


def test_the_factor_is_that_of_larger_graphs() -> None:
    with connect() as session:
        found = session.simulate(**FLAGS, **LOAD, max_cudagraph_capture_size=16)
        said, before = found.summary["cliff"], found.summary["tpot_ms"]["p50"]
        after = session.simulate(**FLAGS, **LOAD, max_cudagraph_capture_size=64).summary
    words = (
        r"CUDA graphs end at a batch of 16, which (\d+)% of the decode steps exceed: --max-cudagraph-capture-size 64 "
    )
    share, factor = re.match(words + r"makes these (.*) times as fast", said).groups()
    assert int(share) > 90
    assert float(factor) == pytest.approx(before / after["tpot_ms"]["p50"], rel=0.15) and float(factor) > 1.5
    assert after["cliff"] is None
