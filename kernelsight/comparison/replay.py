"""Replays of a log: deployment variants with corrections, the log as ``load_requests``, and predicted times."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.dataflow.session import Session
from kernelsight.scenario.plan import give_plan, plan_rows

LOAD = "log"
# flags of a load that is never drawn: the log's requests replace it
NO_LOAD = {"request_rate": 1.0, "num_prompts": 1, "input_len": 1, "output_len": 1}
KERNELS = ("prefill_gemm", "prefill_attention", "decode_gemm", "decode_attention", "moe", "communication")
# parts of a request's time that replays keep: memory holds a replay or two of a million requests
REPLAYED_PARTS = (*KERNELS, "host")
# requests from which freed memory is returned before a replay
LONG = 100_000


class Variant(NamedTuple):
    """A deployment as flags, and corrections: factors by KERNELS, host us per step, front-end us per request."""

    flags: Mapping[str, Any]
    factors: Mapping[str, float] = {}
    step_us: float = 0.0
    request_us: float = 0.0

    def corrections(self) -> list[dict[str, Any]]:
        """Return rows of ``corrections`` without a deployment; none where nothing is corrected."""
        kernels = [{"part": name, "factor": factor, "exposed_us": 0.0} for name, factor in self.factors.items()]
        host = {"host": self.step_us, "front_end": self.request_us}
        return [row for row in kernels if row["factor"] != 1.0] + [
            {"part": name, "factor": 1.0, "exposed_us": value} for name, value in host.items() if value
        ]


class Replayed(NamedTuple):
    """Predicted moments of a log's requests on one variant, ns, shape [requests]; -1 (cached tokens 0) if rejected.

    ``parts_ns``: of each of REPLAYED_PARTS, the request's time in it by phase (before, after the first token), shape
    [phases, requests]; ``steps``: number of its steps, same shape; both are empty in a replay without parts.
    """

    cached_tokens: np.ndarray
    sent_ns: np.ndarray
    scheduled_ns: np.ndarray
    first_ns: np.ndarray
    finish_ns: np.ndarray
    parts_ns: Sequence[np.ndarray]
    steps: np.ndarray

    @property
    def served(self) -> np.ndarray:
        """Mask of the requests that finished, shape [requests]."""
        return self.finish_ns >= 0

    @property
    def ttft_ms(self) -> np.ndarray:
        """Time from sending to the first token, ms; NaN where a request was rejected."""
        return self._span_ms(self.sent_ns, self.first_ns)

    @property
    def e2e_ms(self) -> np.ndarray:
        """Time from sending to the last token, ms; NaN where a request was rejected."""
        return self._span_ms(self.sent_ns, self.finish_ns)

    @property
    def queue_ms(self) -> np.ndarray:
        """Time from sending until first scheduled, ms; NaN where a request was rejected."""
        return self._span_ms(self.sent_ns, self.scheduled_ns)

    def _span_ms(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        return np.where(self.served, (end - begin) / 1e6, np.nan)

    def only(self, names: Collection[str]) -> Replayed:
        """Return the replay with these of REPLAYED_PARTS alone, summed over phases, which saves memory in long logs."""
        no_parts = np.zeros((1, 0), np.int64)
        parts_ns = [
            values.sum(axis=0, keepdims=True) if name in names else no_parts
            for name, values in zip(REPLAYED_PARTS, self.parts_ns, strict=False)
        ]
        steps = self.steps.sum(axis=0, keepdims=True) if "host" in names else no_parts
        return self._replace(parts_ns=parts_ns, steps=steps)

    def part(self, name: str) -> np.ndarray:
        """Return one of REPLAYED_PARTS, summed over phases, ns, shape [requests]."""
        return self.parts_ns[REPLAYED_PARTS.index(name)].sum(axis=0)


def give_log(fork: Session, load: pa.Table, variants: Sequence[Variant]) -> dict[str, int]:
    """Give a session the log's load as one scenario per variant that can be planned.

    Returns by scenario_id the index of its variant.
    """
    plan = plan_rows(fork, [{**NO_LOAD, **variant.flags} for variant in variants], on_fault="collect", origin="")
    deployments, scenarios, corrections, number_of_scenario = {}, [], [], {}
    for number, (variant, scenario) in enumerate(zip(variants, plan.scenarios, strict=True)):
        if scenario is None:
            continue
        scenario_id = f"v{number}"
        for row in plan.deployments_of([scenario]):
            # variants of equal flags differ in their corrections
            name = scenario_id if row["deployment_id"] == scenario["deployment_id"] else row["deployment_id"]
            deployments[name] = {**row, "deployment_id": name}
        scenarios.append(
            {**scenario, "scenario_id": scenario_id, "deployment_id": scenario_id, "max_concurrency": None}
        )
        corrections += [{"deployment_id": scenario_id, **row} for row in variant.corrections()]
        number_of_scenario[scenario_id] = number
    give_plan(fork, list(deployments.values()), scenarios)
    fork.give("scenario_loads", [{"scenario_id": name, "load_id": LOAD} for name in number_of_scenario])
    fork.give("load_requests", load, trusted=True)
    if corrections:
        fork.give("corrections", corrections)
    return number_of_scenario


def interval_factors(scenario_intervals: pa.Table) -> dict[str, tuple[float, float]]:
    """Return the 90 % interval of each metric's mean as factors (low, high) on its prediction, for one variant.

    Keys: ttft, tpot, e2e; empty where no request is served.
    """
    rows = {row["metric"]: row for row in scenario_intervals.to_pylist()}
    means = {name: rows.get(f"{name}_mean_ms") for name in ("ttft", "tpot", "e2e")}
    return {name: (row["low"] / row["predicted"], row["high"] / row["predicted"]) for name, row in means.items() if row}


def load_of_log(requests: pa.Table, block_tokens: int = 16) -> pa.Table:
    """Return the requests of a log as ``load_requests``, in their order, numbered from 0, with the log's send times.

    Prompts share prefixes as ``hash_ids`` state. Without these, all prompts begin with one chain of blocks, each for as
    many tokens as the log reports cached, so that a replay finds the same number. Adapters are numbered in their order.
    ``block_tokens``: size of a KV block.
    """
    n = requests.num_rows
    sent_s = requests["sent_s"].combine_chunks()
    sent_s = sent_s.fill_null(0.0).to_numpy() if sent_s.null_count < n else requests["arrival_s"].to_numpy()
    columns = {
        "load_id": pa.array(np.full(n, LOAD)),
        "request_id": pa.array(np.arange(n)),
        "arrival_s": pa.array(sent_s),
        "prompt_tokens": requests["prompt_tokens"],
        # a failed or unfinished request still occupied the server
        "output_tokens": pa.array(np.maximum(requests["output_tokens"].to_numpy(), 1)),
        "adapter": requests["adapter"].combine_chunks().dictionary_encode().indices.cast(pa.int64()),
    }
    hashes, cached = requests["hash_ids"].combine_chunks(), requests["cached_tokens"].combine_chunks()
    if hashes.null_count < n:
        columns |= {"hash_ids": hashes, "hash_block_tokens": requests["hash_block_tokens"]}
    elif cached.null_count < n:
        blocks = requests["prompt_tokens"].to_numpy() // block_tokens
        shared_blocks = np.minimum(cached.fill_null(0).to_numpy() // block_tokens, blocks)
        offsets = np.concatenate([[0], np.cumsum(blocks)])
        block_index = np.arange(offsets[-1]) - np.repeat(offsets[:-1], blocks)
        unique_numbers = np.arange(offsets[-1]) + blocks.max(initial=0)
        block_numbers = np.where(block_index < np.repeat(shared_blocks, blocks), block_index, unique_numbers)
        columns["hash_ids"] = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(block_numbers)).cast(
            pa.list_(pa.int64())
        )
        columns["hash_block_tokens"] = pa.array(np.full(n, block_tokens))
    return conformed(columns)


def conformed(columns: Mapping[str, Any]) -> pa.Table:
    """Return columns as a table of the contract of ``load_requests``."""
    from kernelsight.catalog.tables import contracts
    from kernelsight.dataflow.contract import conform

    return conform(pa.table(dict(columns)), contracts()["load_requests"], trusted=True)


def part_of(family: str, phase: str) -> str | None:
    """Return the part of KERNELS that a kernel family belongs to in a phase (prefill, decode); None: to none."""
    if family in ("host", "overlap", "p2p"):
        return None
    if family == "moe":
        return "moe"
    if family in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        return "communication"
    if family in ("prefill_attention", "mla_prefill"):
        return "prefill_attention"
    if family in ("decode_attention", "mla_decode"):
        return "decode_attention"
    return f"{phase}_gemm"
