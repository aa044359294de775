"""Questions for highest rates: rows of ``rate_questions`` from a grid, and the answers as rows of that grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.dataflow.progress import Report
from kernelsight.errors import KernelSightError
from kernelsight.files.own import own_json
from kernelsight.scenario.corrections import give_corrections
from kernelsight.scenario.launch.deployments import with_launch_line
from kernelsight.scenario.launch.lines import LaunchLine
from kernelsight.scenario.objectives import COSTS, PRICE, objective_rows, slo_of
from kernelsight.scenario.plan import Plan, flag_columns
from kernelsight.scenario.stated_flags import object_text, read_flags
from kernelsight.sweeps.rate_search import FULL

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session

TABLES = ("found_rates", "rate_statistics")


class RateGrid(NamedTuple):
    """The shared part of a grid's questions: objectives, and the relative tolerance of the searched rates."""

    slo: Mapping[str, float]
    goodput: Mapping[str, float]
    tolerance: float = FULL.tolerance
    correction: str | None = None

    @property
    def corrections_file(self) -> Path | None:
        """The file of the corrections, None where they were given as a table."""
        return None if self.correction in (None, "table") else Path(str(self.correction))


def question_of(row: Mapping[str, Any]) -> tuple[dict[str, Any], RateGrid]:
    """Return the flags of a row of ``rate_questions``, and the part that it shares with others.

    >>> slo = [{"statistic": "ttft_p95_ms", "most_ms": 400.0}]
    >>> question_of({"question_id": "a", "flags": '{"gpu": "l4"}', "slo": slo, "tolerance": 0.05})[1].tolerance
    0.05
    """
    flags, goodput = (read_flags(row, "rate_questions", name) for name in ("flags", "goodput"))
    tolerance = FULL.tolerance if row.get("tolerance") is None else row["tolerance"]
    return flags, RateGrid(slo_of(row["slo"]), goodput, tolerance, row.get("correction"))


def question_rows(rows: Sequence[Mapping[str, Any]], grid: RateGrid) -> list[dict[str, Any]]:
    """Return the rows of ``rate_questions`` of a grid; launch lines become flags."""
    shared = {"slo": objective_rows(grid.slo), "goodput": object_text(grid.goodput) if grid.goodput else None}
    shared |= {"tolerance": grid.tolerance, "correction": grid.correction}
    questions, lines = [], dict[tuple[str, bool], LaunchLine]()
    for number, row in enumerate(rows, start=1):
        try:
            flags = with_launch_line(row, lines)
        except KernelSightError as error:
            raise type(error)(f"row {number} of the grid: {error}") from None
        questions.append({"question_id": f"row {number}", "flags": object_text(flags), **shared})
    return questions


def ask_rates(
    session: Session,
    rows: Sequence[Mapping[str, Any]],
    slo: Mapping[str, float],
    *,
    goodput: Mapping[str, float] | None = None,
    tolerance: float = FULL.tolerance,
    correction: str | Path | pa.Table | None = None,
    report: Report | None = None,
) -> Session:
    """Answer the questions of a grid in a fork, and return it, with their tables; ``correction``: a file or a table."""
    correction_name = None if correction is None else str(correction) if isinstance(correction, str | Path) else "table"
    questions = question_rows(rows, RateGrid(slo, goodput or {}, tolerance, correction_name))
    fork = session.fork()
    fork.report = report
    if correction is not None:
        give_corrections(fork, correction)
    fork.give("rate_questions", questions)
    fork.compute(*TABLES)
    return fork


def find_rates(session: Session, rows: Sequence[Mapping[str, Any]], slo: Mapping[str, float], **how: Any) -> pa.Table:
    """Return each row's flags, its highest steady rate (requests/s), and its ``scenario_summary`` at that rate.

    ``max_request_rate``: at it, a run of ten times ``num_prompts`` keeps every objective of ``slo`` (largest values
    of latency statistics) with 95 % confidence; null where no rate does, or the deployment cannot run, see ``status``.
    ``rate_low``, ``rate_high``: the range in which 90 % of single runs have their highest rate; ``rate_if_slow``,
    ``rate_if_fast``: the rate with kernels and host at either end of their 90 % intervals; 0: none down to 0.3 of the
    rate. ``steady``: a horizon of 20 mean end-to-end times, without drift. ``num_prompts`` becomes the requests of one
    seed's run, at least 1,000 after its warm-up. Latencies are those of all seeds, without warm-up; other columns are
    those of the row's own seed. ``how``: as for ``ask_rates``. InvalidInput: rows with a rate, a concurrency or a
    trace, and rows that ``sweep`` rejects.

    >>> from kernelsight.session import connect
    >>> row = {"model": "qwen3-0.6b", "gpu": "l4", "input_len": 256, "output_len": 8}
    >>> with connect() as session:
    ...     rate = find_rates(session, [row], {"ttft_p95_ms": 200.0}).to_pylist()[0]
    >>> rate["steady"], rate["ttft_p95_ms"] <= 200.0, rate["rate_low"] <= rate["max_request_rate"]
    (True, True, True)
    """
    with ask_rates(session, rows, slo, **how) as fork:
        return rates_of_grid(fork)


def rates_of_grid(session: Session) -> pa.Table:
    """Return ``found_rates`` as rows of the grid: with columns of flags and statistics that any row has."""
    import pyarrow as pa

    rates = session.table("found_rates")
    flags = [own_json(text) for text in rates["flags"].to_pylist()]
    scenarios = [{"scenario_id": name} for name in rates["scenario_id"].to_pylist()]
    flag_table = flag_columns(session, Plan(flags, {}, scenarios, rates[PRICE].to_pylist(), [None] * len(flags)))
    summary = session.graph.known("scenario_summary").column_names
    names = [*summary[:2], *(name for name in flag_table.column_names if name not in summary)]
    names += ["rate_low", "rate_high", "rate_if_slow", "rate_if_fast", "steady", *summary[2:]]
    renamed = {"request_rate": "max_request_rate"}
    rate_columns = {*rates.column_names, *renamed} - {"num_prompts"}
    columns = {
        renamed.get(name, name): rates[renamed.get(name, name)] if name in rate_columns else flag_table[name]
        for name in names
    }
    statistics: dict[str, dict[str, float | None]] = {}
    for row in session.table("rate_statistics").to_pylist():
        if row["statistic"] not in summary:
            statistics.setdefault(row["statistic"], {})[row["question_id"]] = row["value_ms"]
    for name, values in statistics.items():
        columns[name] = pa.array([values.get(question) for question in rates["question_id"].to_pylist()], pa.float64())
    for name in (*COSTS.values(), "meets_slo") if PRICE in columns else ("meets_slo",):
        columns[name] = rates[name]
    return pa.table(columns).combine_chunks()
