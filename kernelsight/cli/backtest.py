"""``kernelsight backtest``: simulate measured end-to-end runs and score the predictions."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kernelsight.backtest.coverage import METRICS as COVERED
from kernelsight.backtest.levels import check_levels, constant_rows
from kernelsight.backtest.plots import check_picture, draw
from kernelsight.backtest.replay import replay
from kernelsight.backtest.report import behind, level_scores, report_of, spread_rows
from kernelsight.backtest.scores import GROUP, METRICS
from kernelsight.cli.options import add_output, add_pack, open_session
from kernelsight.errors import InvalidInput
from kernelsight.read.measured_runs import Runs, read_runs
from kernelsight.report.output import (
    as_json,
    as_text,
    check_ending,
    note,
    print_rows,
    terminal_width,
    write_table,
    write_text,
)
from kernelsight.scenario.flags import TIERS

SCORE_COLUMNS = (
    "scope",
    *GROUP,
    "n",
    *(f"{metric}_{what}" for metric in METRICS for what in ("median_ape", "mape", "p90_ape", "bias")),
)
NESTED = ("flags", "recipes", "errors", "interval_factors")
SHOWN = ("n", "ttft", "tpot", "throughput")


def _peer(tool: str | None, runs: Runs) -> dict[str, tuple[float, float]] | None:
    from kernelsight.backtest.peer import predictions

    return predictions(runs.table.to_pylist()) if tool else None


def declare(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    verb.add_argument(
        "--runs",
        required=True,
        metavar="FILE",
        help="aiconfigurator (the runs shipped in aiconfigurator-core), or a .csv or .parquet file of measured_runs",
    )
    verb.add_argument("--tier", choices=TIERS, help="kernel latency model to use")
    add_pack(verb)
    verb.add_argument(
        "--constants",
        default="shipped",
        metavar="LEVEL[,LEVEL]",
        help="host time: shipped (catalogue, default), none, or fitted on a fifth of the runs, which is then not "
        "scored: transfer (on all groups of runs but the own), group (on the own, plus a factor on its kernels), all "
        "(on all groups, which the catalogue ships); the first level is reported in full",
    )
    verb.add_argument("--against", choices=("aiconfigurator",), help="also score this tool on the same runs")
    verb.add_argument(
        "--plot", metavar="FILE", help="plots of predicted vs measured and error vs load: .svg .png .html"
    )
    add_output(verb, "also write the report (.json), or one row per run (.parquet, .csv)")


def run(arguments: Any) -> None:
    """Run the verb for parsed arguments."""
    target = check_ending(arguments.output, (".parquet", ".csv", ".json"))
    picture = check_picture(arguments.plot)
    levels = check_levels(arguments.constants)
    runs = read_runs(arguments.runs)
    if runs.table.num_rows == 0:
        raise InvalidInput(f"{arguments.runs} has no run that can be replayed: all rows were excluded.")
    _peer(arguments.against, runs._replace(table=runs.table.slice(0, 0)))  # fail early if the tool cannot start
    with open_session(arguments) as session:
        session.progress = None
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(_peer, arguments.against, runs)  # runs concurrently
            replayed, fitted = replay(session, runs.table.to_pylist(), arguments.tier, levels)
            rows = replayed[levels[0]]
            if all(row["status"] != "served" for row in rows):
                raise InvalidInput(f"none of the {len(rows)} runs could be simulated: {rows[0]['status']}")
            basis = dict(
                zip(*(session.table("recipes")[name].to_pylist() for name in ("recipe", "basis")), strict=True)
            )
            answer = report_of(runs, rows, arguments.tier, asked.result(), basis)
            answer |= {"constants": levels[0], "fitted_constants": constant_rows(fitted[levels[0]], rows)}
            spread = session.table("serving_spread").to_pylist()
            answer["serving_spread"] = spread_rows(rows, spread)
            answer["levels"] = {level: level_scores(replayed[level], spread) for level in levels}
            if "peer" in answer:
                answer["peer"]["behind"] = {level: behind(replayed[level], asked.result()) for level in levels}
    if picture:
        draw(rows, answer, picture)
    if target:
        _write(answer, rows, target)
    _print(answer, arguments.format)


def _write(answer: dict, rows: list[dict], target: Path) -> None:
    """Write the report (.json), or one row per run (.parquet, .csv)."""
    import pyarrow as pa

    if target.suffix == ".json":
        write_text(as_json(answer) + "\n", target)
        return
    flat = []
    for row in rows:
        errors = row.get("errors") or dict.fromkeys(METRICS)
        plain = {name: value for name, value in row.items() if name not in NESTED}
        flat.append(
            {**plain, "recipes": " ".join(row["recipes"]), **{f"{name}_error": errors[name] for name in METRICS}}
        )
    write_table(pa.Table.from_pylist(flat), target)


def score_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one row per scope and group, with a column per metric and score."""
    scopes: list[tuple[str, Mapping]] = [("all", answer), ("dense", answer["dense"]), ("moe", answer["moe"])]
    scopes += [("group", group) for group in answer["groups"]]
    scopes += [(f"{axis} {group[axis]}", group) for axis, groups in answer["by"].items() for group in groups]
    rows = []
    for scope, found in scopes:
        spread = {
            f"{metric}_{what}": value for metric in METRICS for what, value in found[metric].items() if what != "n"
        }
        names = {name: found.get(name) for name in GROUP} if scope == "group" else {}
        rows.append({"scope": scope, **names, "n": found["ttft"]["n"], **spread})
    return rows


def _name(group: Mapping[str, Any]) -> str:
    return " ".join(str(group[name] or "-") for name in GROUP)


def _percent(found: Mapping[str, Any]) -> str:
    """Return a score as median / MAPE, p90 and signed median error, in percent."""
    if not found["n"]:
        return ""
    median, mape, p90, bias = (100 * found[name] for name in ("median_ape", "mape", "p90_ape", "median_error"))
    return f"{median:.1f} / {mape:.1f}  p90 {p90:.0f}  {bias:+.0f}"


def _print(answer: dict, form: str) -> None:
    if form == "json":
        print(as_json(answer))
        return
    if form == "csv":
        print_rows(score_rows(answer), list(SCORE_COLUMNS), form)
        return
    print("\n".join(page(answer)))
    for excluded in answer["excluded"]:
        note(f"excluded {excluded['n']:,}: {excluded['reason']}")
    for fault in answer["not_simulated"]:
        note(f"not simulated {fault['n']:,}: {fault['reason']}")


def level_lines(answer: Mapping[str, Any], line: Callable[[str, Mapping], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a line for each level of host constants and kind of model, and the other tool's below."""
    lines = [line(f"{level}, {scope}", found[scope]) for level, found in answer["levels"].items() for scope in found]
    for name, words in (("peer", "as it comes"), ("calibrated", "one factor on TTFT and TPOT a group")):
        if "peer" in answer:
            lines += [line(f"AIConfigurator {words}, {kind}", answer["peer"][kind][name]) for kind in ("dense", "moe")]
    for level, found in answer.get("peer", {}).get("behind", {}).items():
        words = f"{level}: groups behind AIConfigurator of {found['groups']}"
        lines.append({"": words, "n": None, "ttft": found["ttft"], "tpot": found["tpot"]})
    return lines


def page(answer: Mapping[str, Any]) -> list[str]:
    """Return the lines of the report for a terminal."""

    def line(scope: str, found: Mapping[str, Any]) -> dict[str, Any]:
        return {"": scope, "n": found["ttft"]["n"], **{metric: _percent(found[metric]) for metric in METRICS}}

    lines = [
        f"{answer['read']:,} rows read, {answer['runs']:,} replayed; {answer['fitted_on']:,} of them (SHA-256 of the "
        f"id modulo 5 is 0) are for fitting and not scored ({answer['repeated']} of these repeat the measurement of a "
        f"scored run and are not fitted on), {answer['stated_again']} state a scored measurement again; tier "
        f"{answer['tier']}, host constants {answer['constants']}",
        "median APE / MAPE, 90th percentile, median signed error, in %",
        "",
    ]
    rows = [line("all", answer), line("dense", answer["dense"]), line("mixture of experts", answer["moe"])]
    rows += [line(f"{kind}, plausible only", answer["without_signs"][kind]) for kind in ("dense", "moe")]
    for axis, groups in answer["by"].items():
        if axis != "length":
            rows += [line(f"{axis} {group[axis]}", group) for group in groups]
    lines += [as_text(rows, ["", *SHOWN], terminal_width()), ""]
    lines += ["by host constants:", as_text(level_lines(answer, line), ["", *SHOWN], terminal_width()), ""]
    basis = answer["by_basis"]
    lines += [
        "by basis of the launch flags (recipes); recipes that are not published, with the runs that each touches:"
    ]
    lines += [
        as_text(
            [
                line(f"{name.replace('_', ' ')}, {kind}", basis[name][kind])
                for name in ("published", "fitted_or_assumed")
                for kind in ("dense", "moe")
            ],
            ["", *SHOWN],
            terminal_width(),
        ),
        ", ".join(f"{each['recipe']} ({each['basis']}) {each['scored']}" for each in basis["recipes"]),
        "",
    ]
    lines += [
        "90 % intervals, their spread beyond kernels and host fitted on other groups; median p95 / p05, and in "
        "brackets that of one fixed factor a metric that covers as many runs:"
    ]
    lines += [as_text(_interval_rows(answer["levels"]), ["", *COVERED], terminal_width()), ""]
    groups = [line(_name(group), group) for group in answer["groups"]]
    lines += [as_text(groups, ["", *SHOWN], terminal_width()), ""]
    if answer["signs"]:
        lines += ["runs with implausible measurements (included in the scores above):"]
        lines += [
            as_text([line(group["sign"], group) for group in answer["signs"]], ["", *SHOWN], terminal_width()),
            "",
        ]
    if answer["disaggregated"]["ttft"]["n"]:
        lines += ["disaggregated prefill and decode, not fitted on (not included above):"]
        separate = [
            line("all", answer["disaggregated"]),
            *(line(_name(group), group) for group in answer["disaggregated"]["groups"]),
        ]
        lines += [as_text(separate, ["", *SHOWN], terminal_width()), ""]
    if answer["speculative"]["with_drafts"]["ttft"]["n"]:
        rates = answer["speculative"]["draft_acceptance_rate"]
        fitted = ", ".join(f"{proposer} {100 * rate:.0f} %" for proposer, rate in rates.items())
        lines += [
            "runs with and without speculative decoding, inferred from pairs of TPOTs (not included above); acceptance "
            f"rates fitted on the fitting fifth: {fitted}"
        ]
        separate = []
        for kind in ("with_drafts", "without_drafts"):
            found = answer["speculative"][kind]
            separate += [
                line(kind.replace("_", " "), found),
                *(line(f"- {_name(group)}", group) for group in found["groups"]),
            ]
        lines += [as_text(separate, ["", *SHOWN], terminal_width()), ""]
    if answer["attribution"]:
        lines += ["error by part, in % of the measured value (+: predicted too short), largest first:"]
        lines += [
            as_text(
                _attribution_rows(answer["attribution"]),
                list(_attribution_rows(answer["attribution"])[0]),
                terminal_width(),
            )
        ]
    if "peer" in answer:
        lines += ["", f"compared with AIConfigurator, on the {answer['peer']['n']:,} runs that it predicts:"]
        lines += [as_text(_peer_rows(answer["peer"]), list(_peer_rows(answer["peer"])[0]), terminal_width())]
    return lines


def _interval_rows(levels: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per level of host constants and kind of model: covered, width, and width of a fixed factor."""
    return [
        {"": f"{level}, {kind}"}
        | {
            metric: f"{found['coverage_90']:.0%} covered, {found['width_90']:.2f} ({found['width_fixed']:.2f})"
            for metric, found in scores.items()
            if found.get("coverage_90") is not None
        }
        for level, kinds in levels.items()
        for kind, scores in kinds.items()
    ]


def _attribution_rows(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for group in found:
        for metric in ("ttft", "tpot"):
            parts = {name: f"{100 * value:+.0f}" for name, value in group[metric].items()}
            rows.append({"group": _name(group), "n": group["n"], "metric": metric, **parts})
    return rows


def _peer_rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    scopes = [("all", found), ("dense", found["dense"]), ("mixture of experts", found["moe"])]
    scopes += [(_name(group), group) for group in found["groups"]]
    return [
        {
            "": scope,
            "n": pair["n"],
            **{
                f"{metric} {tool}": _percent(pair[tool][metric])
                for metric in ("ttft", "tpot")
                for tool in ("peer", "ours")
            },
        }
        for scope, pair in scopes
    ]
