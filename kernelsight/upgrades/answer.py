"""``Upgrade``, the answer of ``upgrade``: a sentence, kernels, settings and metrics before and after, and flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.catalog.tables import facts
from kernelsight.errors import InvalidInput, LimitPassed
from kernelsight.escape import visible
from kernelsight.kernels.engine_versions import version_key
from kernelsight.number_format import deviation, interval, number
from kernelsight.present.show import notebook
from kernelsight.upgrades.question import Limit, Question
from kernelsight.upgrades.upgrade_tables import TABLES

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session
    from kernelsight.present.page import Page

NAME = "upgrade"
# columns of the tables that the answer names otherwise, and those that it leaves out
RENAMED = {"kernel_from": "from", "kernel_to": "to", "value_from": "from", "value_to": "to"}
OWN = ("question_id", "log_sd")


class Upgrade:
    """What another version of an engine changes for a deployment and its load: a view of the tables of a question.

    >>> import kernelsight as ks
    >>> load = {"request_rate": 4, "num_prompts": 16, "input_len": 256, "output_len": 16}
    >>> found = ks.upgrade(engine_from="vllm:0.24", engine_to="vllm:0.31", model="qwen3-0.6b", gpu="h100_sxm", **load)
    >>> found.metrics["tpot_p50_ms"]["low"] <= found.metrics["tpot_p50_ms"]["change"]
    True
    """

    def __init__(self, session: Session, question: Question) -> None:
        self._session, self._question = session, question
        session.give("upgrade_questions", [question.as_row(NAME)])
        session.compute(*TABLES)

    @property
    def kernels(self) -> list[dict[str, Any]]:
        """Time of each kernel family in a step before and after, ms, the largest change of each phase first."""
        return self._rows("kernels")

    @property
    def settings(self) -> list[dict[str, Any]]:
        """Defaults and host times that change: name, from, to."""
        return self._rows("settings")

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """By metric: from, to, change and the 90 % interval of the change (low, high), in the metric's unit."""
        return {row.pop("metric"): row for row in self._rows("metrics")}

    @property
    def flags(self) -> list[dict[str, Any]]:
        """Options of the engine that undo what became slower, those that undo most first."""
        return self._rows("flags")

    @property
    def answer(self) -> str:
        """The answer as a sentence: TPOT and TTFT with intervals, the kernel that changes most, the flags for it."""
        metrics = {name: row for name, row in self.metrics.items() if row["change"] is not None}
        parts = [
            f"{title} {number(row['from'])} to {number(row['to'])} ms ({_percent(row)}, 90 % of {_span(row)})"
            for title, name in (("TPOT p50", "tpot_p50_ms"), ("TTFT p50", "ttft_p50_ms"))
            if (row := metrics.get(name))
        ]
        ends = f"{self._question.engine_from} to {self._question.engine_to}"
        sentence = f"{ends}: {'; '.join(parts) if parts else 'nothing was served'}."
        most = max(self.kernels, key=lambda row: abs(row["ms_per_step_to"] - row["ms_per_step_from"]), default=None)
        if most and most["ms_per_step_to"] != most["ms_per_step_from"]:
            change = number(most["ms_per_step_to"] - most["ms_per_step_from"])
            swap = f" ({most['from']} to {most['to']})" if most["from"] != most["to"] else ""
            sentence += f" Most of it: {most['family']}{swap}, {change} ms a {most['phase']} step."
        for row in self.kernels:
            if row["from"] != row["to"] and row["ms_per_step_from"] == row["ms_per_step_to"]:
                sentence += f" {row['family']} goes from {row['from']} to {row['to']}, whose times no sweep holds."
        sentence += "".join(f" {row['flag']} undoes it: {row['undoes']}." for row in self.flags[:1])
        return " ".join([sentence, *filter(None, map(_beyond_sweeps, self._question.sides))])

    def check(self, limits: Sequence[Limit]) -> None:
        """Raise LimitPassed where a metric changes beyond one of the limits."""
        rows = [(limit, self.metrics[limit.metric]) for limit in limits]
        changes = [
            f"{limit.metric} changes by {_percent(row)}, beyond {deviation(limit.share)}"
            for limit, row in rows
            if limit.is_passed_by(row["change"], row["from"])
        ]
        if changes:
            raise LimitPassed(f"{'; '.join(changes)}.")

    def as_dict(self) -> dict[str, Any]:
        """Return all of the answer as a dict, as ``upgrade --format json`` prints it."""
        parts = {name: getattr(self, name) for name in ("kernels", "settings", "metrics", "flags")}
        return {"answer": self.answer, "from": self._question.engine_from, "to": self._question.engine_to, **parts}

    def table(self, name: str) -> pa.Table:
        """Return a table of the question; InvalidInput: another name."""
        if name not in ("upgrade_questions", *TABLES):
            raise InvalidInput(f"an upgrade has no table {name!r}; it has upgrade_questions, {', '.join(TABLES)}.")
        return self._session.table(name)

    def page(self) -> Page:
        """Return what ``upgrade`` shows, for terminal, HTML and JSON."""
        from kernelsight.present.pages.upgrade import upgrade_page

        return upgrade_page(self.as_dict())

    def save(self, path: str | Path) -> None:
        """Write the question, its answer and all given tables to a DuckDB file."""
        self._session.save(path, [*sorted(self._session.given()), *TABLES])

    def _rows(self, name: str) -> list[dict[str, Any]]:
        rows = self._session.table(f"upgrade_{name}").to_pylist()
        return [{RENAMED.get(name, name): value for name, value in row.items() if name not in OWN} for row in rows]

    def __repr__(self) -> str:
        return visible(f"Upgrade({self.answer})")

    def _repr_html_(self) -> str:
        return notebook(self.page())


def _beyond_sweeps(flags: Mapping[str, Any]) -> str:
    """Return a sentence on an engine's version that is later than every one that was measured; "": it is not."""
    swept = {row["engine"]: row["swept_to"] for row in facts("engine_versions").to_pylist()}[flags["engine"]]
    if not swept or version_key(flags["engine_version"]) <= version_key(swept):
        return ""
    version = f"{flags['engine']} {flags['engine_version']}"
    return f"{version} is later than any measured version, {swept}: its kernels are taken as that version's."


def _percent(row: Mapping[str, Any]) -> str:
    return deviation(row["change"] / row["from"]) if row["from"] else "from 0"


def _span(row: Mapping[str, Any]) -> str:
    if not row["from"]:
        return interval(row["low"], row["high"])
    return f"{deviation(row['low'] / row['from'])} to {deviation(row['high'] / row['from'])}"
