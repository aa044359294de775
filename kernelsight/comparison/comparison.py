"""Comparison of a production log with its replay: what ``Session.compare`` returns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.comparison.answer import answer_of
from kernelsight.comparison.compared_log import BESIDE, ComparedLog, compared_logs
from kernelsight.comparison.question import Question
from kernelsight.comparison.settings import with_stated
from kernelsight.comparison.verdict import verdict_table
from kernelsight.errors import InvalidInput
from kernelsight.escape import visible

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session

NAME = "compared"
TABLES = (
    *("prediction_vs_production", "miss_by_part", "error_by_bucket", "drift_over_time", "setting_suspects"),
    *("fitted_corrections", "causes", "log_incidents", "occupancy_over_time", "latency_percentiles"),
    *("power_vs_production", "comparison_findings"),
)


class Comparison:
    """A production log and its replay: a view of the tables that the graph makes of them.

    >>> import kernelsight as ks
    >>> rows = [{"arrival_s": i / 4, "prompt_tokens": 64 + i, "output_tokens": 9, "e2e_ms": 40.0} for i in range(120)]
    >>> compared = ks.compare(requests=rows, deployment={"model": "qwen3-0.6b", "gpu": "l4"})
    >>> compared.summary["requests"], compared.table("prediction_vs_production").num_rows
    (120, 120)
    """

    def __init__(self, session: Session, tables: Mapping[str, pa.Table], question: Question) -> None:
        self._session, self._logs = session, list(tables)
        self.log: ComparedLog
        session.give("comparisons", [question.as_row(NAME)])
        for name, table in tables.items():
            session.give(name, table, trusted=True)
        production_settings = with_stated(tables["production_settings"], self.settings, question.flags)
        session.give("production_settings", production_settings, trusted=True)
        inputs = [session.table(name) for name in ("comparisons", "log_settings", "compared_requests")]
        (self.log,) = compared_logs(*inputs, {name: session.table(name) for name in BESIDE})

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the deployment as stated: the row of ``log_settings``."""
        return self._session.table("log_settings").to_pylist()[0]

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The comparison as ``kernelsight compare --format json`` prints it."""
        return answer_of(self.log, self._session.table)

    def table(self, name: str) -> pa.Table:
        """Return a table of the comparison, or of the log; InvalidInput for another name."""
        if name in self._logs:
            return self._session.table(name)
        if name not in TABLES:
            raise InvalidInput(f"a comparison has no table {name!r}; it has {', '.join((*TABLES, *self._logs))}.")
        return self._session.table(name).drop_columns(["comparison_id"])

    def save(self, path: str | Path) -> None:
        """Write the comparison and the log to a DuckDB file."""
        self._session.save(path, ["comparisons", *TABLES, *self._logs])

    def sql(self, query: str) -> Any:
        """Return a DuckDB relation over the tables of the comparison and of the log."""
        return self._session.sql(query)

    def __repr__(self) -> str:
        return visible(f"Comparison({self.summary['verdict']})")

    def _repr_html_(self) -> str:
        return verdict_table(self.summary, self.summary["parts"], ("part", "miss_ms", "share"))
