"""Views of kernel searches: `search` (policies) and `search_tuner` (strategies of Kernel Tuner, misleading sources)."""

from __future__ import annotations

from typing import Any

from figures.blocks import result
from figures.text import percent, table

TITLES = {"order": "order of the others"}


def number(value: float | None) -> str:
    """Return a number of measurements; None: it never came so near."""
    return "never" if value is None else f"{value:g}"


def policies() -> str:
    """Every policy, with all sources and without the most similar GPU."""
    rows = [
        [
            TITLES.get(row["policy"], row["policy"])
            + (", without the most similar GPU" if row["without_nearest"] else ""),
            f"{percent(row['within_5'], 0, '')} / {percent(row['within_2'], 0)}",
            f"{number(row['n_to_5'])} / {number(row['n_to_2'])}",
            " / ".join(percent(row[f"regret_{n}"], sign="") for n in (20, 50, 100)) + " %",
            f"{row['score']:.2f}",
        ]
        for row in result("search")["policies"]
    ]
    head = [
        "policy",
        "within 5 / 2 %",
        "measurements to 5 / 2 % (median)",
        "mean regret after 20 / 50 / 100",
        "score P",
    ]
    return table(head, rows)


def calibration() -> str:
    """How often selective searches end near the optimum, coverage, bins, stops."""
    found = result("search")
    spaces, cover, ece, stops = found["within_2_by_space"], found["coverage"], found["ece"], found["stops"]
    every = sum(share == 1.0 for share in spaces)
    rest = ", ".join(f"in {percent(share, 0)}" for share in spaces if share < 1.0)
    return (
        f"Selective searches end within 2 % in every run of {every} of the {found['spaces']} spaces (of the others {rest}); the "
        "last of these is the convolution on A100, whose fastest configuration uses shared memory and the read-only cache together, "
        "as on no other GPU. It alone makes most of the mean regret. 90 % intervals cover "
        f"{percent(cover['20'], 0)} and {percent(cover['50'], 0)} of all other candidates after 20 and 50 measurements "
        f"({percent(cover['20 without nearest'], 0)} and {percent(cover['50 without nearest'], 0)} without the most similar GPU); the "
        f"calibration error of the eight speed-up bins is {ece['20']:.2f} and {ece['50']:.2f} ({ece['20 without nearest']:.2f} and "
        f"{ece['50 without nearest']:.2f}). {stops['n']} of the {found['runs']} searches would have stopped by themselves "
        f"(`--stop 0.1`), after {stops['median_measurements']:g} measurements in the median, {percent(stops['within_2'], 0)} of them within 2 %."
    )


def kernel_tuner() -> str:
    """Against strategies that see no other GPU, and the plain order of the others, which sees them too."""
    found = result("search_tuner")
    never = float("inf")
    best, second, *_ = sorted(found["strategies"], key=lambda row: row["n_to_5"] or never)
    ours = {(row["policy"], row["without_nearest"]): row for row in result("search")["policies"]}

    def to(row: dict[str, Any]) -> str:
        return f"{number(row['n_to_5'])} and {number(row['n_to_2'])}"

    order = ours["order", False]
    same = to(order) == to(ours["selective", False])
    return (
        f"The strategies of Kernel Tuner {found['version']} see no other GPU (default settings, {found['measurements']} measurements, "
        f"{found['seeds']} seeds): the best takes {to(best)} measurements to 5 and 2 % in the median (`{best['name']}`; `{second['name']}` "
        f"{to(second)}). A selective search has the measurements of other GPUs: it takes {to(ours['selective', False])}, and the plain order "
        f"of the other GPUs takes {'the same ' if same else ''}{to(order)}; without the most similar GPU {to(ours['selective', True])}, the plain "
        f"order {to(ours['order', True])}. What is saved is what other GPUs know; a search of a kernel that no other GPU measured saves none of it."
    )


def misleading() -> str:
    """Spaces in which sources do harm."""
    found = result("search_tuner")["misleading"]
    spaces = result("search")["spaces"]
    rows = [
        [name, f"{len(worse)} of {spaces}: " + ", ".join(f"{each['where']} {each['points']:g}" for each in worse)]
        for name, worse in found.items()
    ]
    return table(["sources", "spaces more than 2 points worse"], rows)
