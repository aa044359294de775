"""Grids, and results as bytes that say nothing of how they came to be."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from kernelsight.cli.main import main

LOAD = {"num_prompts": 24, "input_len": 300, "output_len": 12, "range_ratio": 0.5}
SMALL = {"model": "qwen3-0.6b", "gpu": "l4", "max_num_seqs": 16, "max_model_len": 1024, "max_num_batched_tokens": 512}


def rows_of(**axes: list[Any]) -> list[dict[str, Any]]:
    """Return small scenarios: the product of axes over a deployment and a load."""
    from kernelsight.scenario.grid import expand

    return expand({**SMALL, **LOAD, **axes})


def table_bytes(table: pa.Table) -> bytes:
    """Return a table as Arrow bytes, laid out anew: chunks, and what lies under a null, are no part of them."""
    table = pa.Table.from_pylist(table.to_pylist(), schema=table.schema.remove_metadata())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.fixture
def command() -> Callable[..., tuple[int, str, str]]:
    """Run one command in this process; return its exit status, stdout and stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main([str(word) for word in words])
        return status, out.getvalue(), err.getvalue()

    return run
