"""Small sweeps in the layout of aiconfigurator-core, and ``calibrate import`` run on a sweep."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest

from kernelsight.cli.calibrate import import_sweeps as calibrate_import

DEVICES = {"h100_sxm": "NVIDIA H100 80GB HBM3", "a100_sxm": "NVIDIA A100-SXM4-80GB", "l40s": "NVIDIA L40S"}
ENGINES = {"vllm": ("VLLM", "0.24.0"), "sglang": ("SGLang", "0.5.14"), "trtllm": ("TRTLLM", "1.3.0rc20")}


class Imported(NamedTuple):
    """What an import printed and wrote; a point's shape holds the fields that are not null."""

    summary: list[dict[str, Any]]
    points: list[dict[str, Any]]
    notes: str

    @property
    def reasons(self) -> dict[str, int]:
        """Rows rejected, by reason."""
        found: dict[str, int] = {}
        for line in self.summary:
            if line["reason"]:
                found[line["reason"]] = found.get(line["reason"], 0) + line["rejected"]
        return found


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes rows of a table; ``place`` is gpu/family/engine; what a row lacks is sound."""

    def write(place: str, table: str, *rows: Mapping[str, Any], version: str = "") -> Path:
        gpu, family, engine = place.split("/")
        framework, newest = ENGINES.get(engine, ("TRTLLM", "2.27.3"))
        common = {"framework": framework, "version": version or newest, "device": DEVICES[gpu]}
        folder = tmp_path / "systems" / "data" / gpu / family / engine / (version or newest)
        folder.mkdir(parents=True, exist_ok=True)
        pl.DataFrame([common | dict(row) for row in rows], infer_schema_length=None).write_parquet(
            folder / f"{table}.parquet"
        )
        return tmp_path

    return write


@pytest.fixture
def import_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Imported]:
    """Return a function that imports a source and path, with flags, and reads back what came out."""

    def run(source: str, path: Path | None, **flags: str) -> Imported:
        target = tmp_path / "points.parquet"
        words = {"gpus": None, "families": None, "output": str(target), "format": "json"} | flags
        arguments = argparse.Namespace(
            source=source,
            path=[] if path is None else [str(one) for one in (path if isinstance(path, list) else [path])],
            **words,
        )
        assert calibrate_import.run(arguments) == 0
        printed, notes = capsys.readouterr()
        points = pl.read_parquet(target).to_dicts()
        for point in points:
            point["shape"] = {name: value for name, value in point["shape"].items() if value is not None}
        return Imported(json.loads(printed), points, notes)

    return run
