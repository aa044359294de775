"""``Upgrade``, the answer of ``upgrade``: a sentence, kernels, settings and metrics before and after, and flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput
from kernelsight.escape import visible
from kernelsight.kernels.engine_versions import version_key
from kernelsight.number_format import deviation, interval, number
from kernelsight.present.show import notebook
from kernelsight.scenario.flags import FLAGS
from kernelsight.upgrades.question import NEWEST_TAGS, Limit, Question, newest_swept, stated
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
        changed = [
            f"{FLAGS[name].options[0]} {stated(before)} to {stated(after)}"
            for name, before, after in self._question.changed
        ]
        sentence += f" Changed: {', '.join(changed)}." if changed else ""
        most = max(self.kernels, key=lambda row: abs(row["ms_per_step_to"] - row["ms_per_step_from"]), default=None)
        if most and most["ms_per_step_to"] != most["ms_per_step_from"]:
            change = number(most["ms_per_step_to"] - most["ms_per_step_from"])
            swap = f" ({most['from']} to {most['to']})" if most["from"] != most["to"] else ""
            sentence += f" Most of it: {most['family']}{swap}, {change} ms a {most['phase']} step."
        for row in self.kernels:
            if row["from"] != row["to"] and row["ms_per_step_from"] == row["ms_per_step_to"]:
                sentence += f" {row['family']} goes from {row['from']} to {row['to']}, whose times no sweep holds."
        sentence += "".join(f" {row['flag']} undoes it: {row['undoes']}." for row in self.flags[: 3 if changed else 1])
        sides = zip((self._question.engine_from, self._question.engine_to), self._question.sides, strict=True)
        return " ".join([sentence, *dict.fromkeys(filter(None, (_version_taken(*side) for side in sides)))])

    def passed(self, limits: Sequence[Limit]) -> list[str]:
        """Return a sentence for each limit beyond which its metric changes."""
        rows = [(limit, self.metrics[limit.metric]) for limit in limits]
        return [
            f"{limit.metric} changes by {_percent(row)} (90 % of {_span(row)}), "
            f"{'surely ' * limit.sure}beyond {deviation(limit.share)}"
            for limit, row in rows
            if limit.is_passed_by(row)
        ]

    def as_dict(self, limits: Sequence[Limit] = ()) -> dict[str, Any]:
        """Return all of the answer as a dict, as ``upgrade --format json`` prints it."""
        parts = {name: getattr(self, name) for name in ("kernels", "settings", "metrics", "flags")}
        ends = {"from": self._question.engine_from, "to": self._question.engine_to}
        return {"answer": self.answer, **ends, "failed": self.passed(limits), **parts}

    def table(self, name: str) -> pa.Table:
        """Return a table of the question; InvalidInput: another name."""
        if name not in ("upgrade_questions", *TABLES):
            raise InvalidInput(f"an upgrade has no table {name!r}; it has upgrade_questions, {', '.join(TABLES)}.")
        return self._session.table(name)

    def page(self, limits: Sequence[Limit] = ()) -> Page:
        """Return what ``upgrade`` shows, for terminal, HTML and JSON, with the limits that are passed."""
        from kernelsight.present.pages.upgrade import upgrade_page

        return upgrade_page(self.as_dict(limits))

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


def _version_taken(stated: str, flags: Mapping[str, Any]) -> str:
    """Return a sentence on a version that is stated without a number, or later than every measured one; "": neither."""
    swept, version = newest_swept(flags["engine"]), f"{flags['engine']} {flags['engine_version']}"
    if stated.endswith(NEWEST_TAGS):
        return f"{stated} is taken as {version}, the newest measured version."
    if not swept or version_key(flags["engine_version"]) <= version_key(swept):
        return ""
    return f"{version} is later than any measured version, {swept}: its kernels are taken as that version's."


def _percent(row: Mapping[str, Any]) -> str:
    return deviation(row["change"] / row["from"]) if row["from"] else "from 0"


def _span(row: Mapping[str, Any]) -> str:
    if not row["from"]:
        return interval(row["low"], row["high"])
    return f"{deviation(row['low'] / row['from'])} to {deviation(row['high'] / row['from'])}"
