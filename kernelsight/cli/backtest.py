"""``kernelsight backtest``: simulate measured end-to-end runs and score the predictions."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelsight.cli.options import add_output, add_pack, open_session
from kernelsight.cli.pages.backtest_page import page
from kernelsight.errors import InvalidInput
from kernelsight.evaluation.runs.campaign_fit import left_out_rows
from kernelsight.evaluation.runs.campaigns import campaign_scores, scored_of_campaigns, spread_runs
from kernelsight.evaluation.runs.levels import check_levels, constant_rows
from kernelsight.evaluation.runs.measured_runs import read_runs
from kernelsight.evaluation.runs.peer import LAUNCHED, NOMINAL, STEP_TOKENS, predictions
from kernelsight.evaluation.runs.plots import check_picture, draw
from kernelsight.evaluation.runs.replays import replay, replay_left_out
from kernelsight.evaluation.runs.report import level_scores, report_of, report_of_peer, spread_rows
from kernelsight.evaluation.runs.scores import GROUP, METRICS
from kernelsight.present.output import (
    as_json,
    check_ending,
    note,
    print_page,
    print_rows,
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
NESTED = ("flags", "recipes", "errors", "interval_factors", "compared")


def declare(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    verb.add_argument(
        "--runs",
        required=True,
        action="append",
        metavar="FILE",
        help="aiconfigurator (the runs shipped in aiconfigurator-core), a .csv or .parquet file of measured_runs or of "
        "a known source, or a folder of such files or of one run of inference-perf; may be repeated",
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
    verb.add_argument(
        "--leave-out",
        choices=("campaign",),
        help="also score each campaign with host constants fitted on the others alone: their table in place of that of "
        "--constants",
    )
    verb.add_argument(
        "--sample",
        type=int,
        metavar="N",
        help="at most N runs of each campaign, spread evenly over its engines, models and GPUs (default: all)",
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
    runs = read_runs(*arguments.runs)
    if arguments.sample is not None:
        if arguments.sample < 1:
            raise InvalidInput(f"--sample {arguments.sample} leaves no run; give at least 1.")
        runs = runs._replace(table=runs.table.take(spread_runs(runs.table.to_pylist(), arguments.sample)))
    if runs.table.num_rows == 0:
        raise InvalidInput(f"{', '.join(arguments.runs)} has no run that can be replayed: all rows were excluded.")
    if arguments.against:
        predictions([])  # fails early if the tool cannot start
    with open_session(arguments) as session:
        session.progress = None
        replayed, fitted = replay(session, runs.table.to_pylist(), arguments.tier, levels)
        rows = replayed[levels[0]]
        if all(row["status"] != "served" for row in rows):
            raise InvalidInput(f"none of the {len(rows)} runs could be simulated: {rows[0]['status']}")
        basis = dict(zip(*(session.table("recipes")[name].to_pylist() for name in ("recipe", "basis")), strict=True))
        answer = report_of(runs, rows, arguments.tier, basis)
        answer |= {"constants": levels[0], "fitted_constants": constant_rows(fitted[levels[0]], rows)}
        spread = session.table("serving_spread").to_pylist()
        answer["serving_spread"] = spread_rows(rows, spread)
        answer["levels"] = {level: level_scores(replayed[level], spread, basis) for level in levels}
        if arguments.leave_out:
            left_out, constants = replay_left_out(session, runs.table.to_pylist(), arguments.tier)
            answer["campaigns_shipped"] = answer["campaigns"]
            answer["campaigns"] = campaign_scores(scored_of_campaigns(left_out))
            answer["left_out_constants"] = left_out_rows(constants)
        if arguments.against:
            asked = predictions(rows)
            answer["peer"] = report_of_peer(replayed, asked[LAUNCHED])
            answer["peer_nominal"] = report_of_peer(replayed, asked[NOMINAL])
            answer["peer_step_tokens"] = report_of_peer(replayed, asked[STEP_TOKENS])
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


def _print(answer: dict, form: str) -> None:
    if form == "json":
        print(as_json(answer))
        return
    if form == "csv":
        print_rows(score_rows(answer), list(SCORE_COLUMNS), form)
        return
    print_page(page(answer))
    for excluded in answer["excluded"]:
        note(f"excluded {excluded['n']:,}: {excluded['reason']}")
    for fault in answer["not_simulated"]:
        note(f"not simulated {fault['n']:,}: {fault['reason']}")
