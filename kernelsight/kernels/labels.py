"""Labels of predictions: the tier of kernels' times taken together, and the data behind each component of a step.

A label is a promise: times are called measured only where most of them are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from kernelsight.kernels.families import COMMUNICATION

MEASURED, GPU_MEASURED, FOREIGN = "target-measured", "gpu-measured", "unmeasured-vendor"
# least share of the time that is measured under the label target-measured
MOSTLY = 0.8
# general constants can be wrong by a factor of 4: from this share of the time they set the label of the whole
FOREIGN_SHARE = 0.2
# tiers by decreasing certainty; a log's corrections are those of the deployment itself
CERTAINTY = (
    *("log-corrected", MEASURED, "points-measured", GPU_MEASURED),
    *("cross-generation", "hypothetical", FOREIGN, "a-priori", "roofline", "auto"),
)
# evidence of less than this share of a component's time is not listed
LISTED_SHARE = 1.0 / 30.0


class Label(NamedTuple):
    """The tier of kernels' times taken together, and the share of them that is measured."""

    tier: str
    measured_share: float


def label_of(time_of_tier: Mapping[str, float]) -> Label:
    """Return the label of times by tier, not all 0, in any unit.

    >>> label_of({"target-measured": 8.0, "cross-generation": 2.0})
    Label(tier='target-measured', measured_share=0.8)
    >>> label_of({"target-measured": 7.0, "cross-generation": 3.0})
    Label(tier='gpu-measured', measured_share=0.7)
    """
    total = sum(time_of_tier.values())
    measured = time_of_tier.get(MEASURED, 0.0)
    share = measured / total
    if FOREIGN in time_of_tier and time_of_tier[FOREIGN] >= FOREIGN_SHARE * total:
        return Label(FOREIGN, share)
    if share >= MOSTLY:
        return Label(MEASURED, share)
    others = {tier: time for tier, time in time_of_tier.items() if tier != MEASURED}
    others[GPU_MEASURED] = others.get(GPU_MEASURED, 0.0) + measured
    return Label(max(others, key=lambda tier: (others[tier], tier)), share)


def label_served(measured_share: float, tiers: Iterable[str]) -> Label:
    """Return the label of a run; ``measured_share``: of its GPU time; ``tiers``: of the deployments that served it.

    >>> label_served(0.85, ["gpu-measured"]).tier, label_served(0.5, ["target-measured"]).tier
    ('target-measured', 'gpu-measured')
    >>> label_served(0.5, ["target-measured", "cross-generation"]).tier, label_served(0.0, ["roofline"]).tier
    ('cross-generation', 'roofline')
    """
    tier = max(tiers, key=CERTAINTY.index)
    if tier in (MEASURED, GPU_MEASURED, "cross-generation") and measured_share >= MOSTLY:
        tier = MEASURED
    elif tier == MEASURED:
        tier = GPU_MEASURED
    return Label(tier, measured_share)


def component_of(family: str) -> str:
    """Return the component of a step that a kernel family belongs to.

    >>> component_of("mla_decode"), component_of("batched_gemm"), component_of("p2p"), component_of("norm")
    ('attention', 'matrix products', 'exchange', 'other kernels')
    """
    if family == "moe":
        return "experts"
    if family in COMMUNICATION:
        return "exchange"
    if family.endswith("attention") or family.startswith("mla"):
        return "attention"
    return "matrix products" if family.endswith("gemm") else "other kernels"


def component_rows(rows: Iterable[Mapping[str, Any]], assumed: Collection[str]) -> list[dict[str, Any]]:
    """Return the evidence of each component of a step, the one with the most time first.

    ``rows``: family, tier, evidence and gpu_us of kernels; ``assumed``: families whose constants no sweep contains.
    Columns: component, tier, evidence, measured_share, gpu_share.
    """
    times: dict[str, dict[tuple[str, str], float]] = {}
    for row in rows:
        is_a_priori = row["tier"] == "cross-generation" and row["family"] in assumed
        key = ("a-priori" if is_a_priori else row["tier"], row["evidence"])
        of_component = times.setdefault(component_of(row["family"]), {})
        of_component[key] = of_component.get(key, 0.0) + row["gpu_us"]
    totals = {component: sum(of_component.values()) for component, of_component in times.items()}
    total = sum(totals.values())
    made = []
    for component in sorted(times, key=lambda component: (-totals[component], component)):
        by_tier: dict[str, float] = {}
        by_evidence: dict[str, float] = {}
        for (tier, evidence), time_us in times[component].items():
            by_tier[tier] = by_tier.get(tier, 0.0) + time_us
            by_evidence[evidence] = by_evidence.get(evidence, 0.0) + time_us
        label = label_of(by_tier)
        listed = [name for name in by_evidence if by_evidence[name] >= LISTED_SHARE * totals[component]]
        listed.sort(key=lambda name: (-by_evidence[name], name))
        columns = {"component": component, "tier": label.tier, "evidence": "; ".join(listed)}
        made.append(columns | {"measured_share": label.measured_share, "gpu_share": totals[component] / total})
    return made
