"""`kernelsight backtest`: simulates measured end-to-end runs and scores the predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelsight.cli.backtest_page import backtest_page
from kernelsight.cli.options import open_session
from kernelsight.errors import InvalidInput
from kernelsight.evaluation.runs.backtests import TABLES, check_options, flat_rows, scopes
from kernelsight.evaluation.runs.campaigns import spread_runs
from kernelsight.evaluation.runs.measured_runs import read_runs
from kernelsight.evaluation.runs.plots import backtest_figures, check_picture, draw
from kernelsight.evaluation.runs.run_scores import GROUP, METRICS
from kernelsight.files.own import own_json
from kernelsight.present.output import PAGE_ENDINGS, as_csv, as_json, check_ending, note, write_table, write_text
from kernelsight.present.page import Page
from kernelsight.present.show import HTML, show

SCORE_COLUMNS = (
    "scope",
    *GROUP,
    "n",
    *(f"{metric}_{score}" for metric in METRICS for score in ("median_ape", "mape", "p90_ape", "bias")),
)
NESTED = ("flags", "recipes", "errors", "interval_factors", "compared", "tiers")


def run(arguments: Any) -> None:
    """Replay the measured runs, print the scores, and write the report, plots and tables."""
    target = check_ending(arguments.output, PAGE_ENDINGS)
    picture = check_picture(arguments.plot)
    levels = tuple(dict.fromkeys(arguments.constants.split(",")))
    check_options(levels, arguments.against)
    runs = read_runs(*arguments.runs)
    if arguments.sample is not None:
        runs = runs._replace(table=runs.table.take(spread_runs(runs.table.to_pylist(), arguments.sample)))
    if runs.table.num_rows == 0:
        excluded = "; ".join(f"{count:,}: {reason}" for reason, count in runs.excluded)
        why = f"all {runs.read:,} rows were excluded ({excluded})" if excluded else "it has no rows"
        raise InvalidInput(f"{', '.join(arguments.runs)} has no run that can be replayed: {why}.")
    question = {
        "backtest_id": "asked",
        "tier": arguments.tier,
        "constants": list(levels),
        "leave_out": arguments.leave_out,
        "against": arguments.against,
        "rows_read": runs.read,
        "excluded": [{"reason": reason, "n": count} for reason, count in runs.excluded],
    }
    with open_session(arguments) as session:
        session.progress = None
        session.give("measured_runs", runs.table, trusted=True)
        session.give("backtests", [question])
        session.compute(*TABLES)
        answer = own_json(session.table("backtest_reports")["report"][0].as_py())
        rows = [own_json(text) for text in session.table("replayed_runs")["run"].to_pylist()]
        if target and target.suffix == ".duckdb":
            session.save(target, [*sorted(session.given()), *TABLES])
    if picture:
        draw(rows, answer, picture)
    if target and target.suffix == ".json":
        write_text(as_json(answer) + "\n", target)
    elif target and target.suffix not in (".duckdb", HTML):
        import pyarrow as pa

        write_table(pa.Table.from_pylist(flat_rows(rows, NESTED)), target)

    def page() -> Page:
        return backtest_page(answer, lambda: backtest_figures(rows, answer))

    show(page, arguments.format, target, lambda: as_csv(score_rows(answer), list(SCORE_COLUMNS)))
    if arguments.format == "table":
        _note(answer)


def score_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one row per scope and group, with a column per metric and score."""
    rows = []
    for scope, names, metric_scores in scopes(answer):
        spread = {
            f"{metric}_{score_name}": value
            for metric in METRICS
            for score_name, value in metric_scores[metric].items()
            if score_name != "n"
        }
        rows.append({"scope": scope, **names, "n": metric_scores["ttft"]["n"], **spread})
    return rows


def _note(answer: Mapping[str, Any]) -> None:
    """Note runs that were excluded or not simulated, and what is assumed."""
    for excluded in answer["excluded"]:
        note(f"excluded {excluded['n']:,}: {excluded['reason']}")
    for sentence in answer.get("assumed", ()):
        note(f"assumed: {sentence}")
    for fault in answer["not_simulated"]:
        note(f"not simulated {fault['n']:,}: {fault['reason']}")
