"""README's tables: end-to-end errors and speed, shortened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from figures.blocks import result
from figures.end_to_end import HEAD, KINDS, METRICS, peer_inputs
from figures.text import count, percent, table

SHORT = {
    "peer": "AIConfigurator 0.12, same lengths and KV format ¹",
    "peer_step_tokens": "AIConfigurator 0.12, same tokens per step ¹",
    "peer_nominal": "AIConfigurator 0.12, nominal lengths ¹",
}


def medians(scores: Mapping[str, Any]) -> list[str]:
    """Return the cells of median dense TTFT, dense TPOT, MoE TTFT and MoE TPOT."""
    return [percent(scores[kind][metric]["median_ape"]) for kind in KINDS for metric in METRICS]


def runs(scores: Mapping[str, Any]) -> str:
    """Return the number of runs of some scores."""
    return count(sum(scores[kind]["ttft"]["n"] for kind in KINDS))


def end_to_end() -> str:
    """Table of median errors by host constants and of AIConfigurator, with numbers of runs."""
    recorded = result("end_to_end")
    levels, (way, _) = recorded["levels"], peer_inputs(recorded)[0]
    peer = recorded[way]
    transfer, flags = levels["transfer"], levels["transfer"]["by_flags"]
    over_groups = transfer["over_groups"]
    groups = flags["fitted"]["groups"] + flags["not_fitted"]["groups"]
    rows = [
        ["other groups", runs(transfer), *medians(transfer)],
        [
            "– groups without fitted launch flags",
            runs(flags["not_fitted"]),
            *medians(flags["not_fitted"]),
        ],
        [
            f"– median over the {groups} groups",
            "",
            *(percent(over_groups[kind][metric]) for kind in KINDS for metric in METRICS),
        ],
        ["the same group (calibrated)", runs(levels["group"]), *medians(levels["group"])],
        ["nothing fitted", runs(levels["none"]), *medians(levels["none"])],
    ]
    ours = peer["levels"]["transfer"]
    rows.append(["other groups, on AIConfigurator's runs", runs(ours), *medians(ours)])
    for who, words in (
        ("peer", SHORT[way]),
        ("calibrated", "– with one factor per metric and group"),
    ):
        scores = {kind: peer[kind][who] for kind in KINDS}
        rows.append([words, runs(scores), *medians(scores)])
    fitted = flags["fitted"]
    return table(["host time from", "runs", *HEAD], rows) + (
        f"\n\nLaunch flags of {fitted['groups']} groups ({count(fitted['all']['ttft']['n'])} runs) were fitted on their own fifth, drawn by run id. "
        "Campaigns held out whole: [accuracy](docs/accuracy.md#by-campaign)."
    )


def speed() -> str:
    """List of CPU times beside BLIS, and of latencies per second."""
    whole, short, *_ = result("speed_peers")["rows"]
    rates = result("speed_kernels")["per_cpu_s"].values()
    *_, predict = (row for row in result("speed_waits")["rows"] if row["wait"] == "predict, one step")
    return (
        f"- Simulating 10,000 requests takes {whole['ours']} with start-up (BLIS: {whole['theirs']}); 100 requests {short['ours']} (BLIS: "
        f"{short['theirs']}).\n"
        f"- Kernels: {min(rates) / 1e6:.1f} to {max(rates) / 1e6:.1f} million latencies of distinct calls per CPU-second, with "
        f"intervals, Arrow in and out; `predict` takes {predict['again CPU s']:.1f} CPU-s."
    )
