"""Views of kernel errors: `kernels_gb200`, `kernels_facts`, and the splits that were published before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from figures.blocks import result
from figures.text import NONE, count, mean_median, percent, table

BASELINES = {"affine_roofline": "affine roofline", "nearest_gpu": "H100 × ratio"}


def is_behind(cell: Mapping[str, Any], names: Sequence[str] = tuple(BASELINES), part: str = "seen") -> list[str]:
    """Return the baselines with a lower mean or median error in a cell, on the rows that they have an answer for."""
    behind = []
    for name in names:
        own, other = cell[part]["baselines"][name]["model_there"], cell[part]["baselines"][name]
        if other["n"] and any(own[metric] > other[metric] for metric in ("mape", "median_ape")):
            behind.append(BASELINES[name])
    return behind


def covered_cells(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the covered cells that have rows of kernels seen in training."""
    return [cell for cell in found["cells"] if cell["seen"]["n"]]


def both(score: Mapping[str, Any]) -> str:
    """Return "median / mean %"."""
    return f"{percent(score['median_ape'], sign='')} / {percent(score['mape'])}"


def headline() -> str:
    """What README says of kernels: names known and seen, nothing known, baselines, and what a fact is worth."""
    found = result("kernels_gb200")
    cells = covered_cells(found)
    affine, plain = (found["overall_baselines"][name] for name in ("affine_roofline", "roofline"))
    either = sum(bool(is_behind(cell)) for cell in cells)
    name = ("decode_attention", "bf16/fp8")
    ours, lineage = (
        next(cell for cell in result(which)["cells"] if (cell["family"], cell["dtype"]) == name)
        for which in ("kernels_gb200", "kernels_facts")
    )
    return (
        f"Kernels of GB200, nothing fitted on it, median / mean error over {len(cells)} cells of serving shapes. Names of kernels "
        f"known, kernels seen in training ({count(found['overall']['n'])} of {count(found['covered']['n'])} rows): "
        f"{both(found['overall'])}; affine roofline {both(affine)} ({either} cells are behind it or H100 × ratio), plain roofline "
        f"{both(plain)}. Nothing known, every kernel: {both(found['nothing_of_target']['covered'])}. One fact of decode attention was "
        f"chosen on GB200: with its lineage's, FP8 caches get {both(lineage['all'])}, not {both(ours['all'])}."
    )


def summary() -> str:
    """The table of the summary page: across generations, nothing known, from measured sites, baselines."""
    found = result("kernels_gb200")
    baselines = found["overall_baselines"]
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
        row("names of kernels known, kernels seen in training", found["overall"]),
        row("the same, pooled over rows", found["pooled"]),
        row("names known, every kernel", found["covered"]),
        row(
            "nothing of GB200 known, including which kernels run there; every kernel",
            found["nothing_of_target"]["covered"],
        ),
        row("affine roofline (two constants a cell), kernels seen", baselines["affine_roofline"]),
        row("H100 × ratio of rooflines, kernels seen", baselines["nearest_gpu"]),
        row("plain roofline, kernels seen", baselines["roofline"]),
        row("10 % of GB200's shape sites measured", sites[0.1]),
        row("50 % of its sites", sites[0.5]),
        row("MoE alone, 10 % of its sites", layers[0.1, "sites"]),
        row("MoE alone, 10 % of its whole layers", layers[0.1, "layers"]),
    ]
    return table(["", "rows", "mean error", "median error", "covers (90 % interval)", "width p95 / p05"], rows)


def behind() -> str:
    """In how many cells, and in which, a baseline is better."""
    cells = covered_cells(result("kernels_gb200"))
    affine = [cell for cell in cells if is_behind(cell, ["affine_roofline"])]
    either = [cell for cell in cells if is_behind(cell)]
    names = ", ".join(f"{cell['family']} {cell['dtype']}" for cell in either)
    every = sum(bool(is_behind(cell, part="all")) for cell in cells)
    right = sum(
        cell["seen"]["coverage_90"] >= 0.85 and cell["seen"]["width_90"] <= 2.5
        for cell in cells
        if cell["seen"]["coverage_90"] is not None
    )
    return (
        f"On kernels seen in training, {len(affine)} of {len(cells)} cells have a higher mean or median error than the affine roofline, and "
        f"{len(either)} than it or H100 × ratio: {names}. Including unseen kernels, {every} cells do. Intervals cover 85 % at a width of 2.5 or less in "
        f"{right} of {len(cells)} cells."
    )


def cells() -> str:
    """Every cell of GB200: mean / median error in %, all kernels and those seen, beside the baselines."""
    found = result("kernels_gb200")
    rows = []
    for mark, cell in [("", cell) for cell in found["cells"]] + [(" *", cell) for cell in found["uncovered"]]:
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
        "covers",
        "width",
        "nothing known",
        *BASELINES.values(),
        "roofline",
        "kernels seen: behind",
    ]
    return table(head, rows)


def nothing_known() -> str:
    """Kernel choice known against nothing of the target."""
    found = result("kernels_gb200")
    nothing = found["nothing_of_target"]
    parts = [
        ("kernels seen in training: kernel choice known", found["overall"], found["pooled"]),
        ("kernels seen in training: nothing of the target", nothing["overall"], nothing["pooled"]),
        ("every kernel: kernel choice known", found["covered"], None),
        ("every kernel: nothing of the target", nothing["covered"], None),
    ]
    rows = [
        [title, count(score["n"]), mean_median(score), percent(score["p90_ape"], sign=""), f"{100 * score['bias']:+.1f}",
         percent(score["coverage_90"], sign=""), f"{score['width_90']:.1f}", mean_median(pooled) if pooled else ""]
        for title, score, pooled in parts
    ]  # fmt: skip
    head = [
        f"mean over {len(covered_cells(found))} covered cells",
        "rows",
        "mean / median",
        "p90",
        "bias",
        "covers",
        "width",
        "pooled",
    ]
    return table(head, rows)


def facts() -> str:
    """What the facts that were chosen on GB200 are worth: its kernels with the limit of a stream of their lineages."""
    own = {(cell["family"], cell["dtype"]): cell for cell in result("kernels_gb200")["cells"]}
    rows = []
    for cell in result("kernels_facts")["cells"]:
        ours = own[cell["family"], cell["dtype"]]
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
    """How far two measurements of one kernel differ on GB200."""
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
    """Below what no model can go."""
    medians = [percent(each["serving"]["median_ape"], sign="") for each in result("kernels_gb200")["remeasured"]]
    return f"The same kernel measured twice on GB200 differs by {' and '.join(medians)} % (median). No model can be more accurate than that."


def published(name: str, which: str = "rows") -> str:
    """A table as it was published."""
    found = result(name)[which]
    return table(found["columns"], found["rows"])
