"""The highest rate that a deployment keeps up with: its busiest station at 100 %, from step costs alone.

At capacity the batch is as full as seats and KV cache allow, and every request that ends is followed by one that waits.
A request takes its steps, so the batch decides how many requests begin in a step, in the mean; their number varies as
independent arrivals do. The mean time of such a step, over the requests that begin in it, is the time of a request at
the busiest station. Nothing is simulated: a few steps are read off the same surfaces that the loop reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.scenario.plan import deployments_of
from kernelsight.serving.engine.host import Z_90, host_times
from kernelsight.serving.engine.inputs import Host, Surface
from kernelsight.serving.engine.limits import Limits
from kernelsight.serving.engine.policy import FIRST_RATIO, LEAST_SHARE
from kernelsight.serving.engine.records import GUARANTEED_NO_EVICT, MAX_UTILIZATION, NEW_TOKEN_RATIO
from kernelsight.serving.engine.replica import Pool
from kernelsight.serving.runs.pools import replicated
from kernelsight.serving.runs.world import World, pool_of

# numbers of requests that begin in a step, beyond which several are costed together
MOST_COUNTS = 16
# of the tokens that an answer adds to a full cache, those that others lose and compute again: each time that the cache
# is full the newest request goes, which holds its prompt; all of them, if free blocks did a random walk between two
# admissions. The simulator's own runs have 0.4 to 0.8
COMPUTED_AGAIN = 0.6
STEPS, KV, FRONT_END = "steps", "KV cache", "front end"
TIMES = tuple(name for name, kind in Host.__annotations__.items() if name.endswith("_us"))


class Lengths(NamedTuple):
    """Mean requests of a load: tokens, and what the steps that decode see, in the mean over these steps."""

    prompt: float  # computed, without what the cache holds
    cached: float
    decodes: float  # steps that decode: a token each
    longest: int  # decode steps of the longest answer
    context: float
    whole: float  # tokens at the end


class Station(NamedTuple):
    """What a deployment completes at most, requests/s, and the station that is busy all the time then."""

    rate: float
    limit: str


class Costs(NamedTuple):
    """Step costs of one model, microseconds; ``factor``: on all kernels."""

    surface: Surface
    window: int
    factor: float = 1.0

    def decode_us(self, requests: float, context: float) -> float:
        """Attention of one step over all requests that decode."""
        s = self.surface
        inside = min(context, float(self.window)) if self.window else 0.0
        full = _between(s.decode_x, s.decode_y, s.decode_us, requests, context)
        return self.factor * (full + _between(s.window_x, s.window_y, s.window_us, requests, inside))

    def prefill_us(self, tokens: float, cached: float, chunks: float) -> float:
        """Attention of ``chunks`` chunks of this length in one step: they share one launch."""
        s = self.surface
        if not s.prefill_us.size or chunks <= 0.0:
            return 0.0
        one = _between(s.prefill_x, s.prefill_y, s.prefill_us, tokens, cached)
        return self.factor * (chunks * one - max(chunks - 1.0, 0.0) * float(s.prefill_us[0, 0]))

    def layers_us(self, tokens: float) -> float:
        """Everything that goes by the tokens of a step, padded as its CUDA graph is."""
        s = self.surface
        place = min(max(math.ceil(tokens), 0), s.padded_tokens.size - 1)
        return self.factor * float(s.token_us[s.padded_tokens[place]])

    def logits_us(self, sampled: float) -> float:
        """The logits of sampled tokens."""
        return self.factor * float(self.surface.sampled_us[min(math.ceil(sampled), self.surface.sampled_us.size - 1)])

    def part_us(self, name: str, tokens: float) -> float:
        """A part of the layers, or of what ranks share: 0 where the deployment has none."""
        values = getattr(self.surface, name)
        return self.factor * float(values[min(math.ceil(tokens), values.size - 1)]) if values.size else 0.0


def capacities(world: World, statistics: pa.Table) -> pa.Table:
    """Return ``scenario_capacity``; ``statistics`` say which share of the prompts the prefix cache held."""
    rows, known = [], {}
    served = {row["scenario_id"]: row for row in _selected(statistics)}
    for scenario in world.scenarios:
        own = served.get(scenario["scenario_id"])
        if own is None or not own["completed"]:
            continue
        start, stop = world.spans[scenario["scenario_id"]]
        cached = own["cached_tokens"] / own["asked_tokens"] if own["asked_tokens"] else 0.0
        prompts, outputs = (world.columns[name][start:stop] for name in ("prompt_tokens", "output_tokens"))
        lengths = lengths_of(prompts, outputs, cached)
        keys = tuple(deployments_of(scenario))
        replicas = tuple(scenario[name] for name in ("replicas", "prefill_replicas", "decode_replicas"))
        key = (keys, replicas, lengths)
        if key not in known:
            known[key] = _ends(world, scenario, keys, lengths)
        low, middle, high = known[key]
        asked = _asked(world, scenario, start, stop) or own["completed"] / max(own["duration_s"], 1e-9)
        rows.append(
            {
                "scenario_id": scenario["scenario_id"],
                "capacity": middle.rate,
                "capacity_low": low,
                "capacity_high": high,
                "capacity_limit": middle.limit,
                "asked_rate": asked,
                "load": asked / middle.rate,
            }
        )
    names = ("capacity", "capacity_low", "capacity_high", "asked_rate", "load")
    return pa.table(
        {"scenario_id": pa.array([row["scenario_id"] for row in rows], pa.string())}
        | {name: pa.array([row[name] for row in rows], pa.float64()) for name in names[:3]}
        | {"capacity_limit": pa.array([row["capacity_limit"] for row in rows], pa.string())}
        | {name: pa.array([row[name] for row in rows], pa.float64()) for name in names[3:]}
    )


def _selected(statistics: pa.Table) -> list[dict[str, Any]]:
    names = ["scenario_id", "completed", "duration_s", "asked_tokens", "cached_tokens"]
    return statistics.select(names).to_pylist()


def _asked(world: World, scenario: Mapping[str, Any], start: int, stop: int) -> float | None:
    """Return the requests/s that are sent whatever the engine does; None where ends of others decide that."""
    if scenario["max_concurrency"] is not None and scenario["request_rate"] is None:
        return None
    if scenario["scenario_id"] in world.waits:
        return None
    if scenario["request_rate"] is not None:
        return scenario["request_rate"]
    arrivals = world.columns["arrival_s"][start:stop]
    span = float(arrivals[-1] - arrivals[0])
    return (stop - start - 1) / span if span > 0.0 else None


def lengths_of(prompts: np.ndarray, outputs: np.ndarray, cached: float) -> Lengths:
    """Return the mean lengths of requests; ``cached``: the share of prompt tokens that is not computed.

    >>> lengths_of(np.array([100, 300]), np.array([11, 31]), 0.0).decodes
    20.0
    """
    steps = np.maximum(outputs - 1, 0).astype(float)
    prompt, decodes = float(prompts.mean()), float(steps.mean())
    context = float((steps * (prompts + (steps + 1.0) / 2.0)).sum() / max(steps.sum(), 1.0)) or prompt
    computed = max(prompt * (1.0 - cached), 1.0)
    return Lengths(computed, prompt - computed, decodes, int(steps.max()), context, prompt + decodes)


def _ends(
    world: World, scenario: Mapping[str, Any], keys: tuple[str, ...], lengths: Lengths
) -> tuple[float, Station, float]:
    """Return the capacity with slow kernels and host, in the middle, and with fast ones."""
    middle = _of_pools(world, scenario, keys, lengths, 0.0, 0.0)
    parts = {
        sign: [math.log(middle.rate / _of_pools(world, scenario, keys, lengths, *each).rate)
               for each in ((sign, 0.0), (0.0, sign))]
        for sign in (-1.0, 1.0)
    }  # fmt: skip
    # kernels and host err independently of each other
    return middle.rate / math.exp(math.hypot(*parts[1.0])), middle, middle.rate * math.exp(math.hypot(*parts[-1.0]))


def _of_pools(
    world: World, scenario: Mapping[str, Any], keys: tuple[str, ...], lengths: Lengths, kernels: float, host: float
) -> Station:
    """Return the capacity of all replicas; ``kernels``, ``host``: ends of their intervals, -1 fast to 1 slow."""
    pools = replicated(dict(scenario), *(pool_of(world, key) for key in keys))
    found = []
    for place, (key, pool) in enumerate(zip(reversed(keys), pools, strict=True)):
        factor = world.costs[key].spread ** kernels
        slower = math.exp(host * Z_90 * world.hosts[key]["step_log_sd"])
        moved = pool.host._replace(**{name: getattr(pool.host, name) * slower for name in TIMES})
        own = lengths
        if len(pools) > 1:  # one pool computes prompts, the other decodes what it has received
            own = lengths._replace(decodes=0.0, longest=0) if place == 0 else lengths._replace(prompt=0.0)
        one = _of_engine(pool._replace(host=moved), own, factor)
        found.append(Station(one.rate * pool.engines, one.limit))
    return min(found)


def _of_engine(pool: Pool, lengths: Lengths, factor: float) -> Station:
    """Return what one engine completes, requests/s."""
    limits, stages = pool.limits, len(pool.layers)
    costs = Costs(pool.costs.surface, limits.window_tokens, factor)
    draft = Costs(pool.draft.costs.surface, pool.draft.window_tokens, factor) if pool.draft else None
    tokens_a_step = sum(limits.acceptance**number for number in range(limits.drafts + 1))
    steps = lengths.decodes / tokens_a_step
    fitting = requests_in_cache(limits, lengths)
    # of a pipeline each batch holds its part of the requests
    batch = min(float(limits.max_num_seqs), fitting) / stages
    if fitting < limits.max_num_seqs and limits.capacity_policy == MAX_UTILIZATION and lengths.prompt and steps:
        lengths = lengths._replace(prompt=lengths.prompt + COMPUTED_AGAIN * lengths.decodes)
    engine = _Engine(limits, pool, costs, draft, lengths, steps, batch)
    time_us, paced = engine.request_us()
    if paced:
        return Station(1e6 / time_us, FRONT_END)
    return Station(1e6 / time_us, KV if fitting < limits.max_num_seqs and engine.takes_all else STEPS)


def requests_in_cache(limits: Limits, lengths: Lengths) -> float:
    """Return how many requests the KV cache holds at once, in the mean over the time that they run."""
    held = lengths.context + limits.drafts
    if limits.capacity_policy == GUARANTEED_NO_EVICT:
        held = lengths.whole
    elif limits.capacity_policy == NEW_TOKEN_RATIO:
        ratio = min(FIRST_RATIO * limits.schedule_conservativeness, 1.0) * LEAST_SHARE
        held += ratio * max(lengths.whole - lengths.context, 0.0)
    units = units_of(limits, held)
    # what is free is too little for the next prompt: half of it, in the mean
    free = units_of(limits, lengths.prompt + lengths.cached) / 2.0
    return max((limits.capacity_units - free) / units, 1.0) if units else math.inf


def units_of(limits: Limits, tokens: float) -> float:
    """Return the KV units of a request with this many tokens, in the mean over where its last block ends."""
    blocks = tokens / limits.block_size + 0.5
    return limits.full_units * blocks + limits.window_units * min(blocks, limits.window_blocks) + limits.sequence_units


class _Engine(NamedTuple):
    """One engine with a full batch of ``batch`` requests, each of which decodes in ``steps`` steps."""

    limits: Limits
    pool: Pool
    costs: Costs
    draft: Costs | None
    lengths: Lengths
    steps: float
    batch: float

    @property
    def query_tokens(self) -> int:
        """Tokens of a decoding request in a step."""
        return 1 + self.limits.drafts

    @property
    def budget(self) -> float:
        """Tokens of a step."""
        return float(self.limits.max_num_batched_tokens)

    @property
    def takes_all(self) -> bool:
        """Whether the token budget lets the whole batch decode beside the prompts that begin."""
        prompt, seats = self.lengths.prompt, self.batch / (self.steps + 1.0)
        return seats * (prompt + self.steps * self.query_tokens) <= self.budget

    def request_us(self) -> tuple[float, bool]:
        """Return the time that the engine needs for a request at capacity, and whether its front end sets the pace."""
        if self.limits.static:
            return self._static_us()
        if self.limits.prefill_first and self.steps > 0.0:
            return self._prefill_first_us()
        return self._mixed_us()

    def _mixed_us(self) -> tuple[float, bool]:
        """Steps that decode and compute prompts at once, up to their budget of tokens."""
        prompt, query = self.lengths.prompt, self.query_tokens
        begin = self.batch / (self.steps + 1.0)
        room = self.budget - begin * self.steps * query
        for _ in range(4):  # a long prompt keeps its seat for several steps
            begin = self.batch / (self.steps + max(math.ceil(prompt / max(room, 1.0)), 1))
            room = self.budget - begin * self.steps * query
        if begin * prompt > room:  # every step is full
            begin = self.budget / (prompt + self.steps * query)
            room = self.budget - begin * self.steps * query
            parts = [(1.0, room)]
        else:
            parts = _prompt_steps(begin, prompt, room)
        times = self._longest([(share, *self._step(begin * self.steps, tokens, begin)) for share, tokens in parts])
        total = sum(share * time for share, time, _ in times)
        return total / begin, sum(share * time for share, time, paced in times if paced) > 0.5 * total

    def _longest(self, times: list[tuple[float, float, bool]]) -> list[tuple[float, float, bool]]:
        """Return (share, time, paced) of what a step waits for: all ranks, or the batch before it in a pipeline."""
        together = self.pool.ranks if self.pool.ranks > 1 else min(len(self.pool.layers), 2)
        found, below = [], 0.0
        for share, time, paced in sorted(times, key=lambda each: each[1]):
            found.append(((below + share) ** together - below**together, time, paced))
            below += share
        return found

    def _prefill_first_us(self) -> tuple[float, bool]:
        """Steps that decode alone, and before them steps for the prompts that wait."""
        begin = self.batch / self.steps
        decode_us, paced = self._step(self.batch, 0.0, begin)
        total = decode_us
        for share, count in _counts(begin):
            whole, rest = divmod(count * self.lengths.prompt, self.budget)
            total += share * whole * self._step(0.0, self.budget, begin)[0]
            total += share * (self._step(0.0, rest, begin)[0] if rest >= 1.0 else 0.0)
        return total / begin, paced

    def _static_us(self) -> tuple[float, bool]:
        """A batch that ends with its longest answer."""
        whole, rest = divmod(self.batch * self.lengths.prompt, self.budget)
        total = whole * self._step(0.0, self.budget, 1.0)[0] + (self._step(0.0, rest, 1.0)[0] if rest >= 1.0 else 0.0)
        # answers that ended leave their seats empty
        steps = self.lengths.longest * self.steps / max(self.lengths.decodes, 1.0)
        decode_us, paced = self._step(self.batch * self.lengths.decodes / max(self.lengths.longest, 1), 0.0, 1.0)
        return (total + steps * decode_us) / self.batch, paced

    def _step(self, decoding: float, prompt_tokens: float, begin: float) -> tuple[float, bool]:
        """Return the time of a step, and whether the front end sets it; ``begin``: requests that begin in one."""
        lengths, host, stages = self.lengths, self.pool.host, self.pool.layers
        tokens = decoding * self.query_tokens + prompt_tokens
        piece = min(lengths.prompt, max(prompt_tokens, 1.0))
        chunks = prompt_tokens / piece if prompt_tokens > 0.0 else 0.0
        ended = prompt_tokens / lengths.prompt if lengths.prompt else begin
        sampled = decoding * self.query_tokens + ended
        logits_us = self.costs.logits_us(sampled)
        before = lengths.cached + max(lengths.prompt - piece, 0.0) / 2.0
        layers_us = self.costs.layers_us(tokens) + self.costs.decode_us(decoding, lengths.context)
        layers_us += self.costs.prefill_us(piece, before, chunks)
        if self.pool.ranks > 1:
            mean = decoding * self.query_tokens + min(begin * lengths.prompt, self.budget)
            layers_us += self.costs.part_us("experts_us", mean)
        hidden_us, exposed_us, launch_us = host_times(decoding + chunks, tokens, math.ceil(chunks), host)
        drafts_us = self._drafts_us(tokens, decoding, sampled / self.query_tokens) if self.draft else 0.0
        paced = hidden_us > launch_us + 1e-9 and _paces(host, decoding, exposed_us, hidden_us)
        if len(stages) == 1:
            gpu_us = layers_us + logits_us + drafts_us
            return exposed_us + max(hidden_us, gpu_us), paced and hidden_us > gpu_us
        share, last = max(stages) / sum(stages), len(stages) - 1
        embedding_us, transfer_us = (self.costs.part_us(name, tokens) for name in ("embedding_us", "transfer_us"))
        own_us = (layers_us - embedding_us - transfer_us) * share
        own_us += max(embedding_us, transfer_us / last + logits_us + drafts_us)
        busy_us = host.gap_us * share + max(own_us, launch_us * share)
        prepared_us = exposed_us - host.gap_us + max(hidden_us - launch_us, 0.0)
        return max(busy_us, prepared_us), paced and prepared_us > busy_us

    def _drafts_us(self, tokens: float, decoding: float, sequences: float) -> float:
        """Return the time of the draft model: on all tokens once, then on one of each sequence."""
        draft, passes = self.draft, self.limits.drafts - 1
        first = draft.layers_us(tokens) + draft.decode_us(decoding, self.lengths.context)
        again = draft.layers_us(sequences) + draft.decode_us(sequences, self.lengths.context)
        return first + passes * again + self.limits.drafts * draft.logits_us(sequences)


def _paces(host: Host, decoding: float, exposed_us: float, hidden_us: float) -> bool:
    """Whether streaming, and not the engine's own work, is the hidden host time of a step."""
    return host.per_output_token_us > 0.0 and host.per_output_token_us * decoding - exposed_us >= hidden_us - 1e-6


def _prompt_steps(begin: float, prompt: float, room: float) -> list[tuple[float, float]]:
    """Return (share of steps, prompt tokens in them), where prompts of one length begin independently of each other.

    What does not fit beside the decoding requests goes into steps of its own: full ones, as far as prompts meet.

    >>> [(round(share, 3), tokens) for share, tokens in _prompt_steps(0.1, 500.0, 1000.0)]
    [(0.905, 0.0), (0.09, 500.0), (0.005, 1000.0)]
    >>> [(round(share, 3), tokens) for share, tokens in _prompt_steps(0.1, 2500.0, 1000.0)]
    [(0.737, 0.0), (0.075, 500.0), (0.188, 1000.0)]
    """
    if prompt <= 0.0:
        return [(1.0, 0.0)]
    if prompt >= room:
        busy = begin * prompt / room
        rest = prompt - math.floor(prompt / room) * room
        partial = begin * (1.0 - busy) if rest > 0.0 else 0.0
        full = (begin * prompt - rest * partial) / room
        return [(max(1.0 - partial - full, 0.0), 0.0), (partial, rest), (full, room)]
    parts: dict[float, float] = {}
    for share, count in _counts(begin):
        tokens = min(count * prompt, room)
        parts[tokens] = parts.get(tokens, 0.0) + share
    full = (begin * prompt - sum(share * tokens for tokens, share in parts.items())) / room
    if full > 1e-9:
        parts[room] = parts.get(room, 0.0) + full
        left = full  # these were the emptiest steps
        for tokens in sorted(parts):
            taken = min(left, parts[tokens])
            parts[tokens] -= taken
            left -= taken
    return [(share, tokens) for tokens, share in sorted(parts.items()) if share > 1e-12]


def _counts(mean: float) -> list[tuple[float, float]]:
    """Return (probability, number) of independent events in one step; neighbours together where there are many.

    >>> [(round(share, 3), count) for share, count in _counts(0.05)]
    [(0.951, 0.0), (0.048, 1.0), (0.001, 2.0)]
    """
    most = math.ceil(mean + 4.0 * math.sqrt(mean) + 1.0)
    numbers = np.arange(most + 1)
    logs = numbers * math.log(mean) - mean - np.array([math.lgamma(number + 1.0) for number in numbers])
    shares = np.exp(logs)
    shares /= shares.sum()
    groups = np.array_split(numbers, min(MOST_COUNTS, numbers.size))
    found = [(float(shares[group].sum()), float((shares[group] * group).sum())) for group in groups]
    return [(share, total / share) for share, total in found if share > 1e-12]


def _between(xs: np.ndarray, ys: np.ndarray, grid: np.ndarray, x: float, y: float) -> float:
    """Return the bilinear value of a grid; beyond its last knots lines go on, over ``x`` from half of the last one."""
    if not grid.size or x <= 0.0:
        return 0.0
    j = max(min(int(np.searchsorted(ys, y, side="right")) - 1, ys.size - 2), 0)
    above = (y - ys[j]) / (ys[j + 1] - ys[j]) if ys.size > 1 else 0.0
    upper = min(j + 1, ys.size - 1)
    if x < xs[0]:  # less than one request, in the mean
        return float(x / xs[0] * ((1.0 - above) * grid[0, j] + above * grid[0, upper]))
    low = max(min(int(np.searchsorted(xs, x, side="right")) - 1, xs.size - 2), 0)
    high = min(low + 1, xs.size - 1)
    if x > xs[-1]:
        low, high = int(np.searchsorted(xs, xs[-1] / 2.0, side="right")) - 1, xs.size - 1
    right = (x - xs[low]) / (xs[high] - xs[low]) if xs[high] > xs[low] else 0.0
    line = (1.0 - right) * grid[low] + right * grid[high]
    return float((1.0 - above) * line[j] + above * line[upper])
