"""Tables beside the paper's figures (arXiv 2606.28565), and README's headlines of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from figures.blocks import result
from figures.text import NONE, count, median_mean, percent, table

# per-kernel errors as the paper states them: mean or median, shapes and weights are not stated
PAPER = {"ours": 0.121, "roofline": 0.220, "measured": 0.038, "measured_baseline": 0.277}
WORK = {"gemm": "products", "prefill_attention": "prompt attention", "decode_attention": "decode attention"}
COLUMNS = ("nothing known", "kernel choice known", "roofline", "affine roofline", "H100 × ratio")


def headlines() -> str:
    """README's two lines on kernels, each beside its roofline."""
    figures = result("paper_tables")
    dense, everything = figures["dense"]["pooled"], figures["everything"]["families"]
    points = figures["points"]
    return (
        f"- **Kernels of dense BF16 layers** on GB200 (products, prompt and decode attention; fitted to A100, L40S, H100 and H200, nothing known of GB200): "
        f"{both(dense['nothing known'])} (median / mean, {count(dense['nothing known']['n'])} rows), {weighted(dense['nothing known'])} by time; "
        f"roofline {both(dense['roofline'])}. The paper: {percent(PAPER['ours'])} at a roofline of {percent(PAPER['roofline'])}.\n"
        f"- **Every kernel**, all formats, mean over {len(figures['families'])} families: {both(everything['nothing known'])}, "
        f"{weighted(everything['nothing known'])} by time; roofline {both(everything['roofline'])}. "
        f"Three measured calls of each kernel: {both(points['families'])}."
    )


def both(score: Mapping[str, Any]) -> str:
    """Return "median / mean %".

    >>> both({"median_ape": 0.105, "mape": 0.14})
    '10.5 / 14.0 %'
    """
    return f"{percent(score['median_ape'], sign='')} / {percent(score['mape'])}"


def weighted(score: Mapping[str, Any]) -> str:
    """Return the error weighted by measured time."""
    return percent(score["time_weighted_ape"])


def cell(score: Mapping[str, Any]) -> str:
    """Return "median / mean, time-weighted" in percent; a dash without rows."""
    return f"{median_mean(score)}, {percent(score['time_weighted_ape'], sign='')}" if score["n"] else NONE


def kernels() -> str:
    """Table of both headlines and their parts beside baselines, and of the paper's figures."""
    figures = result("paper_tables")
    dense, everything, points = figures["dense"], figures["everything"], figures["points"]

    def row(title: str, scores: Mapping[str, Any]) -> list[str]:
        return [title, count(scores["roofline"]["n"]), *(cell(scores[name]) for name in COLUMNS)]

    rows = [row("**dense BF16**, pooled over rows", dense["pooled"])]
    rows += [row(f"– {WORK[each['family']]}", each["scores"]) for each in dense["cells"]]
    rows += [row("– rows whose roofline is 60 % of the measurement or more", figures["dense_near_roofline"])]
    rows += [row(f"**everything**, mean over {len(figures['families'])} families", everything["families"])]
    rows += [row(f"– {each['family'].replace('_', ' ')}", each["scores"]) for each in figures["families"]]
    rows += [row(f"everything, mean over {len(figures['cells'])} cells", everything["cells"])]
    rows += [row("everything, pooled over rows", everything["pooled"])]
    blank = [""] * 3
    for name, scores in (
        ("dense BF16, mean over 3 cells", points["dense"]),
        ("everything, mean over families", points["families"]),
    ):
        rows.append([f"three measured calls of each kernel: {name}", count(scores["n"]), cell(scores), "", *blank])
    rows.append(["the paper, cross-generation", NONE, percent(PAPER["ours"]), "", percent(PAPER["roofline"]), "", ""])
    measured = "the paper, target-measured (comparable baseline)"
    rows.append([measured, NONE, percent(PAPER["measured"]), "", percent(PAPER["measured_baseline"]), "", ""])
    return table(["GB200, median / mean, time-weighted, %", "rows", *COLUMNS], rows)


def fabrics() -> str:
    """Table of figure 7: the share of a link's rate that an all-reduce reaches, small and large, and the start-up."""
    points = [point for point in result("paper_7")["points"] if point.get("us")]
    rows = []
    for gpu in dict.fromkeys(point["gpu"] for point in points):
        own = sorted((point for point in points if point["gpu"] == gpu), key=lambda point: point["bytes"])
        least, most = own[0], own[-1]
        half = next((point["bytes"] for point in own if point["efficiency"] >= most["efficiency"] / 2), None)
        rows.append([gpu, most["fabric"], str(most["gpus"]), f"{least['us']:.1f}", f"{most['bytes'] / most['us'] / 1e3:.0f}",
                     percent(most["efficiency"], 0), f"{half / 2**20:.2g}"])  # fmt: skip
    head = [
        "GPU",
        "fabric",
        "GPUs",
        "smallest message (µs)",
        "largest message (GB/s)",
        "of the link's rate",
        "half of that from (MiB)",
    ]
    return table(head, rows)


def composition() -> str:
    """Table of figure 8: shares of families in the prompt, at the first and at the last token."""
    rows = result("paper_8")["rows"]
    places = (0, 1, 10, 20)
    titles = {row["place"]: row["generated"] for row in rows if row["place"] in places}
    shares = {(row["place"], row["family"]): row["share"] / 100.0 for row in rows}
    families = sorted(
        {row["family"] for row in rows}, key=lambda name: -max(shares.get((place, name), 0.0) for place in places)
    )
    heads = [titles[place] if place == 0 else f"{titles[place]} tokens" for place in places]
    return table(
        ["family", *heads],
        [[name, *(percent(shares.get((place, name)), 0) for place in places)] for name in families[:6]],
    )


def runs() -> str:
    """Table of figure 9: errors of replayed runs by GPU."""
    errors = result("paper_9")["errors"]
    kinds = dict.fromkeys((row["gpu"], row["kind"]) for row in errors)
    by_metric = {(row["gpu"], row["kind"], row["metric"]): row for row in errors}
    rows = [
        [
            gpu,
            kind,
            count(by_metric[gpu, kind, "ttft"]["n"]),
            *(median_mean(by_metric[gpu, kind, name]) for name in ("ttft", "tpot", "throughput")),
        ]
        for gpu, kind in kinds
    ]
    return table(["GPU", "deployment", "runs", "TTFT", "TPOT", "output throughput"], rows)


def regions() -> str:
    """Table of figure 11: η's magnitude and spread by family, and the region."""
    figures = result("paper_11")
    rows = [
        [
            row["family"],
            f"{row['geometric_mean']:.1f}",
            NONE if row["spread"] is None else f"{row['spread']:.1f}",
            row["region"],
        ]
        for row in sorted(figures["portability"], key=lambda row: -(row["spread"] or 0.0))
        if row["implementation"] is None
    ]
    errors = ", ".join(f"{row['region']} {both(row)} ({count(row['n'])} rows)" for row in figures["errors"])
    return table(["family", "η, geometric mean", "largest / smallest GPU", "region"], rows) + (
        f"\n\nError on GB200, nothing known of it, by the region of the kernel that ran (median / mean): {errors}."
    )


def loads() -> str:
    """Table of figure 12: signed errors by concurrency."""
    points = result("paper_12")["points"]
    keys = dict.fromkeys((point["deployment"], point["max_concurrency"]) for point in points)
    errors = {(point["deployment"], point["max_concurrency"], point["metric"]): point["error"] for point in points}
    rows = [
        [name, str(users), *(f"{errors[name, users, metric]:+.1f}" for metric in ("ttft", "tpot", "throughput"))]
        for name, users in sorted(keys)
    ]
    return table(["deployment", "concurrency", "TTFT, %", "TPOT, %", "output throughput, %"], rows)
