"""Tables and sentences on kernel searches: policies, calibration, strategies of Kernel Tuner, misleading sources."""

from __future__ import annotations

from typing import Any

from figures.blocks import result
from figures.text import percent, table

TITLES = {"order": "order of the other GPUs"}


def number(value: float | None) -> str:
    """Return a number of measurements; None: never reached."""
    return "never" if value is None else f"{value:g}"


def policies() -> str:
    """Table of every policy, with all sources and without the most similar GPU."""
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
    """Sentences on `selective`: final regret, coverage of intervals, calibration of bins, early stops."""
    recorded = result("search")
    spaces, cover, ece, stops = recorded["within_2_by_space"], recorded["coverage"], recorded["ece"], recorded["stops"]
    n_always = sum(share == 1.0 for share in spaces)
    rest = ", ".join(f"in {percent(share, 0)}" for share in spaces if share < 1.0)
    return (
        f"The policy `selective` ends within 2 % of the optimum in every run on {n_always} of the {recorded['spaces']} spaces (on the others {rest} of runs); "
        "the last of these is the convolution on A100, whose fastest configuration uses shared memory and the read-only cache together, "
        "unlike on any other GPU. It causes most of the mean regret. 90 % intervals cover "
        f"{percent(cover['20'], 0)} and {percent(cover['50'], 0)} of all other candidates after 20 and 50 measurements "
        f"({percent(cover['20 without nearest'], 0)} and {percent(cover['50 without nearest'], 0)} without the most similar GPU); the "
        f"calibration error of the eight speed-up bins is {ece['20']:.2f} and {ece['50']:.2f} ({ece['20 without nearest']:.2f} and "
        f"{ece['50 without nearest']:.2f}). {stops['n']} of the {recorded['runs']} searches would have stopped early "
        f"(`--stop 0.1`), after a median of {stops['median_measurements']:g} measurements, {percent(stops['within_2'], 0)} of them within 2 %."
    )


def kernel_tuner() -> str:
    """Sentences on `selective` against Kernel Tuner's strategies, which do not use other GPUs, and `order`, which does."""
    recorded = result("search_tuner")
    never = float("inf")
    best, second, *_ = sorted(recorded["strategies"], key=lambda row: row["n_to_5"] or never)
    ours = {(row["policy"], row["without_nearest"]): row for row in result("search")["policies"]}

    def to(row: dict[str, Any]) -> str:
        return f"{number(row['n_to_5'])} and {number(row['n_to_2'])}"

    order = ours["order", False]
    same = to(order) == to(ours["selective", False])
    return (
        f"The strategies of Kernel Tuner {recorded['version']} do not use other GPUs (default settings, {recorded['measurements']} measurements, "
        f"{recorded['seeds']} seeds): the best needs a median of {to(best)} measurements to reach 5 and 2 % (`{best['name']}`; `{second['name']}` "
        f"{to(second)}). `selective` uses the measurements of other GPUs: it needs {to(ours['selective', False])}, and the policy "
        f"`order` needs {'the same ' if same else ''}{to(order)}; without the most similar GPU, `selective` needs "
        f"{to(ours['selective', True])}, `order` {to(ours['order', True])}. The saving comes from other GPUs' measurements; for a kernel that no other GPU measured there is none."
    )


def misleading() -> str:
    """Table of the spaces in which searches are worse than without other GPUs, by sources."""
    by_sources = result("search_tuner")["misleading"]
    spaces = result("search")["spaces"]
    rows = [
        [name, f"{len(worse)} of {spaces}: " + ", ".join(f"{each['where']} {each['points']:g}" for each in worse)]
        for name, worse in by_sources.items()
    ]
    return table(["sources", "spaces more than 2 points worse"], rows)
