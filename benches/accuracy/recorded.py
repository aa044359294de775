"""What the documentation shows of an evaluation of all splits, as results of benches (``benches/record.py``)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tables

sys.path.append(str(Path(__file__).resolve().parents[1]))
from record import record

COMMAND = "python benches/accuracy --sweep sweep.parquet"
SPLITS = ("cross-generation", "leave-one-generation-out", "target-measured")
SITES, LAYERS = "target-measured", "target-measured, whole layers"
SPLIT_COLUMNS = ["scored on", "mean / median", "p90", "time-weighted", "bias", "covers", "width", "pooled"]
SPLIT_COLUMNS += ["unseen kernels", "affine roofline", "H100 × ratio", "roofline"]
BASELINES = ("affine_roofline", "nearest_gpu", "roofline")
Reports = Mapping[str, Mapping[str, Any]]


def keep(sections: Mapping[str, Reports]) -> Iterator[Path]:
    """Write the results whose sections were all evaluated; yield their files."""
    if all(name in sections for name in SPLITS):
        rows = [split_row(name, report) for section in SPLITS for name, report in sections[section].items()]
        yield record("kernels_splits", {"rows": {"columns": SPLIT_COLUMNS, "rows": rows}}, COMMAND)
    if SITES in sections:
        found = {share_of(report): report for report in sections[SITES].values()}
        overall = [{"budget": share, **report["overall"]["serving"]} for share, report in found.items()]
        yield record("kernels_sites", {"overall": overall, "rows": cells(found)}, f"{COMMAND} --only {SITES}")
    if SITES in sections and LAYERS in sections:
        both = {"sites": sections[SITES], "layers": sections[LAYERS]}
        parts = {(share_of(each), what): each for what, reports in both.items() for each in reports.values()}
        parts = {key: report for key, report in parts.items() if (key[0], "layers") in parts}
        overall = [{"budget": share, "what": what, **moe_of(report)} for (share, what), report in parts.items()]
        titled = {f"{share:.0%} of {what}".replace("%", " %"): report for (share, what), report in parts.items()}
        rows = cells(titled, "moe")
        yield record("kernels_layers", {"overall": overall, "rows": rows}, f"{COMMAND} --only {SITES} '{LAYERS}'")


def share_of(report: Mapping[str, Any]) -> float:
    """Return the share of sites that was measured."""
    return report["split"]["budget"]


def moe_of(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the mean over the covered cells of experts."""
    return next(row for row in report["by_family"] if row["family"] == "moe")["serving"]


def split_row(name: str, report: Mapping[str, Any]) -> list[str]:
    """Return the row of a split: the mean over covered cells of kernels seen in training, and baselines."""
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
    """Return a row a cell and a column a report: mean / median of every kernel at serving shapes."""
    found: dict[str, dict[Any, str]] = {}
    for title, report in reports.items():
        for mark, kind in (("", "families"), (" *", "uncovered")):
            for cell in report[kind]:
                if cell["serving"]["n"] and family in (None, cell["family"]):
                    name = f"{cell['family']}, {cell['dtype']}{mark}"
                    found.setdefault(name, {})[title] = tables.pair(cell["serving"])
    titles = [title if isinstance(title, str) else f"{100 * title:g} % of sites" for title in reports]
    rows = [[name, *(texts.get(title, "–") for title in reports)] for name, texts in found.items()]
    return {"columns": ["cell", *titles], "rows": rows}
