"""Tables of end-to-end errors of published runs: by level of host constants, group, basis of flags, and other tools."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import record

from figures.blocks import result
from figures.text import NONE, count, full, group_name, median_mean, percent, table

METRICS = ("ttft", "tpot")
KINDS = {"dense": "dense", "moe": "MoE"}
LEVELS = {
    "transfer": "`transfer`: constants of other groups",
    "shipped": "`shipped`: one set for all groups, fitted on the fitting fifth of all groups, the scored one included",
    "group": "`group`: calibrated: constants and one factor on kernels from the group's own fitting runs",
    "none": "`none`: nothing fitted; host times from published measurements of their parts (`benches/evaluation/runs/host_priors.csv`)",
}
PEER_INPUTS = {
    "peer": "AIConfigurator 0.12, launch flags that it supports (mean lengths, KV format)",
    "peer_step_tokens": "AIConfigurator 0.12, the same and the tokens per step",
    "peer_nominal": "AIConfigurator 0.12, nominal lengths, 16-bit cache",
}
RAW = {"peer": "unmodified", "calibrated": "one factor each on TTFT and TPOT per group, from the same fitting runs"}
GOALS_TAUGHT = {"dense": "8; 3.3", "moe": "11; 4.5"}
HEAD = ["dense TTFT", "dense TPOT", "MoE TTFT", "MoE TPOT"]
INTERVALS = ("ttft", "tpot", "e2e")
# median errors of TTFT, TPOT and output throughput that arXiv 2606.28565 states, per cent
PAPER = {"cross-generation": ("15.4", "12.8", "3.0"), "target-measured": ("14.3", "6.2", "2.7")}


def figures() -> dict[str, Any]:
    """Return the recorded figures."""
    return result("end_to_end")


def four(scores: Mapping[str, Any], shown: Callable[[Mapping[str, Any]], str]) -> list[str]:
    """Return the cells of dense TTFT, dense TPOT, MoE TTFT and MoE TPOT."""
    return [shown(scores[kind][metric]) for kind in KINDS for metric in METRICS]


def in_order(levels: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the levels of host constants in the order of LEVELS."""
    return [(level, levels[level]) for level in LEVELS if level in levels]


def peer_inputs(recorded: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the inputs with which AIConfigurator was run, with their titles."""
    return [(name, words) for name, words in PEER_INPUTS.items() if name in recorded]


def runs_of(scores: Mapping[str, Any]) -> str:
    """Return the numbers of dense and MoE runs of some scores."""
    return " + ".join(count(scores[kind]["ttft"]["n"]) for kind in KINDS)


def levels() -> str:
    """Table of all levels and AIConfigurator: median / mean, 90th percentile, bias, and numbers of runs."""
    return _levels(peers=None)


def summary() -> str:
    """``levels`` with AIConfigurator in its best case only: given the launch flags that it supports."""
    return _levels(peers=1)


def _levels(peers: int | None) -> str:
    recorded = figures()
    rows = [
        [LEVELS[level], runs_of(scores), *four(scores, full), full(scores["all"]["throughput"])]
        for level, scores in in_order(recorded["levels"])
    ]
    for name, words in peer_inputs(recorded)[:peers]:
        peer = recorded[name]
        for who, how in RAW.items():
            scores = {kind: peer[kind][who] for kind in ("dense", "moe", "all")}
            rows.append([f"{words}: {how}", runs_of(scores), *four(scores, full), full(scores["all"]["throughput"])])
    return table(["host constants", "runs (dense + MoE)", *HEAD, "output throughput"], rows)


def across() -> str:
    """Table of errors with kernels predicted across generations, beside those of the paper."""
    levels_across = result("end_to_end_across")["levels"]
    rows = [
        [
            f"ours, {LEVELS[level]}",
            runs_of(scores),
            *(median_mean(scores["all"][name]) for name in (*METRICS, "throughput")),
        ]
        for level, scores in in_order(levels_across)
    ]
    paper = [f"the paper, {tier} (its runs and metric)" for tier in PAPER]
    rows += [[name, NONE, *figures] for name, figures in zip(paper, PAPER.values(), strict=True)]
    return table(["kernels across generations", "runs (dense + MoE)", "TTFT", "TPOT", "output throughput"], rows)


def equal_runs() -> str:
    """Table of median / mean errors of all levels and AIConfigurator on the runs that AIConfigurator predicts."""
    recorded = figures()
    rows: list[list[str]] = []
    for name, words in peer_inputs(recorded):
        peer = recorded[name]
        theirs = {f"{words}: {how}": {kind: peer[kind][who] for kind in KINDS} for who, how in RAW.items()}
        ours = [(LEVELS[level].split(":")[0], scores) for level, scores in in_order(peer["levels"])]
        # ours are shown once if the tool predicts the same runs with every input
        shown = [*theirs.items()] if rows and rows[0][1] == runs_of(ours[0][1]) else [*ours, *theirs.items()]
        rows += [[title, runs_of(scores), *four(scores, median_mean)] for title, scores in shown]
    missing = [words for name, words in PEER_INPUTS.items() if name not in recorded]
    not_measured = f"\n\nNot measured yet: {'; '.join(missing)}." if missing else ""
    return table(["on the same runs", "runs (dense + MoE)", *HEAD], rows) + not_measured


def with_part(name: str) -> list[tuple[str, Any]]:
    """Return the levels whose scores have a part."""
    return [(level, scores) for level, scores in in_order(figures()["levels"]) if name in scores]


def over_groups() -> str:
    """Table of medians over groups of each group's median error: the typical error for one deployment."""
    rows = []
    for level, scores in with_part("over_groups"):
        medians = scores["over_groups"]
        groups = " + ".join(str(medians[kind]["groups"]) for kind in KINDS)
        rows.append([f"`{level}`", groups, *(percent(medians[kind][metric]) for kind in KINDS for metric in METRICS)])
    return table(["median over groups", "groups (dense + MoE)", *HEAD], rows)


def by_flags() -> str:
    """Table of scores by whether the group's launch flags were fitted on its own fitting runs."""
    titles = {"not_fitted": "no flag fitted", "fitted": "flags fitted on the group's own fifth"}
    rows = []
    for level, scores in with_part("by_flags"):
        for name, title in titles.items():
            part = scores["by_flags"][name]
            over_groups_of_part = part["over_groups"]
            middle = [percent(over_groups_of_part[kind][metric], sign="") for kind in KINDS for metric in METRICS]
            cells = [f"{cell} ({each})" for cell, each in zip(four(part, full), middle, strict=True)]
            rows.append([f"`{level}`", f"{title}: {part['groups']} groups", runs_of(part), *cells])
    return table(["", "launch flags", "runs (dense + MoE)", *HEAD], rows)


def what_is_fitted() -> str:
    """Sentences on what the level `transfer` uses of the scored group, and what the split by run id hides."""
    recorded = figures()
    flags = recorded["levels"]["transfer"]["by_flags"]
    fitted, other = flags["fitted"], flags["not_fitted"]
    runs, dense = fitted["all"]["ttft"]["n"], fitted["dense"]["ttft"]["n"]
    all_scored, dense_scored = (
        recorded["levels"]["transfer"]["all"]["ttft"]["n"],
        recorded["levels"]["transfer"]["dense"]["ttft"]["n"],
    )
    return (
        "`transfer` takes host-time constants from other groups, but it is not fully held out. Launch flags of "
        f"{fitted['groups']} of {fitted['groups'] + other['groups']} groups ({count(runs)} of {count(all_scored)} runs, "
        f"{percent(dense / dense_scored, 0)} of the dense ones) were fitted on the group's own fitting runs, and every form, recipe and "
        "constant was chosen on the fitting fifth of the scored groups. That fifth is drawn by run id: only "
        f"{recorded['lone_models']} scored runs have a model without a fitting run in another group. This split therefore does not "
        "show the error on a new campaign, client or model; whole campaigns held out are scored separately (By campaign)."
    )


def split() -> str:
    """List of the numbers of rows read, usable, fitted on and scored."""
    recorded = figures()
    scored = recorded["levels"]["transfer"]["all"]["ttft"]["n"]
    failed = sum(each["n"] for each in recorded["not_simulated"])
    return (
        f"- **Runs.** `aiconfigurator-core` 0.12 ships {count(recorded['read'])} measured rows; {count(recorded['runs'])} can be "
        f"simulated (the command prints every exclusion); some of these are scored separately.\n"
        f"- **Split.** {recorded['fitted_on']} runs (SHA-256 of the id modulo 5 is 0) are for fitting; {recorded['repeated']} of "
        f"them are unused because they repeat a scored measurement. {count(scored)} runs are scored, {failed} cannot be simulated. "
        f"Each measurement is scored once: {recorded['stated_again']} rows repeat one that is scored."
    )


def recipes() -> str:
    """Sentences on the number of launch recipes that rest on published scripts."""
    with (record.ROOT / "kernelsight" / "catalog" / "recipes.csv").open(encoding="utf-8") as file:
        basis = Counter(row["basis"] for row in csv.DictReader(file))
    doubtful = sum(n for name, n in basis.items() if name != "published")
    return (
        "- **Flags.** Each run is one scenario. Its flags are from the table `recipes` (`kernelsight/catalog/recipes.csv`), mostly "
        "from InferenceX's launch scripts, by model, GPU, engine, precision and date. "
        f"{doubtful} of {sum(basis.values())} rows are not published ({basis['fitted']} fitted, {basis['assumed']} assumed): the scripts of "
        "gap-analysis runs are unpublished, but AIConfigurator's published generator and benchmark scripts suggest what to try."
    )


def by_basis() -> str:
    """Table of scores by basis of a run's launch flags, and the scored runs of each unpublished recipe."""
    basis = figures()["by_basis"]
    rows = [
        [title, *(f"{' / '.join(percent(basis[name][kind][metric]['median_ape'], sign='') for metric in METRICS)} "
                  f"({count(basis[name][kind]['ttft']['n'])} runs)" for kind in KINDS)]
        for name, title in (("published", "all published"), ("fitted_or_assumed", "one or more fitted or assumed"))
    ]  # fmt: skip
    touched = ", ".join(f"`{each['recipe']}` ({each['basis']}) {count(each['scored'])}" for each in basis["recipes"])
    return (
        table(["flags", *KINDS.values()], rows)
        + f"\n\nFitted or assumed rows, with the number of scored runs that use each: {touched}."
    )


def intervals() -> str:
    """Table of the coverage and width of 90 % intervals, and of the single factor with equal coverage."""
    scores = figures()["levels"]["transfer"]
    rows, wider = [], []
    for kind, words in KINDS.items():
        cells = []
        for metric in INTERVALS:
            score = scores[kind][metric]
            cells += [f"{percent(score['coverage_90'], 0)}, {score['width_90']:.2f}", f"{score['width_fixed']:.2f}"]
            if score["width_90"] > score["width_fixed"]:
                wider.append(
                    f"{metric.upper()} of {words} models ({score['width_90']:.2f} against {score['width_fixed']:.2f})"
                )
        rows.append([words, count(scores[kind]["ttft"]["n"]), *cells])
    head = [f"{'' if number else metric.upper() + ': covered, p95 / p05'}{'one factor' if number else ''}"
            for metric in INTERVALS for number in (0, 1)]  # fmt: skip
    lowest = min(scores[kind][metric]["coverage_90"] for kind in KINDS for metric in INTERVALS)
    verdict = f"Every interval covers {percent(lowest, 0)} or more (the goal is 85 %). "
    verdict += f"Not narrower than one factor: {'; '.join(wider)}." if wider else "All are narrower than one factor."
    return table(["", "runs", *head], rows) + "\n\n" + verdict


def behind() -> str:
    """Table of the number of groups in which AIConfigurator's median is lower, and their names for `transfer`."""
    recorded = figures()
    way, words = next((way, words) for way, words in peer_inputs(recorded) if "behind" in recorded[way])
    peer = recorded[way]
    rows = [[f"`{level}`", *(str(each[metric]) for metric in METRICS)] for level, each in in_order(peer["behind"])]
    lost = [
        f"{group_name(group)} ({metric.upper()} {percent(group['ours'][metric], sign='')} against "
        f"{percent(group['peer'][metric])}, {group['n']} run{'s' if group['n'] > 1 else ''})"
        for group in peer["groups"]
        for metric in METRICS
        if group["ours"][metric] > group["peer"][metric]
    ]
    groups = next(iter(peer["behind"].values()))["groups"]
    which = f"\n\nThese are, for `transfer`: {'; '.join(lost)}." if lost else ""
    return (
        f"Number of groups, of the {groups} that both tools predict, in which our median error is higher ({words}):\n\n"
        + table(["level", "TTFT", "TPOT"], rows)
        + which
    )


def acceptance() -> str:
    """Sentence on the fitted acceptance rate of drafts by engine and model."""
    rates = figures()["draft_acceptance_rate"]
    return "Fitted acceptance: " + ", ".join(f"{name} {percent(rate, 0)}" for name, rate in sorted(rates.items())) + "."


def groups() -> str:
    """Table of every scored group at the level `transfer`."""
    rows = [[group_name(group), str(group["ttft"]["n"]), *(full(group[metric]) for metric in METRICS)]
            for group in figures()["groups"]]  # fmt: skip
    return table(["group", "runs", "TTFT", "TPOT"], rows)


def audit() -> str:
    """Sentences on an independent audit of AIConfigurator with fitted constants."""
    recorded = result("peer_audit")

    def cells(who: str) -> str:
        return ", ".join(
            f"{' / '.join(percent(value, sign='') for value in recorded[who][kind])} {words}"
            for kind, words in KINDS.items()
        )

    return (
        f"An independent audit fitted {recorded['constants']} constants per group for AIConfigurator, on the same fitting runs (22 November 2026, nominal lengths, "
        f"{count(recorded['runs'])} runs of an older split). Its median TTFT / TPOT errors were {cells('peer')}, in %; ours then, calibrated, were {cells('ours')} on these runs. "
        "Neither is comparable with the rows above, which use other runs."
    )


def teacher() -> str:
    """Table of errors for a deployment's other loads after no, one and two measured runs, beside the goals."""
    recorded = result("teacher")
    measured_runs = {"0": "no run", "1": "one run", "2": "two runs"}
    campaigns = {"all": "both campaigns", "inferencex": "InferenceX", "gap_analysis": "gap analysis"}
    rows = []
    for campaign, name in campaigns.items():
        for kind, words in KINDS.items():
            by_count = recorded[campaign][kind]
            cells = (
                "; ".join(
                    " / ".join(percent(by_count[number][how][place], 1, "") for how in ("median", "mean"))
                    for place in (0, 1)
                )
                for number in measured_runs
            )
            goal = GOALS_TAUGHT[kind] if campaign == "all" else ""
            rows.append([f"{words}, {name}", f"{by_count['0']['deployments']}, {by_count['0']['n']}", *cells, goal])
    return table(
        ["TTFT; TPOT, median / mean in %", "deployments, loads", *measured_runs.values(), "goal (median)"], rows
    )
