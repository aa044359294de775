"""Very many requests, counted block by block as they end, against the same requests with a row each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import pytest

from kernelsight.serving.engine import request_blocks
from kernelsight.serving.engine.tally import Tally
from kernelsight.serving.runs import simulate, summaries
from kernelsight.session import connect

FLAGS = {"model": "qwen3-0.6b", "gpu": "l4", "input_len": 60, "output_len": 20, "range_ratio": 0.5, "seed": 3}
TABLES = ("request_statistics", "serving_windows", "itl_histogram", "replica_totals", "request_events")


@contextmanager
def blocks_of(requests: int) -> Iterator[list[Tally]]:
    """Let blocks have so many requests; yields what is counted in them."""
    made: list[Tally] = []

    def noted(*stated: object) -> Tally:
        made.append(Tally(*stated))
        return made[-1]

    with ExitStack() as patches:
        for module in (request_blocks, simulate, summaries):
            patches.enter_context(patch.object(module, "BLOCK", requests))
        patches.enter_context(patch.object(simulate, "Tally", noted))
        yield made


@pytest.mark.parametrize(
    "load",
    [
        {"request_rate": 40.0, "num_prompts": 150, "num_warmups": 5, "goodput_ttft_ms": 60.0},
        {"request_rate": 400.0, "num_prompts": 128, "max_num_seqs": 4},
        {"max_concurrency": 8, "num_prompts": 97, "max_model_len": 100},
    ],
    ids=["with warm-ups", "whole blocks", "some rejected"],
)
@pytest.mark.whole
def test_counted_blocks_change_no_table(load: dict[str, object]) -> None:
    with connect() as session:
        run = session.simulate(**FLAGS, **load)
        expected = {name: run.table(name) for name in TABLES}
    with connect() as session, blocks_of(16) as made:
        run = session.simulate(**FLAGS, **load)
        # rows of requests are asked for last: they are served again
        for name in TABLES[:-1]:
            assert run.table(name).equals(expected[name]), name
        counted = len(made)
        assert counted and run.table("request_events").equals(expected["request_events"])
        assert len(made) == counted
