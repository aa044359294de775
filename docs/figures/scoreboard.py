"""The scoreboard: errors of KernelSight and of every public peer on the same runs and steps, and costs."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from typing import Any

from record import RESULTS

from figures.blocks import result
from figures.campaigns import CAMPAIGNS, METRICS, repeats
from figures.text import NONE, count, median_mean, percent, table

STEPS = {
    "sglang_prefill": "prompts of one batch, SGLang, six GPUs",
    "sglang_decode": "decode steps of one batch, SGLang, six GPUs",
    "trtllm_prompts": "prompt steps without CUDA graphs, TensorRT-LLM, B200",
}
PEERS = {"pipeweave": "PipeWeave", "neusight": "NeuSight", "habitat": "Habitat", "aiconfigurator": "AIConfigurator"}
OF_RUNS = {"dense": "dense models", "moe": "MoE models"}
OF_METRIC = {"ttft": "TTFT", "tpot": "TPOT"}
HEAD = [
    "data",
    "metric",
    "n",
    "KernelSight",
    "in its 90 % interval",
    "peers",
    "two measurements differ by",
    "lower error",
]
Row = list[str]


def table_of_all() -> str:
    """Table of every comparison, peers first; errors are median / mean in percent."""
    return table(HEAD, [*_steps(), *_published_runs(), *_campaigns()])


def behind() -> str:
    """Sentences on where a peer is ahead: in rows, in groups of published runs, in cost."""
    rows = [*_steps(), *_published_runs(), *_campaigns()]
    compared = [row for row in rows if row[-1] != NONE]
    lost = [f"{row[0]}, {row[1]} ({row[-1]})" for row in compared if row[-1] != "KernelSight"]
    first = f"{len(compared)} of {len(rows)} rows have a peer; KernelSight has the lower error in {len(compared) - len(lost)}."
    told = f"A peer is ahead in: {'; '.join(lost)}." if lost else "No peer is ahead in a row."
    within = result("end_to_end")["peer"]["behind"]["transfer"]
    told += (
        f" **Where peers are ahead**: within the published runs AIConfigurator, unmodified, has the lower "
        f"median TTFT in {within['ttft']} and TPOT in {within['tpot']} of {within['groups']} groups."
    )
    cheaper = [row for row in result("speed_peers")["rows"] if row["ratio"] and row["ratio"][0] < 1.0]
    return " ".join(
        [
            first,
            told,
            *(f"{row['peer']} is cheaper: {row['work']}, {row['theirs']} against {row['ours']}." for row in cheaper),
        ]
    )


def costs() -> str:
    """Table of what the same work costs, where both were measured in one session."""
    rows = [row for row in result("speed_peers")["rows"] if row["ratio"]]
    own = f"{result('peers')['sglang_decode']['cpu_ms']:.0f} CPU-ms"
    cells = [[row["peer"], row["work"], row["theirs"], row["ours"], row["how"]] for row in rows]
    cells.append(
        [
            NONE,
            "one step of a deployment, without start-up",
            NONE,
            own,
            "mean over the steps above, deployments planned once",
        ]
    )
    return table(["peer", "work", "theirs", "ours", "how measured"], cells)


def _row(data: str, metric: str, ours: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]], floor: str) -> Row:
    """Return a row: ``others``: scores by peer; the lower error is that of medians."""
    errors = {"KernelSight": ours["median_ape"]} | {name: score["median_ape"] for name, score in others.items()}
    shown = "; ".join(f"{name} {median_mean(score)}" for name, score in others.items())
    best = min(errors, key=lambda name: errors[name]) if others else NONE
    inside = percent(ours.get("coverage_90"), 0)
    return [data, metric, count(ours["n"]), median_mean(ours), inside, shown or NONE, floor, best]


def _steps() -> Iterator[Row]:
    for part, scores in result("peers").items():
        others = {PEERS[name]: scores[name] for name in PEERS if name in scores}
        ours = scores["ours"] | {"coverage_90": scores["coverage_90"]}
        yield _row(STEPS[part], "time of a step", ours, others, "unknown")


def _published_runs() -> Iterator[Row]:
    """Rows of the published runs that AIConfigurator 0.12 predicts too, with host constants of other groups of runs."""
    peer = result("end_to_end")["peer"]
    for kind, words in OF_RUNS.items():
        for metric, name in OF_METRIC.items():
            others = {"AIConfigurator 0.12": peer[kind]["peer"][metric]}
            others["the same, one factor a group"] = peer[kind]["calibrated"][metric]
            yield _row(f"published runs, {words}", name, peer["levels"]["transfer"][kind][metric], others, "unknown")


def _campaigns() -> Iterator[Row]:
    """Rows of campaigns, host constants from the others where they were measured so, else as shipped (*)."""
    recorded, floors = result("campaigns"), repeats()
    with (RESULTS / "peer_errors.csv").open(encoding="utf-8", newline="") as file:
        peers = {(row["campaign"], row["metric"]): row for row in csv.DictReader(file)}
    for campaign, title in CAMPAIGNS.items():
        for metric, words in METRICS.items():
            ours = recorded["left_out"].get(campaign, {}).get(metric)
            shipped = recorded["shipped"].get(campaign, {}).get(metric)
            if ours is None and shipped is None:
                continue
            peer = peers.get((campaign, metric))
            others = {} if peer is None else {peer["peer"]: _one_figure(float(peer["error"]))}
            named = title if ours else f"{title} *"
            yield _row(named, words, ours or shipped, others, floors.get((campaign, metric), "unknown"))


def _one_figure(error: float) -> dict[str, Any]:
    """Return an error of which it is not said whether it is a mean or a median, as both."""
    return {"n": 1, "median_ape": error, "mape": error}
