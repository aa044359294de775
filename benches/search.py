"""Regret of kernel searches replayed on measured spaces: policies, misleading sources, Kernel Tuner; pictures.

python benches/search.py --space FILE... [--seeds 10] [--gpus A,B] [--parts policies,free,misleading,neighbours,tuner]
                         [--parts recorded] [--plot FOLDER] [-o FILE.json]

Each GPU of the files is searched with the measurements of the others (`kernelsight search evaluate`). Also: searches
without other GPUs, searches whose sources are shuffled or inverted, and searches by neighbours that forecast four times
as many candidates as they measure. ``tuner`` adds strategies of Kernel Tuner (extra ``tuner``): the measurements that
they take, and whether a search that learns from other GPUs is worse than the best one that does not. ``recorded``:
forecasts of a language model whose answers are in a file, beside those of ``transfer``, and the regret of ``transfer``,
of Kernel Tuner's strategies and of Optuna on the same spaces. CPU seconds are of the whole replay.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from record import ROOT, record
from search_figures import figures_of, tuner_figures

from kernelsight.laboratory.searches import recorded, scores
from kernelsight.laboratory.searches.cases import Case, Result, replayed
from kernelsight.laboratory.searches.evaluate import evaluate
from kernelsight.laboratory.searches.tuner_strategies import OPTUNA, PREFIX, check_strategy, expanded, is_tuner
from kernelsight.present.output import as_text
from kernelsight.searching.arrays import SpaceArrays, space_arrays
from kernelsight.searching.replays import replay
from kernelsight.searching.rounds import rounds
from kernelsight.searching.scenarios import DEFAULTS
from kernelsight.searching.search_tables import regrets
from kernelsight.searching.space_files import SpaceTables, read_spaces
from kernelsight.searching.targets import Target, target_of, truth_of

SPACES = ROOT.parent / "shared" / "data" / "kernel_spaces.parquet"
PARTS = ("policies", "free", "misleading", "neighbours", "tuner", "recorded")
BUDGET = 100
OPTUNA_POLICY = PREFIX + OPTUNA
# measurements of a Kernel Tuner strategy: enough to come within 5 %
TUNER_BUDGET = 300
# regret by which a search may exceed the best one that does not learn from other GPUs
HARM = 0.02
AGAINST_TUNER = "measurements against Kernel Tuner's strategies"
# spaces by name, GPUs (none: all), number of seeds
Cases = tuple[Mapping[str, SpaceArrays], set[str], int]
FILTERED = {"standard 4 of 4": 4, "filtered 4 of 16": 16}


def end_regrets(spaces: Mapping[str, SpaceArrays], cases: Sequence[Case]) -> dict[tuple[str, str], float]:
    """Return the median final regret over seeds of each space and GPU."""
    regrets: dict[tuple[str, str], list[float]] = {}
    for result in replayed(spaces, cases):
        regrets.setdefault((result.case.space, result.case.gpu), []).append(float(result.regret[-1]))
    return {key: float(np.median(values)) for key, values in regrets.items()}


def cases_of(spaces: Mapping[str, SpaceArrays], gpus: set[str], seeds: int, changes: Mapping[str, Any]) -> list[Case]:
    """Return the cases of the policy `selective` over all spaces, GPUs and seeds; ``changes``: other flags."""
    return [
        Case(space, gpu, "all", None, "selective", seed, BUDGET, 5, tuple(changes.items()))
        for space, arrays in spaces.items()
        for gpu in arrays.gpus
        if not gpus or gpu in gpus
        for seed in range(seeds)
    ]


def altered(target: Target, how: str, seed: int, logs: np.ndarray) -> Target:
    """Return a target whose sources are shuffled, inverted, or replaced by the true latencies."""
    if how == "shuffled":
        order = np.random.default_rng(seed).permutation(len(target.ids))
        return target._replace(logs=target.logs[order], fails=target.fails[order])
    if how == "inverted":
        return target._replace(logs=-target.logs)
    truth = np.where(np.isnan(logs), np.nanmax(logs), logs)
    return target._replace(
        **{
            "sources": ("oracle",),
            "logs": (truth - np.median(truth))[:, None],
            "medians": np.array([np.median(truth)]),
        },
        **{"weights": np.ones(1), "fails": np.isnan(logs).astype(float)},
    )


def altered_regrets(
    spaces: Mapping[str, SpaceArrays], gpus: set[str], seeds: int, how: str, changes: Mapping[str, Any]
) -> dict[tuple[str, str], float]:
    """Return the median final regret of searches with altered sources."""
    medians = {}
    for space, arrays in spaces.items():
        for gpu in arrays.gpus:
            if gpus and gpu not in gpus:
                continue
            target = target_of(arrays, gpu)
            truth = truth_of(arrays, gpu, target.ids)
            logs = np.log(truth.latency_us)
            final_regrets = []
            for seed in range(seeds):
                scenario = DEFAULTS | {"seed": seed, "budget_measurements": BUDGET} | dict(changes)
                search_rounds = list(
                    rounds(altered(target, how, seed, logs), scenario, replay(truth, target.ids, seed))
                )
                final_regrets.append(float(regrets(search_rounds[-1].best[-1:], logs)[0]))
            medians[space, gpu] = float(np.median(final_regrets))
    return medians


def tuner_results(spaces: Mapping[str, SpaceArrays], gpus: set[str], seeds: int) -> dict[str, list[Result]]:
    """Return the replays of `selective` and of Kernel Tuner's strategies, by policy."""
    policies = {"selective": BUDGET} | dict.fromkeys(expanded(["tuner"]), TUNER_BUDGET)
    for policy in policies:
        if is_tuner(policy):
            check_strategy(policy)
    cases = [
        case._replace(policy=policy, budget=min(budget, int((spaces[case.space].gpus[case.gpu].status > 0).sum())))
        for policy, budget in policies.items()
        for case in cases_of(spaces, gpus, seeds, {})
    ]
    results: dict[str, list[Result]] = {policy: [] for policy in policies}
    for result in replayed(spaces, cases):
        results[result.case.policy].append(result)
    return results


def measurements_to(results: Sequence[Result], share: float) -> float:
    """Return the median number of measurements until regret is at most ``share``; inf: never."""
    return float(np.median([scores.first_within(each.regret, share) or np.inf for each in results]))


def tuner_rows(results_of: Mapping[str, Sequence[Result]]) -> list[dict[str, Any]]:
    """Return a row per policy, and the ratio of measurements of the best strategy to `selective`."""
    rows = []
    for policy, results in results_of.items():
        counts = {f"n_to_{percent}": measurements_to(results, percent / 100) for percent in (5, 2)}
        ends = np.array([each.regret[min(BUDGET, len(each.regret)) - 1] for each in results])
        within = {f"within_{percent} at {BUDGET}": float((ends <= percent / 100).mean()) for percent in (5, 2)}
        rows.append({"policy": policy, "runs": len(results)} | counts | within)
    best = {name: min(row[name] for row in rows[1:]) / rows[0][name] for name in ("n_to_5", "n_to_2")}
    return [*rows, {"policy": "best strategy / selective", "runs": None} | best]


def harm_rows(
    columns: Mapping[str, Mapping[tuple[str, str], float]], results_of: Mapping[str, Sequence[Result]]
) -> list[dict[str, Any]]:
    """Return by space and GPU how many points worse searches are than the best one without other GPUs."""
    free: dict[tuple[str, str], list[float]] = {key: [value] for key, value in columns["without other GPUs"].items()}
    for policy, results in results_of.items():
        ends: dict[tuple[str, str], list[float]] = {}
        for each in results if is_tuner(policy) else ():
            ends.setdefault((each.case.space, each.case.gpu), []).append(float(each.regret[:BUDGET][-1]))
        for key, values in ends.items():
            free[key].append(float(np.median(values)))
    names = [name for name in columns if name != "without other GPUs"]
    rows = [
        {"space": space, "gpu": gpu, "best transfer-free (%)": round(100.0 * min(free[space, gpu]), 1)}
        | {
            f"{name}, points worse": round(100.0 * (columns[name][space, gpu] - min(free[space, gpu])), 1)
            for name in names
        }
        for space, gpu in sorted(free)
    ]
    largest = {name: max(row[name] for row in rows) for name in rows[0] if name.endswith("points worse")}
    return [*rows, {"space": f"most (goal: {100 * HARM:g})", "gpu": "", "best transfer-free (%)": None} | largest]


def beside(columns: Mapping[str, Mapping[tuple[str, str], float]]) -> list[dict[str, Any]]:
    """Return a row of regrets in percent per space and GPU, one column per search."""
    keys = sorted({key for column in columns.values() for key in column})
    return [
        {"space": space, "gpu": gpu}
        | {name: round(100.0 * column[space, gpu], 1) for name, column in columns.items() if (space, gpu) in column}
        for space, gpu in keys
    ]


def by_family(columns: Mapping[str, Mapping[tuple[str, str], float]]) -> list[dict[str, Any]]:
    """Return a row of mean regrets in percent per space, one column per search."""
    spaces = sorted({space for column in columns.values() for space, _ in column})
    return [
        {"space": space}
        | {
            name: round(100.0 * float(np.mean([value for key, value in column.items() if key[0] == space])), 2)
            for name, column in columns.items()
        }
        for space in spaces
    ]


def goals(evaluation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the goals of the policy `selective` and its scores."""
    policy = next(row for row in evaluation["policies"] if row["policy"] == "selective")
    order = next((row for row in evaluation["policies"] if row["policy"] == "order"), {})
    rows = [("within 2 % after 100 measurements", "95 %", f"{policy['within_2']:.1%}", order.get("within_2"))]
    rows += [
        (f"measurements to {n} %", goal, policy[f"n_to_{n}"], order.get(f"n_to_{n}")) for n, goal in ((5, 5), (2, 12))
    ]
    rows.append(("mean regret after 50", "2 %", f"{policy['regret_50']:.1%}", order.get("regret_50")))
    for count, goal in (("20", 0.08), ("50", 0.05)):
        calibration = evaluation["calibration"].get(count)
        if calibration:
            rows.append(
                (f"coverage of 90 % intervals at {count}", "87-93 %", f"{calibration['coverage_90']:.1%}", None)
            )
            rows.append((f"calibration error of bins at {count}", goal, round(calibration["ece"], 3), None))
    stops = evaluation["stops"]
    if stops["n"]:
        rows.append((f"stopped runs ({stops['n']}) within 2 %", "95 %", f"{stops['within_2']:.1%}", None))
    return [dict(zip(("figure", "goal", "selective", "order of the others"), row, strict=True)) for row in rows]


def draw(evaluation: Mapping[str, Any], folder: Path) -> None:
    """Draw regret by measurements, risk by coverage, and reliability as SVG; needs the extra ``report``."""
    import altair as alt

    curves = [
        {"policy": row["policy"], "measurements": n, "regret (%)": max(100.0 * value, 0.05)}
        for row in evaluation["policies"]
        for n, value in enumerate(row["regret_curve"], start=1)
    ]
    size = {"width": 380, "height": 260}
    regret = (
        alt.Chart(alt.Data(values=curves))
        .mark_line()
        .encode(
            x=alt.X("measurements:Q"),
            y=alt.Y("regret (%):Q", scale=alt.Scale(type="log"), title="mean regret (%)"),
            color=alt.Color("policy:N", title="policy"),
        )
        .properties(**size, title="Regret against measurements")
    )
    calibration = evaluation["calibration"]
    points = [row | {"measured": count} for count, each in calibration.items() for row in each["reliability"]]
    line = alt.Chart(alt.Data(values=[{"x": 0, "y": 0}, {"x": 1, "y": 1}])).mark_line(strokeDash=[4, 4], color="grey")
    reliable = (
        alt.Chart(alt.Data(values=points))
        .mark_line(point=True)
        .encode(
            x=alt.X("confidence:Q", title="stated probability of the likeliest bin"),
            y=alt.Y("right:Q", title="how often it is right"),
            color=alt.Color("measured:N", title="after"),
        )
    )
    risks = [row | {"measured": count} for count, each in calibration.items() for row in each["risk_coverage"]]
    risk = (
        alt.Chart(alt.Data(values=risks))
        .mark_line(point=True)
        .encode(
            x=alt.X("coverage:Q", title="share of forecasts that are trusted, surest first"),
            y=alt.Y("risk:Q", title="share of wrong bins"),
            color=alt.Color("measured:N", title="after"),
        )
        .properties(**size, title="Risk against coverage")
    )
    both = (line.encode(x="x:Q", y="y:Q") + reliable).properties(**size, title="Reliability of the speed-up bins")
    regret.save(folder / "search.svg")
    (both | risk).save(folder / "search_calibration.svg")


class Answer:
    """What the bench found, by title: each table is printed when it is there, and all are written at the end."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def show(self, title: str, rows: list[dict[str, Any]]) -> None:
        """Print a table and keep it."""
        self.found[title] = rows
        print(f"\n{title}\n\n{as_text(rows, list(rows[0]))}", flush=True)


def parsed(words: Iterable[str] | None) -> argparse.Namespace:
    """Return the arguments of the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--space", nargs="+", required=True, metavar="FILE")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--gpus", default="all", metavar="A,B")
    parser.add_argument("--parts", default="policies", metavar="A,B", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--plot", type=Path, metavar="FOLDER")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json")
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    return parser.parse_args(None if words is None else list(words))


def score_policies(answer: Answer, tables: SpaceTables, gpus: list[str], arguments: argparse.Namespace) -> None:
    """Score the search policies; draw and record their figures where that is wanted."""
    started = time.process_time()
    evaluation = evaluate(tables, gpus, seeds=arguments.seeds)
    answer.found["evaluation"] = evaluation
    answer.show("goals", goals(evaluation))
    others = evaluation.get("without_nearest", {}).get("policies", [])
    for title, rows in (("policies", evaluation["policies"]), ("policies without the most similar GPU", others)):
        if rows:
            answer.show(title, [{k: v for k, v in row.items() if k != "regret_curve"} for row in rows])
    print(f"CPU seconds of this process: {time.process_time() - started:.0f}")
    if arguments.plot:
        draw(evaluation, arguments.plot)
    if arguments.record:
        command = f"python benches/search.py --space {SPACES.name} --seeds {arguments.seeds}"
        record("search", figures_of(evaluation, arguments.seeds), command)


def score_other_sources(answer: Answer, parts: list[str], replayed_cases: Cases, is_recorded: bool) -> None:
    """Score searches without other GPUs and with misleading ones, beside Kernel Tuner's where these are wanted."""
    spaces, _, seeds = replayed_cases
    columns = {
        "selective": end_regrets(spaces, cases_of(*replayed_cases, {})),
        "without other GPUs": end_regrets(spaces, cases_of(*replayed_cases, {"forecaster": "gp"})),
    }
    if "misleading" in parts:
        columns |= {how: altered_regrets(*replayed_cases, how, {}) for how in ("shuffled", "inverted")}
    answer.show("regret (%) after 100 measurements", beside(columns))
    if "tuner" not in parts:
        return
    tuner = tuner_results(*replayed_cases)
    measurements = tuner_rows(tuner)
    answer.show(AGAINST_TUNER, measurements)
    harm = harm_rows(columns, tuner)
    answer.show("points of regret worse than the best search without other GPUs", harm)
    if is_recorded and "misleading" in parts:
        command = f"python benches/search.py --space {SPACES.name} --parts tuner,misleading --seeds {seeds}"
        record("search_tuner", tuner_figures(measurements, harm, TUNER_BUDGET, HARM) | {"seeds": seeds}, command)


def score_neighbours(answer: Answer, replayed_cases: Cases) -> None:
    """Score searches by neighbours that forecast more candidates than they measure."""
    spaces = replayed_cases[0]
    flags = {"proposer": "neighbours", "measure_per_parent": 4}
    columns = {
        name: end_regrets(spaces, cases_of(*replayed_cases, flags | {"samples_per_parent": count}))
        for name, count in FILTERED.items()
    }
    columns["oracle 4 of 16"] = altered_regrets(*replayed_cases, "oracle", flags | {"samples_per_parent": 16})
    answer.show("mean regret (%) of a search of neighbours", by_family(columns))


def score_recorded(answer: Answer, replayed_cases: Cases) -> None:
    """Score a recorded model's forecasts beside those of ``transfer``, and searches of the same spaces."""
    spaces, _, seeds = replayed_cases
    forecasts = recorded.compared(spaces)
    answer.show("forecasts of the same candidates", forecasts)
    results = []
    for policy in ("selective", *expanded(["tuner"]), OPTUNA_POLICY):
        if is_tuner(policy):
            check_strategy(policy)
        cases = [
            Case(*where, "all", None, policy, seed, BUDGET, 5) for where in recorded.ASKED for seed in range(seeds)
        ]
        ends = np.array([[each.regret[count - 1] for count in (20, 50, 100)] for each in replayed(spaces, cases)])
        names = [f"regret_{count} (%)" for count in (20, 50, 100)]
        results.append({"policy": policy} | dict(zip(names, (100 * np.median(ends, axis=0)).round(1), strict=True)))
    answer.show("median regret of searches of these spaces", results)


def main(words: Iterable[str] | None = None) -> None:
    """Run the named parts and print their tables; record them with ``--record``."""
    arguments = parsed(words)
    parts, gpu_names = arguments.parts.split(","), arguments.gpus.split(",")
    tables = read_spaces(arguments.space)
    spaces = {
        name: space_arrays(tables.kernel_candidates, tables.kernel_measurements, name)
        for name in tables.kernel_spaces["space"].to_pylist()
    }
    answer = Answer()
    if "policies" in parts:
        score_policies(answer, tables, gpu_names, arguments)
    replayed_cases = (spaces, set() if gpu_names == ["all"] else set(gpu_names), arguments.seeds)
    if "free" in parts or "misleading" in parts:
        score_other_sources(answer, parts, replayed_cases, arguments.record)
    elif "tuner" in parts:
        answer.show(AGAINST_TUNER, tuner_rows(tuner_results(*replayed_cases)))
    if "neighbours" in parts:
        score_neighbours(answer, replayed_cases)
    if "recorded" in parts:
        score_recorded(answer, replayed_cases)
    if arguments.output:
        arguments.output.write_text(json.dumps(answer.found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
