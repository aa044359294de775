"""The page of a backtest: scores by kind, level and group, intervals, sources of error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelsight.evaluation.runs.coverage import METRICS as COVERED
from kernelsight.evaluation.runs.label_coverage import METRICS as LABELLED
from kernelsight.evaluation.runs.run_scores import GROUP, METRICS
from kernelsight.evaluation.runs.subsets import KINDS
from kernelsight.number_format import deviation, number, percent
from kernelsight.present.page import Figure, Page, Table

PEERS = {
    "peer": ", flags as launched",
    "peer_step_tokens": ", tokens of a step, too",
    "peer_nominal": ", nominal lengths",
}


def backtest_page(answer: Mapping[str, Any], figures: Callable[[], Sequence[Figure]] = tuple) -> Page:
    """Return the page of a backtest; ``answer`` as printed by `backtest --format json`."""
    tables = [
        _campaigns(answer),
        _models_and_axes(answer),
        Table("by host constants:", level_lines(answer, _line)),
        *(_flags_and_groups(answer), _basis(answer), _intervals(answer), coverage_table(answer)),
        Table(rows=[_line(_name(group), group) for group in answer["groups"]]),
        *(_implausible(answer), _disaggregated(answer), *_scored_separately(answer), _speculative(answer)),
        *(_error_by_part(answer), _peer(answer)),
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
    return [
        f"{answer['read']:,} rows read, {answer['runs']:,} replayed; {answer['fitted_on']:,} of them (SHA-256 of the "
        f"id modulo 5 is 0) are for fitting and not scored ({answer['repeated']} of these repeat the measurement of a "
        f"scored run and are not fitted on), {answer['stated_again']} state a scored measurement again{lacking}; tier "
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
            "median / mean, 90th percentile, median error": _errors(score),
        }
        | {"in 90 % interval": percent(score["coverage_90"])}
        for campaign, metrics in campaigns.items()
        for metric, score in metrics.items()
    ]
    return Table(f"by campaign, {constants}:", rows)


def _models_and_axes(answer: Mapping[str, Any]) -> Table:
    """Return scores of all runs, of dense and MoE models, and by axes such as engine and GPU."""
    rows = [_line("all", answer), _line("dense", answer["dense"]), _line("mixture of experts", answer["moe"])]
    rows += [_line(f"{kind}, plausible only", scores) for kind, scores in answer.get("without_signs", {}).items()]
    for axis, groups in answer["by"].items():
        if axis != "length":
            words = "least certain:" if axis == "weakest" else axis
            rows += [_line(f"{words} {group[axis]}", group) for group in groups]
    return Table(rows=rows)


def _basis(answer: Mapping[str, Any]) -> Table:
    """Return scores by whether the launch flags (recipes) of a run are published, fitted or assumed."""
    if "by_basis" not in answer:
        return Table()
    basis = answer["by_basis"]
    rows = [
        _line(f"{name.replace('_', ' ')}, {kind}", basis[name][kind])
        for name in ("published", "fitted_or_assumed")
        for kind in ("dense", "moe")
    ]
    return Table(
        "by basis of the launch flags (recipes); recipes that are not published, with the runs that each touches:",
        rows,
        below=", ".join(f"{recipe['recipe']} ({recipe['basis']}) {recipe['scored']}" for recipe in basis["recipes"]),
    )


def _intervals(answer: Mapping[str, Any]) -> Table:
    """Return coverage and width of the 90 % intervals."""
    return Table(
        "90 % intervals, their spread beyond kernels and host fitted on other groups; median p95 / p05, and in "
        "brackets that of one fixed factor a metric that covers as many runs:",
        [{"": "", **dict.fromkeys(COVERED)} | row for row in _interval_rows(answer["levels"])],
    )


def coverage_table(answer: Mapping[str, Any]) -> Table:
    """Return a table of the coverage and width of 90 % intervals by label, with the first level of constants."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in answer["coverage"]:
        line = cells.setdefault((row["label"], row["value"]), {"": f"{row['label']} {row['value']}"})
        line[row["metric"]] = f"{percent(row['coverage_90'], 0)} of {row['n']}, {number(row['width_90'])}"
    rows = [{"": "", **dict.fromkeys(LABELLED, "")} | line for line in cells.values()]
    if rows:
        rows[0][""] = "all"
    return Table(
        "runs within the 90 % interval of a prediction, of all runs with the metric, and its median p95 / p05, by what "
        "is known beforehand:",
        rows,
    )


def _implausible(answer: Mapping[str, Any]) -> Table:
    """Return scores of runs with signs of implausible measurements."""
    rows = [_line(group["sign"], group) for group in answer.get("signs", ())]
    return Table("runs with implausible measurements (included in the scores above):", rows)


def _disaggregated(answer: Mapping[str, Any]) -> Table:
    """Return scores of runs with P/D disaggregation."""
    report = answer["disaggregated"]
    if not report["ttft"]["n"]:
        return Table()
    rows = [_line("all", report), *(_line(_name(group), group) for group in report["groups"])]
    return Table("disaggregated prefill and decode, not fitted on (not included above):", rows)


def _scored_separately(answer: Mapping[str, Any]) -> list[Table]:
    """Return scores of further runs that are not in the totals, with the reason."""
    return [
        Table(
            f"{report['reason']}, not fitted on (not included above):",
            [_line("all", report), *(_line(_name(group), group) for group in report["groups"])],
        )
        for report in answer["separate"]
    ]


def _speculative(answer: Mapping[str, Any]) -> Table:
    """Return scores of runs with and without speculative decoding."""
    report = answer["speculative"]
    if not report["with_drafts"]["ttft"]["n"]:
        return Table()
    rates = report["draft_acceptance_rate"]
    fitted = ", ".join(f"{proposer} {percent(rate)}" for proposer, rate in rates.items())
    rows = []
    for kind in ("with_drafts", "without_drafts"):
        rows += [_line(kind.replace("_", " "), report[kind])]
        rows += [_line(f"- {_name(group)}", group) for group in report[kind]["groups"]]
    return Table(
        "runs with and without speculative decoding, inferred from pairs of TPOTs (not included above); acceptance "
        f"rates fitted on the fitting fifth: {fitted}",
        rows,
    )


def _error_by_part(answer: Mapping[str, Any]) -> Table:
    """Return the error attributed to the parts of TTFT and TPOT."""
    return Table(
        "error by part, as a share of the measured value (+: predicted too short), largest first:",
        _attribution_rows(answer.get("attribution", ())),
    )


def _peer(answer: Mapping[str, Any]) -> Table:
    """Return scores next to AIConfigurator's on the same runs."""
    if "peer" not in answer:
        return Table()
    title = f"compared with AIConfigurator, on the {answer['peer']['n']:,} runs that it predicts:"
    return Table(title, _peer_rows(answer["peer"]))


def _line(scope: str, scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a scope: number of runs, and the errors of each metric."""
    return {"": scope, "n": scores["ttft"]["n"], **{metric: _errors(scores[metric]) for metric in METRICS}}


def _name(group: Mapping[str, Any]) -> str:
    return " ".join(str(group[name] or "-") for name in GROUP)


def _errors(score: Mapping[str, Any]) -> str:
    """Return a score as median / MAPE, p90 and signed median error, in percent."""
    if not score["n"]:
        return ""
    median, mean = (percent(score[name], 1) for name in ("median_ape", "mape"))
    return f"{median} / {mean}  p90 {percent(score['p90_ape'])}  {deviation(score['median_error'], 0)}"


def level_lines(answer: Mapping[str, Any], line: Callable[[str, Mapping], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each level of host constants and kind of model, then the rows of the other tool."""
    lines = [line(f"{level}, {scope}", scores[scope]) for level, scores in answer["levels"].items() for scope in KINDS]
    for peer, words in PEERS.items():
        for name, calibration in (("peer", "as it comes"), ("calibrated", "one factor on TTFT and TPOT a group")):
            if peer in answer:
                peer_scores = [(kind, answer[peer][kind][name]) for kind in ("dense", "moe")]
                lines += [line(f"AIConfigurator {calibration}{words}, {kind}", scores) for kind, scores in peer_scores]
    for level, scores in answer.get("peer", {}).get("behind", {}).items():
        words = f"{level}: groups behind AIConfigurator of {scores['groups']}"
        lines.append({"": words, "n": None, "ttft": scores["ttft"], "tpot": scores["tpot"]})
    return lines


def _flags_and_groups(answer: Mapping[str, Any]) -> Table:
    """Return scores by whether the launch flags of a group were fitted, and medians over groups."""
    level, report = next(iter(answer["levels"].items()))
    rows = [
        _line(f"{report['by_flags'][name]['groups']} groups with flags {words}, {kind}", report["by_flags"][name][kind])
        for name, words in (("fitted", "fitted on their own fifth"), ("not_fitted", "not fitted"))
        if "by_flags" in report
        for kind in ("dense", "moe")
    ]
    over_groups = report["over_groups"]
    return Table(
        f"{level}, by whether launch flags of the group were fitted; median over groups of their median APE: "
        + "; ".join(
            f"{kind} TTFT {percent(over_groups[kind]['ttft'], 1)}, TPOT {percent(over_groups[kind]['tpot'], 1)}"
            for kind in ("dense", "moe")
            if over_groups[kind]["groups"]
        ),
        rows,
    )


def _interval_rows(levels: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per level of host constants and kind of model: coverage, width, and width of a fixed factor."""
    return [
        {"": f"{level}, {kind}"}
        | {
            metric: f"{percent(score['coverage_90'])} covered, "
            f"{number(score['width_90'], 3)} ({number(score['width_fixed'], 3)})"
            for metric, score in scores.items()
            if score.get("coverage_90") is not None
        }
        for level, by_kind in levels.items()
        for kind, scores in ((kind, by_kind[kind]) for kind in KINDS)
    ]


def _attribution_rows(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for group in groups:
        for metric in ("ttft", "tpot"):
            part_errors = {name: deviation(value, 0) for name, value in group[metric].items()}
            rows.append({"group": _name(group), "n": group["n"], "metric": metric, **part_errors})
    return rows


def _peer_rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    scopes = [("all", report), ("dense", report["dense"]), ("mixture of experts", report["moe"])]
    scopes += [(_name(group), group) for group in report["groups"]]
    return [
        {
            "": scope,
            "n": pair["n"],
            **{
                f"{metric} {tool}": _errors(pair[tool][metric])
                for metric in ("ttft", "tpot")
                for tool in ("peer", "ours")
            },
        }
        for scope, pair in scopes
    ]
