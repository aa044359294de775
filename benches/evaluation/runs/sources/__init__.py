"""Readers of published campaigns' files, which are recognised by their header."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from kernelsight.evaluation.runs.measured_runs import Runs, runs_of
from kernelsight.laboratory.runs.sources import (
    aiconfigurator,
    gpustack,
    http_stages,
    inference_perf,
    mlenergy,
    sglang_cookbook,
    trtllm_tables,
)


class Source(NamedTuple):
    """A form of file: its columns and its reader; ``workloads``: columns of files that only describe its workloads.

    ``folder``: pattern of the files of a folder that is read as a whole.
    """

    columns: frozenset[str]
    read: Callable[[Path], Runs]
    workloads: frozenset[str] = frozenset()
    folder: str = ""


def _reader(module: ModuleType) -> Callable[[Path], Runs]:
    return lambda path: runs_of(*module.read(path), path)


SOURCES = (
    Source(mlenergy.COLUMNS, _reader(mlenergy)),
    Source(trtllm_tables.COLUMNS, _reader(trtllm_tables)),
    Source(sglang_cookbook.COLUMNS, _reader(sglang_cookbook)),
    Source(gpustack.COLUMNS, _reader(gpustack)),
    Source(http_stages.COLUMNS, _reader(http_stages), http_stages.STAGES),
    Source(frozenset((aiconfigurator.MARK,)), aiconfigurator.read),
    Source(frozenset((inference_perf.STAGES,)), _reader(inference_perf), folder=inference_perf.STAGES),
)
