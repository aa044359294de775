"""Comparison of a production log with its replay: what ``Session.compare`` returns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kernelsight.comparison.answer import answer_of
from kernelsight.comparison.compared_log import BESIDE, ComparedLog, compared_logs
from kernelsight.comparison.comparison_tables import ComparisonTables
from kernelsight.comparison.question import Question
from kernelsight.comparison.settings import with_stated
from kernelsight.comparison.verdict import verdict_table
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


class Comparison(ComparisonTables):
    """A production log and its replay: a view of the tables that the graph makes of them.

    >>> import kernelsight as ks
    >>> rows = [{"arrival_s": i / 4, "prompt_tokens": 64 + i, "output_tokens": 9, "e2e_ms": 40.0} for i in range(120)]
    >>> compared = ks.compare(requests=rows, deployment={"model": "qwen3-0.6b", "gpu": "l4"})
    >>> compared.summary["requests"], compared.table("prediction_vs_production").num_rows
    (120, 120)
    """

    _derived = TABLES

    def __init__(self, session: Session, tables: Mapping[str, pa.Table], question: Question) -> None:
        super().__init__(session, list(tables))
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

    def __repr__(self) -> str:
        return visible(f"Comparison({self.summary['verdict']})")

    def _repr_html_(self) -> str:
        return verdict_table(self.summary, self.summary["parts"], ("part", "miss_ms", "share"))
