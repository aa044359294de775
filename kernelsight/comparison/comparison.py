"""Comparison of a log with its replay, of its stages with theirs, or with an earlier log: one view of all three."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from kernelsight.comparison import log_pairs, stage_comparison
from kernelsight.comparison.answer import answer_of
from kernelsight.comparison.compared_log import BESIDE, OPTIONAL, ComparedLog, Question, compared_logs
from kernelsight.comparison.settings import with_stated
from kernelsight.errors import InvalidInput
from kernelsight.escape import visible
from kernelsight.logs.read_logs import is_table, read_logs, read_table
from kernelsight.present.show import notebook
from kernelsight.scenario.argument_checks import mapping_of
from kernelsight.scenario.flag_values import asked_values

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session
    from kernelsight.present.page import Page

TABLES = (
    *("prediction_vs_production", "miss_by_part", "error_by_bucket", "drift_over_time", "setting_suspects"),
    *("fitted_corrections", "causes", "log_incidents", "occupancy_over_time", "latency_percentiles"),
    *("power_vs_production", "comparison_findings"),
)


class Kind(NamedTuple):
    """What a log is compared with.

    ``name``: of its row of ``comparisons``; ``tables``: that the graph makes of it; ``read``: checks the log in a
    session; ``answer``: makes the summary of what was read, and of tables by name.
    """

    name: str
    tables: tuple[str, ...]
    read: Callable[[Session, Question], Any]
    answer: Callable[[Any, Callable[[str], pa.Table]], dict[str, Any]]


def _requests_of(session: Session, question: Question) -> ComparedLog:
    """Return the log, and give the session the user's value of each setting that the log states."""
    settings = session.table("log_settings").to_pylist()[0]
    stated = with_stated(session.table("production_settings"), settings, question.flags)
    session.give("production_settings", stated, trusted=True)
    inputs = [session.table(name) for name in ("comparisons", "log_settings", "compared_requests")]
    (log,) = compared_logs(*inputs, {name: session.table(name) for name in BESIDE})
    return log


REQUESTS = Kind("compared", TABLES, _requests_of, answer_of)
STAGES = Kind(
    "stage_vs_prediction",
    ("stage_vs_prediction", "stage_corrections"),
    lambda session, _: stage_comparison.stages_of_comparison(
        session.table("comparisons").to_pylist()[0], session.table("production_summaries")
    ),
    stage_comparison.answer_of,
)
CHANGED = Kind(
    "changed",
    log_pairs.change_rows.produces,
    lambda *_: None,
    lambda _, table: log_pairs.answer_of(table),
)


class LogFiles(NamedTuple):
    """Input files of ``Session.compare``, under the names of its parameters.

    ``requests``, ``baseline``: paths, or a table in memory.
    """

    requests: Any
    baseline: Any = None
    log_format: str = "auto"
    columns: Mapping[str, str] | None = None
    steps: Any = ()
    metrics: Any = ()
    kernels: Any = ()

    def tables(self) -> dict[str, pa.Table]:
        """Return the tables of the log by name, with engine steps, metrics and kernels."""
        return self._read(self.requests, self.steps, self.metrics, self.kernels)

    def earlier_tables(self) -> dict[str, pa.Table]:
        """Return the tables of the baseline by name."""
        return self._read(self.baseline)

    def _read(self, requests: Any, *other_paths: Any) -> dict[str, pa.Table]:
        if not is_table(requests):
            return read_logs(requests, self.log_format, self.columns, *other_paths)
        table = pa.Table.from_pylist(requests) if isinstance(requests, list) else requests
        return read_table(table, self.columns, *other_paths)


class Comparison:
    """A production log and what it is compared with: a view of the tables that the graph makes of them.

    >>> import kernelsight as ks
    >>> rows = [{"arrival_s": i / 4, "prompt_tokens": 64 + i, "output_tokens": 9, "e2e_ms": 40.0} for i in range(120)]
    >>> compared = ks.compare(requests=rows, deployment={"model": "qwen3-0.6b", "gpu": "l4"})
    >>> compared.summary["requests"], compared.table("prediction_vs_production").num_rows
    (120, 120)
    >>> slower = [{**row, "e2e_ms": 50.0 + i % 3} for i, row in enumerate(rows)]
    >>> ks.compare(requests=slower, baseline=rows).summary["verdict"].split(";")[0]
    'mean E2E is 27.5% longer than before (51 ms, before 40 ms)'
    """

    def __init__(self, session: Session, tables: Mapping[str, pa.Table], question: Question, kind: Kind) -> None:
        self._session, self._kind, self._logs = session, kind, list(tables)
        session.give("comparisons", [question.as_row(kind.name)])
        for name, table in tables.items():
            session.give(name, table, trusted=True)
        self.log: Any = kind.read(session, question)

    @classmethod
    def of(
        cls,
        session: Session,
        files: LogFiles,
        deployment: Mapping[str, Any] | None,
        flags: Mapping[str, Any],
        *,
        stated: Mapping[str, Any] | None,
        **how: Any,
    ) -> Comparison:
        """Return the comparison of logs with a deployment or a baseline; arguments are those of ``Session.compare``.

        ``session``: a session of its own, which it keeps. InvalidInput: an argument out of range, a flag that is given
        twice, or logs that cannot be read.
        """
        deployment_flags = mapping_of("deployment", deployment, "{'model': 'qwen3-32b', 'gpu': 'h100_sxm'}")
        repeated = sorted({*flags} & {*deployment_flags})
        if repeated:
            raise InvalidInput(f"{repeated[0]} is an argument, and in deployment too; give it once.")
        load = mapping_of("stated", stated, "{'request_rate': 4.0}") or None
        asked = asked_values("comparisons", how)
        tables = files.tables()
        question = Question(deployment_flags | {**flags}, load, **{name: asked[name] for name in OPTIONAL})
        if files.baseline is not None:
            both, ids = log_pairs.merged_logs(tables, files.earlier_tables())
            return cls(session, both, question._replace(log_ids=ids[0], baseline=ids[1]), CHANGED)
        has_stages_alone = not tables["production_requests"].num_rows and tables["production_summaries"].num_rows
        return cls(session, tables, question, STAGES if has_stages_alone else REQUESTS)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The comparison as ``kernelsight compare --format json`` prints it."""
        return self._kind.answer(self.log, self._session.table)

    def table(self, name: str) -> pa.Table:
        """Return a table of the comparison, or of the log; InvalidInput for another name."""
        if name in self._logs:
            return self._session.table(name)
        if name not in self._kind.tables:
            has = ", ".join((*self._kind.tables, *self._logs))
            raise InvalidInput(f"this comparison has no table {name!r}; it has {has}.")
        return self._session.table(name).drop_columns(["comparison_id"])

    def save(self, path: str | Path) -> None:
        """Write the comparison and the log to a DuckDB file."""
        self._session.save(path, ["comparisons", *self._kind.tables, *self._logs])

    def sql(self, query: str) -> Any:
        """Return a DuckDB relation over the tables of the comparison and of the log."""
        return self._session.sql(query)

    def page(self) -> Page:
        """Return what ``compare`` shows, for terminal, HTML and JSON."""
        from kernelsight.present.pages.compare import comparison_page

        return comparison_page(self.summary, self._session if self._kind is REQUESTS else None)

    def __repr__(self) -> str:
        return visible(f"Comparison({self.summary['verdict']})")

    def _repr_html_(self) -> str:
        return notebook(self.page())
