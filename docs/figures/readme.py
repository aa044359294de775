"""What README quotes: the shortest tables of accuracy and speed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from figures.blocks import result
from figures.end_to_end import HEAD, KINDS, METRICS
from figures.text import count, percent, table


def medians(scores: Mapping[str, Any]) -> list[str]:
    """Return the medians of dense TTFT, dense TPOT, MoE TTFT and MoE TPOT."""
    return [percent(scores[kind][metric]["median_ape"]) for kind in KINDS for metric in METRICS]


def runs(scores: Mapping[str, Any]) -> str:
    """Return the number of runs behind some scores."""
    return count(sum(scores[kind]["ttft"]["n"] for kind in KINDS))


def end_to_end() -> str:
    """Medians by host constants and of the peer, the number of runs in each row."""
    found = result("end_to_end")
    levels, peer = found["levels"], found["peer"]
    transfer, flags = levels["transfer"], levels["transfer"]["by_flags"]
    own = transfer["over_groups"]
    groups = flags["fitted"]["groups"] + flags["not_fitted"]["groups"]
    rows = [
        ["other groups", runs(transfer), *medians(transfer)],
        [
            "– groups whose launch flags were not fitted either",
            runs(flags["not_fitted"]),
            *medians(flags["not_fitted"]),
        ],
        [
            f"– median over the {groups} groups",
            "",
            *(percent(own[kind][metric]) for kind in KINDS for metric in METRICS),
        ],
        ["the same group: calibrated", runs(levels["group"]), *medians(levels["group"])],
        ["nowhere: published gaps between kernels", runs(levels["none"]), *medians(levels["none"])],
    ]
    ours = peer["levels"]["transfer"]
    rows.append(["other groups, on the runs that AIConfigurator predicts", runs(ours), *medians(ours)])
    for who, words in (
        ("peer", "AIConfigurator 0.12, same launch flags ¹"),
        ("calibrated", "– one factor a metric and group"),
    ):
        scores = {kind: peer[kind][who] for kind in KINDS}
        rows.append([words, runs(scores), *medians(scores)])
    fitted = flags["fitted"]
    return table(["host time from", "runs", *HEAD], rows) + (
        f"\n\nFlags of {fitted['groups']} groups ({count(fitted['all']['ttft']['n'])} runs) were fitted on their own fifth, "
        "drawn by run id: whole campaigns held out are to come."
    )
