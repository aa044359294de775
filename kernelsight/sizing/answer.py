"""``Sizing``, the answer of ``size``: a sentence, the ranked deployments, their evidence, and the launch command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.dataflow.progress import Report
from kernelsight.errors import InvalidInput
from kernelsight.escape import visible
from kernelsight.files.own import own_json
from kernelsight.present.show import lines_of, notebook
from kernelsight.scenario.argument_checks import values_of
from kernelsight.scenario.corrections import give_corrections
from kernelsight.scenario.objectives import interval_columns, stated_slo
from kernelsight.sizing.question import Question, changed, question_from
from kernelsight.sizing.sentences import ALWAYS, SHORT, is_flag
from kernelsight.sizing.size_tables import TABLES

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session
    from kernelsight.present.page import Page

NAME = "sized"
# table of a saved file with the rows as they are printed
PRINTED = "sizing"
# columns that a row has only where the question has a daily course
OF_A_DAY = ("mean_instances", "cost_per_day")
ENDS = ("", "_low", "_high", "_if_slow", "_if_fast")
SHOWN = (
    *(f"{unit}{end}" for unit in ("users", "rate") for end in ENDS),
    *"search load probability instances gpus mean_instances price_per_hour cost_per_day electricity_per_hour".split(),
    *("cost_per_million_tokens", "limit"),
)
# of the answer as a dict, in this order
PARTS = (
    *"question axes answer chosen rows confidences left_out complete not_tried decides cliff day evidence".split(),
    "launch",
)


class Sizing:
    """The cheapest deployments that serve a rate within objectives: a view of the tables of a size question.

    >>> import kernelsight as ks
    >>> load = {"input_len": 256, "output_len": 16, "max_gpus": 1, "prices": {"l4": 0.7}}
    >>> best = ks.size(model="qwen3-0.6b", gpus=["l4"], rate=20, slo={"ttft_p95_ms": 400.0}, **load).chosen
    >>> best["gpu"], best["instances"] * best["rate"] >= 20, best["price_per_hour"] > 0
    ('l4', True, True)
    """

    def __init__(self, session: Session, question: Question, changes: Sequence[str] = ()) -> None:
        self._session, self._changes = session, list(dict.fromkeys(changes))
        rows = [question.as_row(NAME), *(changed(question, change).as_row(change) for change in self._changes)]
        session.give("size_questions", rows)
        session.compute(*TABLES)
        self._answers = {row["question_id"]: row for row in session.table("size_answers").to_pylist()}
        self._answer = self._answers[NAME]

    @classmethod
    def of(
        cls,
        session: Session,
        flags: Mapping[str, Any],
        *,
        gpus: str | Sequence[str],
        slo: Any,
        search: Any = None,
        correction: Any = None,
        what_if: str | Sequence[str] = (),
        report: Report | None = None,
        **arguments: Any,
    ) -> Sizing:
        """Size a deployment in a fork of the session; the arguments are those of ``Session.size``."""
        names = gpus.split(",") if isinstance(gpus, str) else gpus
        values = {"gpus": names, "slo": stated_slo(slo), "search": values_of(search), "correction": correction}
        question = question_from(session, flags, **values, **arguments)
        changes = [what_if] if isinstance(what_if, str) else what_if
        fork = session.fork()
        fork.report = report
        if correction is not None:
            give_corrections(fork, correction)
        return cls(fork, question, changes)

    @property
    def answer(self) -> str:
        """The answer as a sentence."""
        return self._answer["answer"]

    @property
    def chosen(self) -> dict[str, Any] | None:
        """The cheapest row; None where no deployment keeps the objectives."""
        return self.rows[0] if self.rows else None

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Deployments that keep the objectives, the cheapest first; rates are of one instance, requests/s."""
        return self._rows_of(NAME)

    @cached_property
    def what_if(self) -> list[dict[str, Any]]:
        """The answers to the changed questions: change, answer and rows."""
        return [
            {"change": change, "answer": self._answers[change]["answer"], "rows": self._rows_of(change)}
            for change in self._changes
        ]

    def _of(self, table: str, question: str = NAME) -> list[dict[str, Any]]:
        """Return the rows of a table that belong to a question."""
        return [row for row in self._session.table(table).to_pylist() if row["question_id"] == question]

    def _rows_of(self, question: str) -> list[dict[str, Any]]:
        statistics: dict[int, dict[str, float | None]] = {}
        for row in self._of("size_statistics", question):
            low, high = interval_columns(row["statistic"])
            figures = {row["statistic"]: row["value_ms"], low: row["low_ms"], high: row["high_ms"]}
            statistics.setdefault(row["place"], {}).update(figures)
        unit = self._answers[question]["unit"]
        return [_printed(row, statistics[row["place"]], unit) for row in self._of("sized_deployments", question)]

    @cached_property
    def left_out(self) -> list[dict[str, Any]]:
        """Deployments that cannot run, cannot be cheaper, or keep no rate, and why.

        ``bound``: the least that one left out by its cost can cost at any confidence; None for other reasons.
        """
        return [row for row in self._unsized if row["reason"] is not None]

    @property
    def complete(self) -> bool:
        """Whether every deployment that may be the cheapest was tried; else ``not_tried`` lists the others."""
        return self._answer["complete"]

    @cached_property
    def not_tried(self) -> list[dict[str, Any]]:
        """Deployments that the search did not reach before its end; ``bound``: the least that one can cost."""
        return [_without_columns(row, ("reason",)) for row in self._unsized if row["reason"] is None]

    @cached_property
    def _unsized(self) -> list[dict[str, Any]]:
        rows = self._of("unsized_deployments")
        return [{**_flag_columns(row), "reason": row["reason"], "bound": row["bound"]} for row in rows]

    @property
    def decides(self) -> str | None:
        """The measurements that would decide which of the first two is cheaper; None where it is clear."""
        return self._answer["decides"]

    @property
    def cliff(self) -> str | None:
        """A limit of the chosen deployment that a neighbouring setting removes; None: there is none."""
        return self._answer["cliff"]

    @cached_property
    def day(self) -> dict[str, Any] | None:
        """The hours of the chosen deployment with their instances, starts and costs; None: without --daily-peak."""
        hours = self._of("size_hours")
        if not hours:
            return None
        return {
            "unit": self._answer["unit"],
            "hours": [_without_columns(hour, ("question_id",)) for hour in hours],
            "startup_s": self._answer["startup_s"],
            "startup": self._answer["startup"],
            "mean_instances": self.rows[0]["mean_instances"],
            "cost_per_day": self._answer["cost_per_day"],
            "cost_per_day_at_the_peak": self._answer["cost_per_day_at_the_peak"],
        }

    @cached_property
    def evidence(self) -> list[dict[str, Any]]:
        """The evidence of each component of the chosen deployment's steps, as ``simulate`` reports it."""
        rows = [row for row in self._of("size_evidence") if row["place"] == 1]
        constant = ("question_id", "place", *(("pool",) if {row["pool"] for row in rows} == {"decode"} else ()))
        return [_without_columns(row, constant) for row in rows]

    @property
    def launch(self) -> list[str]:
        """The commands that launch one instance of the chosen deployment."""
        return self._answer["launch"]

    @property
    def question(self) -> dict[str, Any]:
        """The question as asked: its row of ``size_questions``, without what it leaves out."""
        (row,) = self._of("size_questions")
        row |= {"flags": own_json(row["flags"]), "search": own_json(row["search"] or "null")}
        return {name: value for name, value in row.items() if value is not None and name != "question_id"}

    @property
    def axes(self) -> dict[str, list[str]]:
        """The values of each flag that are searched."""
        return {row["flag"]: row["values"] for row in self._of("size_axes")}

    @cached_property
    def confidences(self) -> list[dict[str, Any]]:
        """The best of the rows at each confidence: its ``place`` among them, instances, GPUs and price."""
        return [_without_columns(row, ("question_id",)) for row in self._of("size_confidences")]

    def as_dict(self) -> dict[str, Any]:
        """Return all of the answer as a dict, as ``size --format json`` prints it."""
        return {name: getattr(self, name) for name in PARTS} | ({"what_if": self.what_if} if self._changes else {})

    def table(self, name: str | None = None) -> pa.Table:
        """Return the rows as an Arrow table, or a table of the question; InvalidInput for another name."""
        import pyarrow as pa

        if name is None:
            return pa.Table.from_pylist(self.rows) if self.rows else pa.table({})
        if name not in ("size_questions", *TABLES):
            raise InvalidInput(f"a sizing has no table {name!r}; it has size_questions, {', '.join(TABLES)}.")
        return self._session.table(name)

    def sql(self, query: str) -> Any:
        """Return a DuckDB relation over the tables of the question."""
        return self._session.sql(query)

    def page(self) -> Page:
        """Return what ``size`` shows, for terminal, HTML and JSON."""
        from kernelsight.present.pages.size import size_page

        return size_page(self.as_dict(), columns_shown(self.rows), SHORT)

    def save(self, path: str | Path) -> None:
        """Write the question, its answer and all given tables to a DuckDB file."""
        names = [*sorted(self._session.given()), *TABLES]
        if self.rows:
            self._session.give(PRINTED, self.table())
            names.append(PRINTED)
        self._session.save(path, names)

    def __repr__(self) -> str:
        return visible(f"Sizing({self.answer})")

    def __str__(self) -> str:
        return "\n".join(lines_of(self.page()))

    def _repr_html_(self) -> str:
        return notebook(self.page())


def _printed(row: Mapping[str, Any], statistics: Mapping[str, Any], unit: str) -> dict[str, Any]:
    """Return a row of ``sized_deployments`` as printed: flags as columns, without columns that its question lacks."""
    unused = {name for name in OF_A_DAY if row[name] is None}
    unused |= {f"users{end}" for end in ENDS} if unit != "users" else {f"rate{end}" for end in ENDS if end}
    figures = _without_columns(
        row, ("question_id", "place", "gpu", "tensor_parallel_size", "flags", "num_prompts", *unused)
    )
    return {**_flag_columns(row), **figures, **statistics, "num_prompts": row["num_prompts"]}


def _flag_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of a row as columns."""
    columns = {name: row[name] for name in ("gpu", "tensor_parallel_size")}
    return columns | own_json(row["flags"])


def _without_columns(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def columns_shown(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns to print, by which people decide: flags in which rows differ, rates, costs, limits."""
    flags = dict.fromkeys(name for row in rows for name in row if name in ALWAYS or is_flag(name))
    differing = [name for name in flags if name in ALWAYS or len({row.get(name) for row in rows}) > 1]
    shown = [name for name in SHOWN if any(row.get(name) is not None for row in rows)]
    return [*differing, *shown, *(["tier"] if len({row["tier"] for row in rows}) > 1 else [])]
