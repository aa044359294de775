"""Trials: loads simulated at any rate for their requests' latencies alone, as arrays, without tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.scenario.flag import LARGEST_WHOLE_NUMBER
from kernelsight.scenario.load_rules import distribution
from kernelsight.scenario.scenario_rows import deployments_of, with_drafts
from kernelsight.serving.engine import client_metrics
from kernelsight.serving.engine.host import front_end_of
from kernelsight.serving.engine.records import FINISHED, ITL_BINS
from kernelsight.serving.load.arrivals import ramp_s_of
from kernelsight.serving.load.requests import LOAD_COLUMNS, Loads, draw_loads, spans_of
from kernelsight.serving.runs.full_batch import units_of
from kernelsight.serving.runs.simulate import serve_replicas
from kernelsight.serving.runs.simulation_inputs import (
    SimulationInputs,
    inputs_of_session,
    load_columns,
    pool_of,
    waits_of,
)
from kernelsight.serving.runs.statistics_tables import bin_centres
from kernelsight.sweeps.work_budget import TOKENS_A_REQUEST, TURN, Work

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

# most requests of all seeds that one thread simulates: starting threads would take longer
SHORT = 40_000
# most bytes of drawn loads in the cache; the last one is always there
KEPT_BYTES = 2**28
# seeds of trials are far from those that users set, so that a check with another seed is independent
SEED_SPAN = 1_000_003


def give_reach(session: Session, scenarios: Iterable[Mapping[str, Any]]) -> None:
    """Give ``deployment_reach``: the longest sequences of loads at any rate and seed, which labels count."""
    longest: dict[str, int | None] = {}
    for row in scenarios:
        tokens = None  # drawn lengths have no upper bound
        if distribution(row) in ("fixed", "uniform") and (row.get("num_turns") or 1) == 1:
            tokens = row["input_len"] + row["output_len"] + (row.get("prefix_len") or 0)
        for deployment in deployments_of(row):
            longest_so_far = longest.get(deployment, 0)
            longest[deployment] = None if tokens is None or longest_so_far is None else max(longest_so_far, tokens)
    rows = {row["deployment_id"]: row for row in session.table("deployments").to_pylist()}
    for deployment, tokens in list(longest.items()):
        for draft in with_drafts([deployment], rows)[1:]:
            longest[draft] = tokens
    names, no_requests = list(longest), pa.nulls(len(longest), pa.int64())
    tokens = pa.array(longest.values(), pa.int64())
    table = pa.table({"deployment_id": pa.array(names, pa.string()), "requests": no_requests, "tokens": tokens})
    session.give("deployment_reach", table, trusted=True)


class Trial(NamedTuple):
    """One load simulated at one rate: latencies in ms by metric, shape (requests,), in the order of sending.

    TPOT of a request with one token is NaN. ``gaps``: the histogram of ITL over the whole run, shape (bins,); ``lost``:
    whether a request was rejected; ``tokens``: prompt and output tokens per arrival.
    """

    latencies: dict[str, np.ndarray]
    gaps: np.ndarray
    lost: bool
    tokens: tuple[float, float]
    duration_s: float


class Trials:
    """Simulates the loads of planned scenarios at any rate; step costs are read once, from the session."""

    def __init__(self, session: Session, threads: int | None = None, work: Work | None = None) -> None:
        self._work = work or Work()
        self._inputs: SimulationInputs = inputs_of_session(session.table)
        self._scenarios = {row["scenario_id"]: row for row in self._inputs.scenarios}
        self._threads = threads
        self._drawn: dict[tuple, tuple] = {}
        deployments = self._inputs.deployments
        self._weights = {key: _weight(row, deployments) for key, row in self._scenarios.items()}
        self._fronts = {key: front_end_of(row, deployments[key]) for key, row in self._inputs.hosts.items()}

    @property
    def able(self) -> list[str]:
        """The scenarios whose deployments can run."""
        return list(self._scenarios)

    def scenario(self, scenario_id: str) -> dict[str, Any]:
        """Return the row of a scenario."""
        return self._scenarios[scenario_id]

    def settings(self, scenario_id: str) -> dict[str, Any]:
        """Return the row of ``deployment_settings`` of a scenario's decoding deployment."""
        return self._inputs.deployments[self._scenarios[scenario_id]["deployment_id"]]

    def weights_bytes(self, scenario_id: str) -> float:
        """Return the bytes of the weights that one decode replica of a scenario loads, on all of its GPUs."""
        name = self._scenarios[scenario_id]["deployment_id"]
        row = self._inputs.deployments[name]
        return float(self._inputs.plans[name]["weights_bytes"] * row["tp"] * row["pp"] * row["dp"])

    def requests_in_cache(self, scenario_id: str, tokens: float) -> float:
        """Return how many requests of ``tokens`` the KV caches of a scenario's decoding engines hold at once."""
        scenario = self._scenarios[scenario_id]
        pool = pool_of(self._inputs, scenario["deployment_id"])
        engines = pool.engines * (scenario["decode_replicas"] or scenario["replicas"] or 1)
        shared = (scenario["prefix_len"] or 0) if pool.limits.prefix_caching else 0
        prefixes = units_of(pool.limits, shared) * (scenario["num_prefixes"] or 1) if shared else 0.0
        units = units_of(pool.limits, max(tokens - shared, 1.0))
        return engines * math.floor((pool.limits.capacity_units - prefixes) / units) if units else math.inf

    def count(self, scenario_id: str, requests: int, seeds: int) -> None:
        """Take trials from the work budget; SearchEnded: time or allowance is spent."""
        self._work.take(math.ceil(requests * seeds * self._weights[scenario_id]))

    def serve(self, scenario_id: str, requests: int, seeds: Iterable[int], **load: Any) -> list[Trial]:
        """Simulate a scenario's load once for each seed, with ``requests`` requests and the columns ``load`` changed.

        ``load``: request_rate (None: all at once) or max_concurrency. The same seeds give the same lengths, and gaps
        that differ by their scale alone, at every rate and on every deployment.
        """
        seeds = list(seeds)
        self.count(scenario_id, requests, len(seeds))
        return self.serve_again(scenario_id, requests, seeds, **load)

    def serve_again(self, scenario_id: str, requests: int, seeds: Iterable[int], **load: Any) -> list[Trial]:
        """Simulate as ``serve``, for trials that were taken from the budget before."""
        base = self._scenarios[scenario_id]
        rows = [
            {**base, **load, "scenario_id": f"{scenario_id}/{seed}", "seed": seed, "num_prompts": requests}
            for seed in (((base["seed"] + 1) * SEED_SPAN + number) % LARGEST_WHOLE_NUMBER for number in seeds)
        ]
        drawn, waits, columns, spans = self._loads(rows)
        inputs = self._inputs._replace(
            scenarios=rows,
            requests=drawn,
            waits=waits,
            columns=columns,
            spans={row["scenario_id"]: span for row, span in zip(rows, spans, strict=True)},
            links={row["scenario_id"]: self._inputs.links.get(scenario_id) for row in rows},
        )
        by_scenario: dict[str, list] = {row["scenario_id"]: [] for row in rows}
        threads = self._threads if requests * len(rows) > SHORT else 1
        for replica in serve_replicas(inputs, count_uses=False, threads=threads):
            by_scenario[replica.scenario].append(replica)
        return [self._trial(inputs, row, by_scenario[row["scenario_id"]]) for row in rows]

    def _loads(self, rows: Sequence[Mapping[str, Any]]) -> tuple[pa.Table, dict, dict, list[tuple]]:
        """Return the requests of loads, their dependencies, their columns, and the span of rows of each load.

        At a constant rate only the scale of the gaps depends on it: a load is drawn once and scaled for other rates.
        """
        rate, unit_rate = rows[0]["request_rate"], {}
        if rate is not None and (rows[0]["num_turns"] or 1) == 1:  # turns follow answers, not the rate
            unit_rate = {"request_rate": 1.0}
        columns = [name for name in LOAD_COLUMNS if name != "max_concurrency"]
        key = tuple(tuple((row | unit_rate)[name] for name in columns) for row in rows)
        if key not in self._drawn:
            drawn = _drawn_loads([{**row, **unit_rate} for row in rows])
            loads = [drawn.load_requests, *(kept[0] for kept in self._drawn.values())]
            while self._drawn and sum(load.nbytes for load in loads) > KEPT_BYTES:
                loads.remove(self._drawn.pop(next(iter(self._drawn)))[0])
            spans = spans_of(drawn.load_requests["load_id"])
            waits = list(waits_of(*drawn, spans).values())
            self._drawn[key] = drawn.load_requests, waits, load_columns(drawn.load_requests), list(spans.values())
        drawn, waits, columns, spans = self._drawn[key]
        columns = {**columns, "arrival_s": columns["arrival_s"] / rate} if unit_rate else columns
        return drawn, dict(zip((row["scenario_id"] for row in rows), waits, strict=False)), columns, spans

    def _trial(self, inputs: SimulationInputs, row: Mapping[str, Any], replicas: Sequence[Any]) -> Trial:
        """Return the trial of one load from the replicas that served it."""
        start, stop = inputs.spans[row["scenario_id"]]
        names = ("status", "sent_us", "scheduled_us", "first_token_us", "finish_us")
        times = {name: np.empty(stop - start) for name in names}
        for replica in replicas:
            for name, values in times.items():
                values[replica.rows - start] = getattr(replica.served.out, name)
        prompts, outputs = (inputs.columns[name][start:stop] for name in ("prompt_tokens", "output_tokens"))
        # a closed loop's requests, and turns, have no arrivals of their own: in the order in which they were sent
        order = np.argsort(times["sent_us"], kind="stable")
        times = {name: values[order] for name, values in times.items()}
        prompts, outputs = prompts[order], outputs[order]
        served = (times["status"] == FINISHED) & ~inputs.columns["warmup"][start:stop][order]
        if row["max_concurrency"] is not None:  # what is sent while users still join is no part of the steady state
            served &= times["sent_us"] >= times["sent_us"].min() + 1e6 * ramp_s_of(row)
        sent, scheduled, first_token, finish = (times[name][served] * 1e3 for name in names[1:])
        request_us, per_token_us = self._fronts[deployments_of(row)[-1]]
        front_end = np.minimum((request_us + per_token_us * prompts[served]) * 1e3, scheduled - sent)
        several = outputs[served] > 1
        tpot = client_metrics.tpot_ms(first_token, finish, np.where(several, outputs[served], 2))
        latencies = {
            "ttft": client_metrics.ttft_ms(sent, first_token),
            "tpot": np.where(several, tpot, np.nan),
            "e2e": client_metrics.e2e_ms(sent, finish),
            "queue": client_metrics.queue_ms(sent, scheduled, front_end),
        }
        arrivals = (stop - start) / (row["num_turns"] or 1)
        return Trial(
            latencies,
            sum((replica.served.histogram for replica in replicas), np.zeros(ITL_BINS, np.int64)),
            bool((times["status"] != FINISHED).any()),
            (float(prompts.sum() / arrivals), float(outputs.sum() / arrivals)),
            float((finish.max() - sent.min()) / 1e9) if finish.size else 0.0,
        )


def _weight(scenario: Mapping[str, Any], deployments: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the work of simulating one request of a scenario, see ``Work``."""
    rows = [deployments[key] for key in deployments_of(scenario) if key in deployments]
    per_token = any(row["pp"] > 1 or row["num_speculative_tokens"] for row in rows)
    weight = 1.0 + (scenario["output_len"] or 0) / TOKENS_A_REQUEST if per_token else 1.0
    return weight * (TURN if (scenario["num_turns"] or 1) > 1 else 1.0)


def _drawn_loads(rows: Sequence[Mapping[str, Any]]) -> Loads:
    """Draw the loads of rows of ``scenarios``; ``load_id`` is the scenario id."""
    names = [name for name in rows[0] if name not in ("scenario_id", "deployment_id")]
    columns = {name: pa.array([row[name] for row in rows]) for name in names}
    set_columns = {name: values for name, values in columns.items() if values.null_count < len(values)}
    return draw_loads(pa.table({"load_id": pa.array([row["scenario_id"] for row in rows]), **set_columns}))


def gap_share_above(gaps: np.ndarray, most_ms: float) -> float:
    """Return the share of gaps between tokens in bins whose centre exceeds ``most_ms``."""
    return float(gaps[bin_centres() > most_ms].sum() / max(gaps.sum(), 1))


def gap_percentile(gaps: np.ndarray, percent: float) -> float:
    """Return a percentile of the gaps between tokens in ms; 0 without any."""
    cumulative = np.cumsum(gaps)
    if cumulative[-1] == 0:
        return 0.0
    bin_index = np.searchsorted(cumulative, percent / 100.0 * (cumulative[-1] - 1), side="right")
    return float(bin_centres()[min(int(bin_index), gaps.size - 1)])


def gap_mean(gaps: np.ndarray) -> float:
    """Return the mean gap between tokens in ms."""
    return float((gaps * bin_centres()).sum() / max(gaps.sum(), 1))
