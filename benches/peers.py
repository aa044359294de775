"""Steps that others measured and predicted: ``python benches/peers.py``; records the errors of each method.

- ``../shared/data/servers/sglang_steps.csv``: prompts and decode steps of one batch under SGLang on six GPUs, with what
  PipeWeave, NeuSight and Habitat predicted, as PipeWeave's authors publish it. The truth is the median of five runs.
- ``../shared/data/servers/trtllm_prefill_steps.csv``: prompt steps of gpt-oss-120b under TensorRT-LLM without CUDA
  graphs on one B200, with AIConfigurator's prediction of each, as its authors publish it.

Sequences of a step are taken to have its mean length; attention of prompts grows with the mean of their squares.
"""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from record import ROOT, record

import kernelsight as ks
from kernelsight.forward.forward_step import whole_step
from kernelsight.present.page import Table
from kernelsight.present.show import table_of
from kernelsight.scenario.scenario_rows import deployment_row, resolve_names

SERVERS = ROOT / "../shared/data/servers"
PUBLISHED = ("pipeweave", "neusight", "habitat")
GPT_OSS = {"model": "gpt-oss-120b", "gpu": "b200_sxm", "engine": "trtllm", "engine_version": "1.3.0rc18"}
ATTENTION = "prefill_attention"


class Step(NamedTuple):
    """A measured step: flags, new tokens and cached tokens of each sequence, its time and what others predicted, ms."""

    of: str
    flags: dict[str, Any]
    new: list[int]
    cached: list[int]
    measured_ms: float
    predicted_ms: dict[str, float]

    def shape(self, number: int) -> dict[str, Any]:
        """Return the row of ``step_shapes`` with the mean lengths of its sequences."""
        count, new, cached = len(self.new), round(statistics.mean(self.new)), round(statistics.mean(self.cached))
        is_decode = set(self.new) == {1}
        return whole_step(number, count, cached, 0, 0, 0) if is_decode else whole_step(number, 0, 0, count, new, cached)

    def spread(self) -> float:
        """Return the attention of its prompts over that of prompts of their mean length; 1 for a decode step."""
        if set(self.new) == {1}:
            return 1.0
        pairs = statistics.mean(new * (new / 2 + past) for new, past in zip(self.new, self.cached, strict=True))
        new, past = statistics.mean(self.new), statistics.mean(self.cached)
        return pairs / (new * (new / 2 + past))


def rows_of(name: str) -> list[dict[str, str]]:
    """Return the rows of a file of measured servers."""
    with (SERVERS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def steps() -> Iterator[Step]:
    """Yield every measured step of the two files."""
    for row in rows_of("sglang_steps.csv"):
        flags = {"model": row["model"], "gpu": row["gpu"], "engine": "sglang"}
        flags["tensor_parallel_size"] = int(row["tensor_parallel"])
        prompts = [int(text) for text in row["prompt_tokens"].split()]
        contexts = [int(text) for text in row["decode_context_tokens_middle_step"].split()]
        none, one = [0] * len(prompts), [1] * len(contexts)
        for phase, new, cached in (("prefill", prompts, none), ("decode", one, contexts)):
            runs = [float(text) for text in row[f"{phase}_ms_runs"].split()]
            peers = {peer: float(row[f"{peer}_{phase}_ms"]) for peer in PUBLISHED}
            yield Step(f"sglang_{phase}", flags, new, cached, statistics.median(runs), peers)
    for row in rows_of("trtllm_prefill_steps.csv"):
        count, new, cached = (int(row[name]) for name in ("prompts", "new_tokens", "cached_tokens"))
        peers = {"aiconfigurator": float(row["aiconfigurator_ms"])}
        lengths = [max(round(new / count), 1)] * count, [round(cached / count)] * count
        yield Step("trtllm_prompts", GPT_OSS, *lengths, float(row["step_ms"]), peers)


def predicted_ms(session: Any, members: Sequence[Step]) -> list[tuple[float, float, float]]:
    """Return the predicted time of steps of one deployment, and the ends of its 90 % interval."""
    with session.fork() as fork:
        deployment = deployment_row(resolve_names(fork, members[0].flags))
        fork.give("deployments", [deployment])
        own = {"deployment_id": deployment["deployment_id"], "decode_window_context": None}
        fork.give("step_shapes", [step.shape(number) | own for number, step in enumerate(members)])
        totals = {row["step_shape_id"]: row for row in fork.table("step_totals").to_pylist()}
        attention = dict(
            fork.sql(
                "select step_shape_id, sum(count * latency_us) from kernel_latencies "
                f"where family = '{ATTENTION}' group by all"
            ).fetchall()
        )
    found = []
    for number, step in enumerate(members):
        more_us = attention.get(number, 0.0) * (step.spread() - 1.0)
        found.append(tuple((totals[number][name] + more_us) / 1e3 for name in ("total_us", "p05_us", "p95_us")))
    return found


def errors(of: str | None = None) -> dict[str, dict[str, Any]]:
    """Return the errors of ours and of each peer by part of the data (of one part: ``of``)."""
    groups: dict[tuple, list[Step]] = {}
    for step in steps():
        if of in (None, step.of):
            groups.setdefault((step.of, *sorted(step.flags.items())), []).append(step)
    found: dict[str, dict[str, Any]] = {}
    started_s, count = time.process_time(), 0
    with ks.connect() as session:
        for (part, *_), members in groups.items():
            scores = found.setdefault(part, {"inside": [], "ours": []} | {name: [] for name in members[0].predicted_ms})
            for step, (ms, low, high) in zip(members, predicted_ms(session, members), strict=True):
                scores["ours"].append(ms / step.measured_ms - 1.0)
                scores["inside"].append(low <= step.measured_ms <= high)
                for peer, peer_ms in step.predicted_ms.items():
                    scores[peer].append(peer_ms / step.measured_ms - 1.0)
                count += 1
    cpu_ms = 1e3 * (time.process_time() - started_s) / count
    for scores in found.values():
        scores["coverage_90"] = statistics.mean(scores.pop("inside"))
        scores["cpu_ms"] = cpu_ms
    return {
        part: {
            name: score(values) if isinstance(values, list) else values for name, values in scores.items()
        }
        for part, scores in found.items()
    }  # fmt: skip


def score(signed: Sequence[float]) -> dict[str, float]:
    """Return number, median, mean and 90th percentile of absolute errors, and their mean sign."""
    sizes = sorted(map(abs, signed))
    return {
        "n": len(sizes), "median_ape": statistics.median(sizes), "mape": statistics.mean(sizes),
        "p90_ape": sizes[int(0.9 * len(sizes))], "bias": statistics.mean(signed),
    }  # fmt: skip


def main() -> None:
    """Print the errors of each method, and record them."""
    found = errors()
    rows = [
        {"steps": part, "method": name, **{key: round(100 * value, 1) for key, value in values.items() if key != "n"}}
        for part, scores in found.items()
        for name, values in scores.items()
        if isinstance(values, dict)
    ]
    print("\n".join(table_of(Table(rows=rows))))
    print({part: (scores["coverage_90"], scores["cpu_ms"]) for part, scores in found.items()})
    record("peers", found, "python benches/peers.py")


if __name__ == "__main__":
    main()
