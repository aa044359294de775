"""Host constants that replace those of the catalogue in replays of measured runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import pyarrow as pa


class HostConstants(Protocol):
    """Host times of a group of runs; ``pace``: factor on its kernels."""

    @property
    def pace(self) -> float:
        """Factor on the kernels of the group."""

    def host(self, row: Mapping[str, Any]) -> Mapping[str, float]:
        """Return the replaced columns of a row of ``host_settings``."""


def with_host(
    host_settings: pa.Table,
    columns_of: Callable[[Mapping[str, Any]], Mapping[str, float] | None],
    prose: Collection[str] = (),
) -> pa.Table:
    """Return ``host_settings`` with the columns that ``columns_of`` returns for a row replaced; None keeps the row.

    ``prose``: ids of deployments whose prompts are natural text, whose tokenisation time is 0 (see ``recipes``).
    """
    rows = []
    for row in host_settings.to_pylist():
        row |= columns_of(row) or {}
        if row["deployment_id"] in prose:
            row["per_prompt_token_us"] = 0.0
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=host_settings.schema)
