"""Tables beside the paper's figures (arXiv 2606.28565), and README's headlines of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import record

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
    points = recorded_points()
    more = f" Three measured calls of each kernel: {both(points['families'])}." if points else ""
    return (
        f"- **Kernels of dense BF16 layers** on GB200 (products, prompt and decode attention; fitted to A100, L40S, H100 and H200, nothing known of GB200): "
        f"{both(dense['nothing known'])} (median / mean, {count(dense['nothing known']['n'])} rows), {weighted(dense['nothing known'])} by time; "
        f"roofline {both(dense['roofline'])}, {weighted(dense['roofline'])}. The paper: {percent(PAPER['ours'])} at a roofline of {percent(PAPER['roofline'])}.\n"
        f"- **Every kernel**, all formats, mean over {len(figures['families'])} families: {both(everything['nothing known'])}, "
        f"{weighted(everything['nothing known'])} by time; roofline {both(everything['roofline'])}, {weighted(everything['roofline'])}.{more}"
    )


def recorded_points() -> Mapping[str, Any] | None:
    """Return the errors after three measured calls of each kernel; None: not measured."""
    return result("paper_points") if "paper_points" in record.names() else None


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
    dense, everything, points = figures["dense"], figures["everything"], recorded_points()

    def row(title: str, scores: Mapping[str, Any]) -> list[str]:
        return [title, count(scores["roofline"]["n"]), *(cell(scores[name]) for name in COLUMNS)]

    rows = [row("**dense BF16**, pooled over rows", dense["pooled"])]
    rows += [row(f"– {WORK[each['family']]}", each["scores"]) for each in dense["cells"]]
    rows += [row("– rows whose roofline is 60 % of the measurement or more", figures["dense_near_roofline"])]
    rows += [row(f"**everything**, mean over {len(figures['families'])} families", everything["families"])]
    rows += [row(f"everything, mean over {len(figures['cells'])} cells", everything["cells"])]
    rows += [row("everything, pooled over rows", everything["pooled"])]
    for name, words in (("dense", "dense BF16, mean over 3 cells"), ("families", "everything, mean over families")):
        if points:
            title = f"three measured calls of each kernel: {words}"
            rows.append([title, count(points[name]["n"]), cell(points[name]), "", "", "", ""])
    rows.append(["the paper, cross-generation", NONE, percent(PAPER["ours"]), "", percent(PAPER["roofline"]), "", ""])
    measured = "the paper, target-measured (comparable baseline)"
    rows.append([measured, NONE, percent(PAPER["measured"]), "", percent(PAPER["measured_baseline"]), "", ""])
    return table(["GB200, median / mean, time-weighted, %", "rows", *COLUMNS], rows)


def fabrics() -> str:
    """Sentence on figure 7: start-up and rate of all-reduces by GPU."""
    points = [point for point in result("paper_7")["points"] if point.get("us")]
    rows = []
    for gpu in dict.fromkeys(point["gpu"] for point in points):
        own = sorted((point for point in points if point["gpu"] == gpu), key=lambda point: point["bytes"])
        least, most = own[0], own[-1]
        half = next((point["bytes"] for point in own if point["efficiency"] >= most["efficiency"] / 2), None)
        rate, start = most["bytes"] / most["us"] / 1e3, f"{least['us']:.0f}"
        rows.append(
            f"{gpu} ({most['fabric']}) {start} µs, {rate:.0f} GB/s ({percent(most['efficiency'], 0)}), {half / 2**20:.2g} MiB"
        )
    return f"Smallest message, largest message (share of the link's rate), message that reaches half of that: {'; '.join(rows)}."


def composition() -> str:
    """Sentence on figure 8: shares of families in the prompt, at the first and at the last token."""
    rows = result("paper_8")["rows"]
    places = (0, 1, 10, 20)
    titles = {row["place"]: row["generated"] for row in rows if row["place"] in places}
    shares = {(row["place"], row["family"]): row["share"] / 100.0 for row in rows}
    families = sorted(
        {row["family"] for row in rows}, key=lambda name: -max(shares.get((place, name), 0.0) for place in places)
    )
    words = [
        f"{titles[place]}{' tokens' if place else ''}: "
        + ", ".join(f"{name} {percent(shares.get((place, name), 0.0), 0)}" for name in families[:4])
        for place in places
    ]
    return f"{'; '.join(words)}."


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
    """Lists of figure 11: η's magnitude and spread by family, and errors by region."""
    figures = result("paper_11")
    by_region: dict[str, list[str]] = {}
    for row in sorted(figures["portability"], key=lambda row: -(row["spread"] or 0.0)):
        if row["implementation"] is None:
            spread = "one generation" if row["spread"] is None else f"{row['spread']:.1f}"
            by_region.setdefault(row["region"], []).append(f"{row['family']} {row['geometric_mean']:.1f} ({spread})")
    regions = [f"- {name}: {', '.join(families)}." for name, families in sorted(by_region.items())]
    errors = ", ".join(f"{row['region']} {both(row)} ({count(row['n'])} rows)" for row in figures["errors"])
    error = f"- Error on GB200, nothing known of it, by the region of the kernel that ran (median / mean): {errors}."
    return "\n".join(["Geometric mean of η (largest / smallest GPU):\n", *regions, error])


def loads() -> str:
    """Table of figure 12: signed errors by concurrency."""
    points = result("paper_12")["points"]
    keys = dict.fromkeys((point["deployment"], point["max_concurrency"]) for point in points)
    errors = {(point["deployment"], point["max_concurrency"], point["metric"]): point["error"] for point in points}
    rows = []
    for name in dict.fromkeys(name for name, _ in keys):
        users = sorted(number for other, number in keys if other == name)
        signed = (
            ", ".join(f"{errors[name, number, metric]:+.0f}" for number in users)
            for metric in ("ttft", "tpot", "throughput")
        )
        rows.append([name, ", ".join(map(str, users)), *signed])
    return table(["deployment", "concurrency", "TTFT, %", "TPOT, %", "output throughput, %"], rows)


def ceilings() -> str:
    """Sentence on figure 3: the roofs, and how many kernels are drawn."""
    figures = result("paper_3")
    rates = ", ".join(
        f"{name} {rate / 1e12:,.0f} TFLOP/s"
        for name, rate in figures["ceilings"].items()
        if name != "memory_bytes_per_s"
    )
    memory = figures["ceilings"]["memory_bytes_per_s"] / 1e9
    return (
        f"{count(len(figures['points']))} kernels of {figures['gpu']}; ceilings: memory {count(memory)} GB/s, {rates}."
    )


def shapes() -> str:
    """Sentence on figure 10: the error of the dashed curve on GB200, and the shape of each family."""
    figures = result("paper_10")
    rows = []
    for family, fixed in figures["fixed"].items():
        own = [point for point in figures["points"] if point["family"] == family]
        predicted = {point["size"]: point["predicted"] for point in own if point.get("predicted")}
        target = [point for point in own if point["gpu"] == "gb200" and point["size"] in predicted and point.get("eta")]
        errors = sorted(abs(predicted[point["size"]] / point["eta"] - 1.0) for point in target)
        shape = ", ".join(
            f"{name} {value:.0f}" for name, value in fixed.items() if name not in ("engine", "dtype") and value
        )
        middle = percent(errors[len(errors) // 2], 0)
        rows.append(f"{family} {middle} ({fixed['engine']}, {fixed['dtype']}, {shape})")
    return f"Median error of the dashed curve: {'; '.join(rows)}."
