"""Tables of a backtest's page on published runs: levels of host constants, intervals, sources of error, other tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.cli.backtest import errors_of, line, name_of
from kernelsight.laboratory.runs.coverage import METRICS as COVERED
from kernelsight.laboratory.runs.label_coverage import METRICS as LABELLED
from kernelsight.laboratory.runs.run_classes import KINDS
from kernelsight.number_format import deviation, number, percent
from kernelsight.present.page import Table

PEERS = {
    "peer": ", flags as launched",
    "peer_step_tokens": ", tokens of a step, too",
    "peer_nominal": ", nominal lengths",
}


def tables(answer: Mapping[str, Any]) -> list[Table]:
    """Return the tables; ``answer`` as printed by `backtest --format json`."""
    return [
        *(coverage_table(answer), _speculative(answer)),
        Table("by host constants:", _level_lines(answer)),
        *(_flags_and_groups(answer), _basis(answer), _intervals(answer), _implausible(answer)),
        *(_error_by_part(answer), _peer(answer)),
    ]


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


def _speculative(answer: Mapping[str, Any]) -> Table:
    """Return scores of runs with and without speculative decoding."""
    report = answer["speculative"]
    if not report["with_drafts"]["ttft"]["n"]:
        return Table()
    rates = report["draft_acceptance_rate"]
    fitted = ", ".join(f"{proposer} {percent(rate)}" for proposer, rate in rates.items())
    rows = []
    for kind in ("with_drafts", "without_drafts"):
        rows += [line(kind.replace("_", " "), report[kind])]
        rows += [line(f"- {name_of(group)}", group) for group in report[kind]["groups"]]
    return Table(
        "runs with and without speculative decoding, inferred from pairs of TPOTs (not included above); acceptance "
        f"rates fitted on the fitting fifth: {fitted}",
        rows,
    )


def _basis(answer: Mapping[str, Any]) -> Table:
    """Return scores by whether the launch flags (recipes) of a run are published, fitted or assumed."""
    if "by_basis" not in answer:
        return Table()
    basis = answer["by_basis"]
    rows = [
        line(f"{name.replace('_', ' ')}, {kind}", basis[name][kind])
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


def _implausible(answer: Mapping[str, Any]) -> Table:
    """Return scores of runs with signs of implausible measurements."""
    rows = [line(group["sign"], group) for group in answer.get("signs", ())]
    return Table("runs with implausible measurements (included in the scores above):", rows)


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


def _level_lines(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
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
        line(f"{report['by_flags'][name]['groups']} groups with flags {words}, {kind}", report["by_flags"][name][kind])
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
            rows.append({"group": name_of(group), "n": group["n"], "metric": metric, **part_errors})
    return rows


def _peer_rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    scopes = [("all", report), ("dense", report["dense"]), ("mixture of experts", report["moe"])]
    scopes += [(name_of(group), group) for group in report["groups"]]
    return [
        {
            "": scope,
            "n": pair["n"],
            **{
                f"{metric} {tool}": errors_of(pair[tool][metric])
                for metric in ("ttft", "tpot")
                for tool in ("peer", "ours")
            },
        }
        for scope, pair in scopes
    ]
