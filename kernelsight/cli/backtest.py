"""`kernelsight backtest`: simulates measured end-to-end runs and scores the predictions; its page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelsight import laboratory
from kernelsight.cli.options import open_session
from kernelsight.errors import InvalidInput
from kernelsight.evaluation.runs.backtests import TABLES, check_options, flat_rows, scopes
from kernelsight.evaluation.runs.measured_runs import read_runs
from kernelsight.evaluation.runs.plots import backtest_figures
from kernelsight.evaluation.runs.run_scores import GROUP, METRICS
from kernelsight.files.own import own_json
from kernelsight.number_format import deviation, percent
from kernelsight.present.output import PAGE_ENDINGS, as_csv, as_json, check_ending, note, write_table, write_text
from kernelsight.present.page import Figure, Page, Table
from kernelsight.present.progress import Waiting
from kernelsight.present.show import HTML, show


def backtest_page(answer: Mapping[str, Any], figures: Callable[[], Sequence[Figure]] = tuple) -> Page:
    """Return the page of a backtest; ``answer`` as printed by `backtest --format json`."""
    of_published = laboratory.part("cli.backtest_tables", "").tables(answer) if laboratory.is_here() else []
    tables = [
        *(_campaigns(answer), _models_and_axes(answer), *of_published[:1]),
        Table(rows=[line(name_of(group), group) for group in answer["groups"]]),
        *(_disaggregated(answer), *_scored_separately(answer), *of_published[1:]),
    ]
    return Page(
        f"{answer['runs']:,} runs replayed and scored",
        answer,
        sentences=_head(answer),
        figures=figures,
        tables=tables,
    )


def _head(answer: Mapping[str, Any]) -> list[str]:
    """Return the line on runs that were read and replayed, and the legend of scores."""
    partly = answer["partly_measured"]
    lacking = f", {partly:,} lack TTFT, TPOT or lengths and are scored by campaign alone" if partly else ""
    repeat = "of these repeat the measurement of a scored run and are not fitted on"
    repeated = f" ({answer['repeated']} {repeat})" if "repeated" in answer else ""
    return [
        f"{answer['read']:,} rows read, {answer['runs']:,} replayed; {answer['fitted_on']:,} of them (SHA-256 of the "
        f"id modulo 5 is 0) are for fitting and not scored{repeated}, "
        f"{answer['stated_again']} state a scored measurement again{lacking}; tier "
        f"{answer['tier']}, host constants {answer['constants']}",
        "median APE / MAPE, 90th percentile, median signed error",
    ]


def _campaigns(answer: Mapping[str, Any]) -> Table:
    """Return a table of scores by campaign and metric; none for runs without campaigns."""
    campaigns = answer["campaigns"]
    if list(campaigns) == ["given"]:
        return Table()
    constants = "host constants of the other campaigns" if "left_out_constants" in answer else "host constants as above"
    rows = [
        {
            "campaign": campaign,
            "metric": metric,
            "n": score["n"],
            "median / mean, 90th percentile, median error": errors_of(score),
        }
        | {"in 90 % interval": percent(score["coverage_90"])}
        for campaign, metrics in campaigns.items()
        for metric, score in metrics.items()
    ]
    return Table(f"by campaign, {constants}:", rows)


def _models_and_axes(answer: Mapping[str, Any]) -> Table:
    """Return scores of all runs, of dense and MoE models, and by axes such as engine and GPU."""
    rows = [line("all", answer), line("dense", answer["dense"]), line("mixture of experts", answer["moe"])]
    rows += [line(f"{kind}, plausible only", scores) for kind, scores in answer.get("without_signs", {}).items()]
    for axis, groups in answer["by"].items():
        if axis != "length":
            words = "least certain:" if axis == "weakest" else axis
            rows += [line(f"{words} {group[axis]}", group) for group in groups]
    return Table(rows=rows)


def _disaggregated(answer: Mapping[str, Any]) -> Table:
    """Return scores of runs with P/D disaggregation."""
    report = answer["disaggregated"]
    if not report["ttft"]["n"]:
        return Table()
    rows = [line("all", report), *(line(name_of(group), group) for group in report["groups"])]
    return Table("disaggregated prefill and decode, not fitted on (not included above):", rows)


def _scored_separately(answer: Mapping[str, Any]) -> list[Table]:
    """Return scores of further runs that are not in the totals, with the reason."""
    return [
        Table(
            f"{report['reason']}, not fitted on (not included above):",
            [line("all", report), *(line(name_of(group), group) for group in report["groups"])],
        )
        for report in answer["separate"]
    ]


def line(scope: str, scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a scope: number of runs, and the errors of each metric."""
    return {"": scope, "n": scores["ttft"]["n"], **{metric: errors_of(scores[metric]) for metric in METRICS}}


def name_of(group: Mapping[str, Any]) -> str:
    return " ".join(str(group[name] or "-") for name in GROUP)


def errors_of(score: Mapping[str, Any]) -> str:
    """Return a score as median / MAPE, p90 and signed median error, in percent."""
    if not score["n"]:
        return ""
    median, mean = (percent(score[name], 1) for name in ("median_ape", "mape"))
    return f"{median} / {mean}  p90 {percent(score['p90_ape'])}  {deviation(score['median_error'], 0)}"


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
    plots = laboratory.part("cli.backtest_plot", "--plot") if arguments.plot else None
    picture = plots.check_picture(arguments.plot) if plots else None
    levels = tuple(dict.fromkeys(arguments.constants.split(",")))
    check_options(levels, arguments.against)
    runs = read_runs(*arguments.runs)
    if arguments.sample is not None:
        sampling = laboratory.part("runs.run_classes", "--sample")
        runs = runs._replace(table=runs.table.take(sampling.spread_runs(runs.table.to_pylist(), arguments.sample)))
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
        with Waiting("simulating") as session.report:
            session.compute(*TABLES)
        answer = own_json(session.table("backtest_reports")["report"][0].as_py())
        rows = [own_json(text) for text in session.table("replayed_runs")["run"].to_pylist()]
        if target and target.suffix == ".duckdb":
            session.save(target, [*sorted(session.given()), *TABLES])
    if plots:
        plots.draw(rows, answer, picture)
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
