"""Recorded results of the evaluation of all splits: the figures that the documentation shows."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tables

sys.path.append(str(Path(__file__).resolve().parents[1]))
from record import record

COMMAND = "python benches/accuracy --sweep sweep.parquet"
GPUS, GENERATIONS = ("cross-generation", "target-measured"), "leave-one-generation-out, training GPUs"
SITES, LAYERS = "target-measured", "target-measured, whole layers"
SPLIT_COLUMNS = ["scored on", "mean / median", "p90", "time-weighted", "bias", "covers", "width", "pooled"]
SPLIT_COLUMNS += ["unseen kernels", "affine roofline", "H100 × ratio", "roofline"]
TITLES = {"gb200": "GB200", "b200_sxm": "B200", "rtx_pro_6000_server": "RTX PRO 6000"}
GENERATION_TITLES = {"ampere": "A100", "ada": "L40S", "hopper": "H100 and H200"}
BASELINES = ("affine_roofline", "nearest_gpu", "roofline")
Reports = Mapping[str, Mapping[str, Any]]


def keep(sections: Mapping[str, Reports]) -> Iterator[Path]:
    """Record the results whose sections were all evaluated; yield their files."""
    if all(name in sections for name in GPUS):
        reports = {name: report for section in GPUS for name, report in sections[section].items()}
        yield record("kernels_splits", split_rows(reports), f"{COMMAND} --only {' '.join(GPUS)}", cpu_s(reports))
    if GENERATIONS in sections:
        reports = sections[GENERATIONS]
        yield record("kernels_generations", split_rows(reports), f"{COMMAND} --only '{GENERATIONS}'", cpu_s(reports))
    if SITES in sections:
        by_share = {share_of(report): report for report in sections[SITES].values()}
        overall = [{"budget": share, **report["overall"]["serving"]} for share, report in by_share.items()]
        figures = {"overall": overall, "rows": cells(by_share)}
        yield record("kernels_sites", figures, f"{COMMAND} --only {SITES}", cpu_s(sections[SITES]))
    if SITES in sections and LAYERS in sections:
        both = {"sites": sections[SITES], "layers": sections[LAYERS]}
        parts = {(share_of(each), what): each for what, reports in both.items() for each in reports.values()}
        parts = {key: report for key, report in parts.items() if (key[0], "layers") in parts}
        overall = [{"budget": share, "what": what, **moe_of(report)} for (share, what), report in parts.items()]
        titled = {f"{share:.0%} of {what}".replace("%", " %"): report for (share, what), report in parts.items()}
        rows = cells(titled, "moe")
        command, spent = f"{COMMAND} --only {SITES} '{LAYERS}'", cpu_s(sections[LAYERS])
        yield record("kernels_layers", {"overall": overall, "rows": rows}, command, spent)


def cpu_s(reports: Mapping[str, Mapping[str, Any]]) -> int | None:
    """Return the total CPU seconds of some evaluations; None if one is unknown."""
    spent = [report.get("cpu_s") for report in reports.values()]
    return None if None in spent else round(sum(spent))


def split_rows(reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the table of some splits."""
    rows = [split_row(titled(name), each) for name, each in reports.items()]
    return {"rows": {"columns": SPLIT_COLUMNS, "rows": rows}}


def titled(name: str) -> str:
    """Return the title of a split in tables.

    >>> titled("to b200_sxm"), titled("10% of gb200"), titled("without hopper, of four GPUs")
    ('B200', 'GB200, 10 % of its sites', 'H100 and H200, fitted without its generation')
    """
    share, _, gpu = name.partition("% of ")
    if gpu:
        return f"{TITLES[gpu]}, {share} % of its sites"
    first, _, rest = name.removesuffix(", of four GPUs").partition(" ")
    return TITLES[rest] if first == "to" else f"{GENERATION_TITLES[rest]}, fitted without its generation"


def share_of(report: Mapping[str, Any]) -> float:
    """Return the share of sites that was measured."""
    return report["split"]["budget"]


def moe_of(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the mean over the covered MoE cells."""
    return next(row for row in report["by_family"] if row["family"] == "moe")["serving"]


def split_row(name: str, report: Mapping[str, Any]) -> list[str]:
    """Return a split's table row: the mean over covered cells of seen kernels, and baselines."""
    score = report["overall"]["serving"]
    numbers = [tables.percent(score[metric]) for metric in ("p90_ape", "time_weighted_ape", "bias", "coverage_90")]
    others = (report["overall_baselines"][baseline]["serving"] for baseline in BASELINES)
    return [
        *(
            name,
            tables.pair(score),
            *numbers,
            tables.ratio(score["width_90"]),
            tables.pair(report["pooled"]["serving"]),
        ),
        *(tables.pair(report["unseen_implementation"]["serving"]), *map(tables.pair, others)),
    ]


def cells(reports: Mapping[Any, Mapping[str, Any]], family: str | None = None) -> dict[str, Any]:
    """Return mean / median errors of every kernel at serving shapes: a row per cell, a column per report."""
    texts_of: dict[str, dict[Any, str]] = {}
    for title, report in reports.items():
        for mark, kind in (("", "families"), (" *", "uncovered")):
            for cell in report[kind]:
                if cell["serving"]["n"] and family in (None, cell["family"]):
                    name = f"{cell['family']}, {cell['dtype']}{mark}"
                    texts_of.setdefault(name, {})[title] = tables.pair(cell["serving"])
    titles = [title if isinstance(title, str) else f"{100 * title:g} % of sites" for title in reports]
    rows = [[name, *(texts.get(title, "–") for title in reports)] for name, texts in texts_of.items()]
    return {"columns": ["cell", *titles], "rows": rows}
