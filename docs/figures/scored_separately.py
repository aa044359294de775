"""Tables of end-to-end errors of the published runs that are scored separately: their parts, and groups of a part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from figures.end_to_end import METRICS, figures
from figures.text import NONE, count, full, group_name, median_mean, table

SEPARATE = {
    "data-parallel attention": "data-parallel attention, aggregated (in-sample: its rules were changed after looks at these runs)",
    "disaggregated": "disaggregated, attention not data-parallel",
    "disaggregated, data-parallel attention": "disaggregated, data-parallel attention",
    "parallel sizes restored": "parallel sizes restored",
    "with_drafts": "DeepSeek-R1, with multi-token prediction (inferred)",
    "without_drafts": "DeepSeek-R1, without (inferred)",
}


def errors() -> str:
    """Table of runs that are scored separately with the constants of `transfer`: median / mean, p90, bias."""
    parts = figures()["separate"]
    rows = [[title, count(parts[name]["ttft"]["n"]), *(full(parts[name][metric]) for metric in METRICS)]
            for name, title in ordered(parts)]  # fmt: skip
    return table(["scored separately", "runs", "TTFT", "TPOT"], rows)


def ordered(parts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names of separate parts with their titles, in the order of SEPARATE, unlisted ones last."""
    known = [(name, title) for start, title in SEPARATE.items() for name in parts if is_named(name, start)]
    yield from known
    yield from ((name, name) for name in parts if name not in dict(known))


def is_named(name: str, start: str) -> bool:
    """Return whether a separate part's name is ``start``, apart from a reason after a colon."""
    return name.split(":")[0] == start


def groups(*words: str) -> str:
    """Table of one separate part's groups: median / mean, 90th percentile (median signed error)."""
    (part,) = (part for name, part in figures()["separate"].items() if is_named(name, " ".join(words)))

    def cell(score: Mapping[str, Any]) -> str:
        if not score["n"]:
            return NONE
        return f"{median_mean(score)}, {100 * score['p90_ape']:.0f} ({100 * score['median_error']:+.0f})"

    rows = [[group_name(group), str(group["ttft"]["n"]), *(cell(group[metric]) for metric in METRICS)]
            for group in part["groups"] if group["ttft"]["n"]]  # fmt: skip
    return table(["", "runs", "TTFT", "TPOT"], rows)
