"""A small model on small limits, one session for all questions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelsight.session import Session, connect

LOAD = {"input_len": 300, "output_len": 12}
FLAGS = {"model": "qwen3-0.6b", "max_num_seqs": 16, "max_model_len": 1024, "max_num_batched_tokens": 512}
SLO = {"ttft_p95_ms": 120.0, "tpot_p90_ms": 40.0}


@pytest.fixture(scope="session")
def session() -> Iterator[Session]:
    """A session that nothing is given to."""
    with connect() as opened:
        yield opened
