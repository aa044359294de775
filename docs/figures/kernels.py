"""Tables of kernel errors: GB200 by cell and baseline, facts chosen on it, and the recorded tables of other splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from figures.blocks import result
from figures.text import NONE, count, mean_median, percent, table

BASELINES = {"affine_roofline": "affine roofline", "nearest_gpu": "H100 × ratio"}


def is_behind(cell: Mapping[str, Any], names: Sequence[str] = tuple(BASELINES), part: str = "seen") -> list[str]:
    """Return the baselines with a lower mean or median error in a cell, on the rows that they predict."""
    behind = []
    for name in names:
        model, other = cell[part]["baselines"][name]["model_there"], cell[part]["baselines"][name]
        if other["n"] and any(model[metric] > other[metric] for metric in ("mape", "median_ape")):
            behind.append(BASELINES[name])
    return behind


def covered_cells(recorded: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the covered cells that have rows of kernels seen in training."""
    return [cell for cell in recorded["cells"] if cell["seen"]["n"]]


def summary() -> str:
    """Table of the summary page: across generations, nothing known, baselines, from measured sites."""
    gb200 = result("kernels_gb200")
    baselines = gb200["overall_baselines"]
    sites = {row["budget"]: row for row in result("kernels_sites")["overall"]}
    layers = {(row["budget"], row["what"]): row for row in result("kernels_layers")["overall"]}

    def row(title: str, score: Mapping[str, Any]) -> list[str]:
        width = NONE if score.get("width_90") is None else f"{score['width_90']:.1f}"
        return [
            title,
            count(score["n"]) if score.get("n") else "",
            percent(score["mape"]),
            percent(score["median_ape"]),
            percent(score.get("coverage_90")),
            width,
        ]

    rows = [
        row("kernel choice known, kernels seen in training", gb200["overall"]),
        row("the same, pooled over rows", gb200["pooled"]),
        row("kernel choice known, every kernel", gb200["covered"]),
        row(
            "nothing known of GB200, not even which kernels run; every kernel",
            gb200["nothing_of_target"]["covered"],
        ),
        row("affine roofline (two constants per cell), kernels seen in training", baselines["affine_roofline"]),
        row("H100 × ratio of rooflines, kernels seen in training", baselines["nearest_gpu"]),
        row("plain roofline, kernels seen in training", baselines["roofline"]),
        row("10 % of GB200's shape sites measured", sites[0.1]),
        row("50 % of its sites", sites[0.5]),
        row("MoE only, 10 % of its sites", layers[0.1, "sites"]),
        row("MoE only, 10 % of its whole layers", layers[0.1, "layers"]),
    ]
    return table(["", "rows", "mean error", "median error", "coverage of 90 % interval", "width p95 / p05"], rows)


def behind() -> str:
    """Sentences on the number of cells in which a baseline is better, and which these are."""
    cells = covered_cells(result("kernels_gb200"))
    affine = [cell for cell in cells if is_behind(cell, ["affine_roofline"])]
    either = [cell for cell in cells if is_behind(cell)]
    names = ", ".join(f"{cell['family']} {cell['dtype']}" for cell in either)
    n_all_kernels = sum(bool(is_behind(cell, part="all")) for cell in cells)
    meets_goals = sum(
        cell["seen"]["coverage_90"] >= 0.85 and cell["seen"]["width_90"] <= 2.5
        for cell in cells
        if cell["seen"]["coverage_90"] is not None
    )
    return (
        f"On kernels seen in training, {len(affine)} of {len(cells)} cells have a higher mean or median error than the affine roofline, and "
        f"{len(either)} than it or H100 × ratio: {names}. Including unseen kernels, {n_all_kernels} cells do. Intervals cover 85 % at a width of 2.5 or less in "
        f"{meets_goals} of {len(cells)} cells."
    )


def cells() -> str:
    """Table of every cell of GB200: mean / median error of all and of seen kernels, beside the baselines."""
    gb200 = result("kernels_gb200")
    rows = []
    for mark, cell in [("", cell) for cell in gb200["cells"]] + [(" *", cell) for cell in gb200["uncovered"]]:
        if not cell["all"]["n"]:
            continue
        seen = cell.get("seen")
        rows.append(
            [
                f"{cell['family']}, {cell['dtype']}{mark}",
                count(cell["all"]["n"]),
                mean_median(cell["all"]),
                mean_median(seen) if seen else NONE,
                percent(seen["coverage_90"], 0) if seen and seen["n"] else NONE,
                f"{seen['width_90']:.1f}" if seen and seen["n"] else NONE,
                mean_median(cell["all"]["nothing_of_target"]),
                *(mean_median(cell["all"]["baselines"][name]) for name in (*BASELINES, "roofline")),
                ", ".join(is_behind(cell)) if seen else "",
            ]
        )
    head = [
        "cell",
        "rows",
        "every kernel",
        "kernels seen",
        "coverage",
        "width",
        "nothing known",
        *BASELINES.values(),
        "roofline",
        "lower error, kernels seen",
    ]
    return table(head, rows)


def facts() -> str:
    """Table of the cells that change without the facts chosen on GB200: stream limits as in older kernels."""
    shipped_cells = {(cell["family"], cell["dtype"]): cell for cell in result("kernels_gb200")["cells"]}
    rows = []
    for cell in result("kernels_facts")["cells"]:
        ours = shipped_cells[cell["family"], cell["dtype"]]
        if mean_median(ours["all"]) != mean_median(cell["all"]):
            rows.append(
                [
                    f"{cell['family']}, {cell['dtype']}",
                    count(cell["all"]["n"]),
                    mean_median(ours["all"]),
                    mean_median(cell["all"]),
                    mean_median(ours["seen"]),
                    mean_median(cell["seen"]),
                ]
            )
    return table(["cell", "rows", "every kernel: `streams` 0 (ships)", "`streams` 1", "kernels seen: 0", "1"], rows)


def remeasured() -> str:
    """Table of the differences of two measurements of one kernel on GB200."""
    rows = [
        [
            each["family"],
            each["what"],
            count(each["grid"]["n"]),
            mean_median(each["serving"]),
            mean_median(each["grid"]),
        ]
        for each in result("kernels_gb200")["remeasured"]
    ]
    return table(["family", "what", "pairs", "serving shapes", "whole grid"], rows)


def floor() -> str:
    """Sentence on the error floor: the difference of two measurements of one kernel."""
    medians = [percent(each["serving"]["median_ape"], sign="") for each in result("kernels_gb200")["remeasured"]]
    return f"The same kernel measured twice on GB200 differs by {' and '.join(medians)} % (median). No model can be more accurate than that."


def published(name: str, which: str = "rows") -> str:
    """Table as recorded in a result."""
    recorded = result(name)[which]
    return table(recorded["columns"], recorded["rows"])
