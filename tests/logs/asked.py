"""What the tests of logs ask of tables: rows without unset values, faults by rule, settings by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from kernelsight.errors import KernelSightError
from kernelsight.logs import read_logs


def rows(tables: Mapping[str, pa.Table], table: str = "production_requests") -> list[dict[str, Any]]:
    """Return the rows of a table without their unset values."""
    return [{name: v for name, v in row.items() if v is not None} for row in tables[table].to_pylist()]


def faults(tables: Mapping[str, pa.Table]) -> dict[str, int]:
    """Return the number of rows by rule."""
    return {row["rule"]: row["n"] for row in tables["log_faults"].to_pylist()}


def settings(tables: Mapping[str, pa.Table]) -> dict[str, str]:
    """Return the settings that were found, by name."""
    return {row["setting"]: row["found"] for row in tables["production_settings"].to_pylist()}


def statistics(tables: Mapping[str, pa.Table]) -> dict[tuple[str, str, str], float]:
    """Return the stated statistics by part, metric and statistic."""
    table = tables["production_summaries"].to_pylist()
    return {(row["part"], row["metric"], row["statistic"]): row["value"] for row in table}


def refusal(*paths: Any, **other: Any) -> str:
    """Return the sentence with which reading is refused."""
    with pytest.raises(KernelSightError) as refused:
        read_logs(list(paths), **other)
    return str(refused.value)
