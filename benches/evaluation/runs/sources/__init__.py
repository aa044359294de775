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
    """A form of file: its columns and its reader; ``workloads``: columns of files that only describe its workloads."""

    columns: frozenset[str]
    read: Callable[[Path], Runs]
    workloads: frozenset[str] = frozenset()


def _reader(module: ModuleType) -> Callable[[Path], Runs]:
    return lambda path: runs_of(*module.read(path), path)


SOURCES = (
    Source(mlenergy.COLUMNS, _reader(mlenergy)),
    Source(trtllm_tables.COLUMNS, _reader(trtllm_tables)),
    Source(sglang_cookbook.COLUMNS, _reader(sglang_cookbook)),
    Source(gpustack.COLUMNS, _reader(gpustack)),
    Source(http_stages.COLUMNS, _reader(http_stages), http_stages.STAGES),
    Source(frozenset((aiconfigurator.MARK,)), aiconfigurator.read),
)


def read_folder(folder: Path) -> Runs | None:
    """Return the runs of a folder with the reports of one run of inference-perf; None: it is no such folder."""
    return runs_of(*inference_perf.read(folder), folder) if list(folder.glob(inference_perf.STAGES)) else None
