"""An engine with a full batch: the mean time that it needs for a request, from step costs alone.

A request takes its steps, so the batch decides how many requests begin in a step, in the mean; their number varies as
independent arrivals do. The mean time of such a step, over the requests that begin in it, is the time of a request.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import numpy as np

from kernelsight.serving.costs.knots import Reach, first_beyond
from kernelsight.serving.engine.host import host_times
from kernelsight.serving.engine.inputs import Host, Surface
from kernelsight.serving.engine.limits import Limits
from kernelsight.serving.engine.policy import FIRST_RATIO, LEAST_SHARE
from kernelsight.serving.engine.records import GUARANTEED_NO_EVICT, MAX_UTILIZATION, NEW_TOKEN_RATIO
from kernelsight.serving.engine.replica import Pool

# numbers of requests that begin in a step, beyond which several are costed together
MOST_COUNTS = 16
# of the tokens that an answer adds to a full cache, those that others lose and compute again: each time that the cache
# is full the newest request goes, which holds its prompt; all of them, if free blocks did a random walk between two
# admissions. The simulator's own runs have 0.4 to 0.8
COMPUTED_AGAIN = 0.6
# rounds in which rate and cohorts agree: each takes off four fifths of what is left, or more
COHORT_ROUNDS = 6
STEPS, KV, FRONT_END = "steps", "KV cache", "front end"


class Lengths(NamedTuple):
    """Mean requests of a load: tokens, and what the steps that decode see, in the mean over these steps."""

    prompt: float  # computed, without what the cache holds
    cached: float
    decodes: float  # steps that decode: a token each
    longest: int  # decode steps of the longest answer
    context: float
    whole: float  # tokens at the end
    burstiness: float = 1.0  # shape of the gamma distribution between two arrivals; 1: independent of each other


class Station(NamedTuple):
    """What a deployment completes at most, requests/s, and the station that is busy all the time then."""

    rate: float
    limit: str
    kernels: float  # share of the time that goes with that of the kernels


class Time(NamedTuple):
    """Time of a step, or of several, and what of it kernels or the front end set, microseconds."""

    total_us: float
    kernels_us: float
    front_end_us: float


class Grid(NamedTuple):
    """Attention over knots, microseconds: as numbers of Python, which single values are read off faster than arrays."""

    x: list[float]
    y: list[float]
    us: list[list[float]]  # [x][y]; empty where there is no such attention

    def at(self, x: float, y: float) -> float:
        """Return the bilinear value; beyond the last knots lines go on, over ``x`` from half of the last one."""
        if not self.us or x <= 0.0:
            return 0.0
        xs, ys, us = self
        j = max(min(bisect_right(ys, y) - 1, len(ys) - 2), 0)
        above = (y - ys[j]) / (ys[j + 1] - ys[j]) if len(ys) > 1 else 0.0
        upper = min(j + 1, len(ys) - 1)
        if x < xs[0]:  # less than one request, in the mean
            return x / xs[0] * ((1.0 - above) * us[0][j] + above * us[0][upper])
        low = max(min(bisect_right(xs, x) - 1, len(xs) - 2), 0)
        high = min(low + 1, len(xs) - 1)
        if x > xs[-1]:
            low, high = bisect_right(xs, xs[-1] / 2.0) - 1, len(xs) - 1
        right = (x - xs[low]) / (xs[high] - xs[low]) if xs[high] > xs[low] else 0.0
        at_j, at_upper = ((1.0 - right) * us[low][each] + right * us[high][each] for each in (j, upper))
        return (1.0 - above) * at_j + above * at_upper


class Costs(NamedTuple):
    """Step costs of one model, microseconds."""

    surface: Surface
    window: int
    decode: Grid
    windowed: Grid
    prefill: Grid

    def decode_us(self, requests: float, context: float) -> float:
        """Attention of one step over all requests that decode."""
        inside = min(context, float(self.window)) if self.window else 0.0
        return self.decode.at(requests, context) + self.windowed.at(requests, inside)

    def prefill_us(self, tokens: float, cached: float, chunks: float) -> float:
        """Attention of ``chunks`` chunks of this length in one step: they share one launch."""
        if not self.prefill.us or chunks <= 0.0:
            return 0.0
        return chunks * self.prefill.at(tokens, cached) - max(chunks - 1.0, 0.0) * self.prefill.us[0][0]

    def layers_us(self, tokens: float) -> float:
        """Everything that goes by the tokens of a step, padded as its CUDA graph is."""
        s = self.surface
        tokens_row = min(max(math.ceil(tokens), 0), s.padded_tokens.size - 1)
        return float(s.token_us[s.padded_tokens[tokens_row]])

    def logits_us(self, sampled: float) -> float:
        """The logits of sampled tokens."""
        return float(self.surface.sampled_us[min(math.ceil(sampled), self.surface.sampled_us.size - 1)])

    def part_us(self, name: str, tokens: float) -> float:
        """A part of the layers, or of what ranks share: 0 where the deployment has none."""
        values = getattr(self.surface, name)
        return float(values[min(math.ceil(tokens), values.size - 1)]) if values.size else 0.0


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


def costs_within(surface: Surface, window: int, reach: Reach) -> Costs:
    """Return costs as far as one load reaches, as ``within_reach`` cuts attention: other loads may need more of it."""
    decode = _grid(surface.decode_x, surface.decode_y, surface.decode_us, reach.requests, reach.tokens)
    # no step sees more than the window
    windowed = _grid(surface.window_x, surface.window_y, surface.window_us, reach.requests, window)
    prefill = _grid(surface.prefill_x, surface.prefill_y, surface.prefill_us, reach.tokens, reach.tokens)
    return Costs(surface, window, decode, windowed, prefill)


def _grid(x: np.ndarray, y: np.ndarray, us: np.ndarray, most_x: int, most_y: int) -> Grid:
    """Return the grid up to the first knots beyond these."""
    across, along = first_beyond(x, most_x) + 1, first_beyond(y, most_y) + 1
    return Grid(x[:across].tolist(), y[:along].tolist(), us[:across, :along].tolist() if us.size else [])


def station_of(pool: Pool, lengths: Lengths, reach: Reach) -> Station:
    """Return what one engine completes at most; ``reach``: of the load."""
    limits, stages = pool.limits, len(pool.layers)
    costs = costs_within(pool.costs.surface, limits.window_tokens, reach)
    draft = costs_within(pool.draft.costs.surface, pool.draft.window_tokens, reach) if pool.draft else None
    tokens_a_step = sum(limits.acceptance**number for number in range(limits.drafts + 1))
    steps = lengths.decodes / tokens_a_step
    fitting = requests_in_cache(limits, lengths)
    # of a pipeline each batch holds its part of the requests
    batch = min(float(limits.max_num_seqs), fitting) / stages
    if fitting < limits.max_num_seqs and limits.capacity_policy == MAX_UTILIZATION and lengths.prompt and steps:
        lengths = lengths._replace(prompt=lengths.prompt + COMPUTED_AGAIN * lengths.decodes)
    engine = FullEngine(limits, pool, costs, draft, lengths, steps, batch)
    time = engine.time_of_request()
    limit = KV if fitting < limits.max_num_seqs and engine.takes_all else STEPS
    limit = FRONT_END if time.front_end_us > 0.5 * time.total_us else limit
    return Station(1e6 / time.total_us, limit, time.kernels_us / time.total_us)


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


class FullEngine(NamedTuple):
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

    def time_of_request(self) -> Time:
        """Return the time that the engine needs for a request at capacity."""
        if self.limits.static:
            return self._static()
        if self.limits.prefill_first and self.steps > 0.0:
            return self._prefill_first()
        return self._mixed()

    def _mixed(self) -> Time:
        """Steps that decode and compute prompts at once, up to their budget of tokens."""
        prompt, query = self.lengths.prompt, self.query_tokens
        if not self.limits.chunked and prompt:
            return self._whole_prompts()
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
            parts = prompt_steps(begin, prompt, room)
        return self._of_steps(begin, parts)

    def _whole_prompts(self) -> Time:
        """Steps that decode and compute whole prompts: one begins where all of it fits beside what decodes."""
        prompt, decoding = self.lengths.prompt, self.steps * self.query_tokens
        fitting = np.arange(1.0, max(self.budget // prompt, 1.0) + 1.0)
        most = np.minimum(fitting, np.maximum(self.budget - fitting * prompt, 0.0) / max(decoding, 1e-9))
        # where none fits beside the others, a request runs alone
        most_begin = max(float(most.max()), 1.0 / (self.steps + 1.0))
        begin = min(self.batch / (self.steps + 1.0), most_begin)
        room = max((self.budget - begin * decoding) // prompt, 1.0) * prompt
        return self._of_steps(begin, prompt_steps(begin, prompt, room))

    def _of_steps(self, begin: float, parts: list[tuple[float, float]]) -> Time:
        """Return the time of a request, of which ``begin`` begin in a step; (share of steps, prompt tokens in them)."""
        steps = [(share, self._step(begin * self.steps, tokens, begin)) for share, tokens in parts]
        return _sum((share / begin, time) for share, time in self._longest(steps))

    def _longest(self, steps: list[tuple[float, Time]]) -> list[tuple[float, Time]]:
        """Return (share, time) of what a step waits for: all ranks, or the batch before it in a pipeline."""
        together = self.pool.ranks if self.pool.ranks > 1 else min(len(self.pool.layers), 2)
        waits, below = [], 0.0
        for share, time in sorted(steps, key=lambda each: each[1].total_us):
            waits.append(((below + share) ** together - below**together, time))
            below += share
        return waits

    def _prefill_first(self) -> Time:
        """Steps that decode alone, and before them steps for the prompts that wait."""
        begin = self.batch / self.steps
        decode = self._step(self.batch, 0.0, begin)
        time = self._with_prompts(decode, begin, counts_of(begin))
        if self.lengths.longest > self.lengths.decodes:
            return time
        # answers of one length that began together end together, and others begin together in their seats: those that
        # arrived before seats were short, in the steps with prompts between two that decode
        for _ in range(COHORT_ROUNDS):
            first, again = self._prompts_follow(decode, time, begin)
            time = self._with_prompts(decode, begin, cohorts_of(begin, first, again))
        return time

    def _with_prompts(self, decode: Time, begin: float, counts: Iterable[tuple[float, float]]) -> Time:
        """Return the time of a request where ``counts`` (share of decode steps, prompts before them) begin."""
        parts, full = [(1.0, decode)], self._step(0.0, self.budget, begin)
        for share, count in counts:
            parts += [(share * steps, time) for steps, time in self._prompts(count, full, begin)]
        return _sum((share / begin, time) for share, time in parts)

    def _prompts_follow(self, decode: Time, time: Time, begin: float) -> tuple[float, float]:
        """Return how often prompts come next after a step that decodes, and after one of prompts, while seats are free.

        A step has prompts if any arrived in the step before it; with asynchronous scheduling, in the one before that.
        Every other step then depends on each other alone, and where both kinds follow, neither knows of the last step.
        """
        after_decode = any_arrives(decode.total_us / time.total_us, self.lengths.burstiness)
        tokens = begin * self.lengths.prompt / max(after_decode, 1e-9)
        prompts = self._step(0.0, min(max(tokens * (1.0 - after_decode), self.lengths.prompt), self.budget), begin)
        after_prompts = any_arrives(prompts.total_us / time.total_us, self.lengths.burstiness)
        if not self.limits.asynchronous:
            return after_decode, after_prompts
        mean = after_decode / (1.0 + after_decode - after_prompts)
        return mean, mean

    def _static(self) -> Time:
        """A batch that ends with its longest answer; answers that ended leave their seats empty."""
        steps = self.lengths.longest * self.steps / max(self.lengths.decodes, 1.0)
        decoding = self.batch * self.lengths.decodes / max(self.lengths.longest, 1)
        full = self._step(0.0, self.budget, 1.0)
        parts = [(steps, self._step(decoding, 0.0, 1.0)), *self._prompts(self.batch, full, 1.0)]
        return _sum((count / self.batch, time) for count, time in parts)

    def _prompts(self, count: float, full: Time, begin: float) -> list[tuple[float, Time]]:
        """Return (number, time) of the steps that compute prompts alone: ``full`` ones, and the rest."""
        full_steps, rest = divmod(count * self.lengths.prompt, self.budget)
        times = [(full_steps, full)] if full_steps else []
        return times + ([(1.0, self._step(0.0, rest, begin))] if rest >= 1.0 else [])

    def _step(self, decoding: float, prompt_tokens: float, begin: float) -> Time:
        """Return the time of a step; ``begin``: requests that begin in one."""
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
        streams = _streams(host, decoding, exposed_us, hidden_us)
        if len(stages) == 1:
            gpu_us = layers_us + logits_us + drafts_us
            if gpu_us >= hidden_us:
                return Time(exposed_us + gpu_us, gpu_us, 0.0)
            return Time(exposed_us + hidden_us, 0.0, exposed_us + hidden_us if streams else 0.0)
        share, last = max(stages) / sum(stages), len(stages) - 1
        embedding_us, transfer_us = (self.costs.part_us(name, tokens) for name in ("embedding_us", "transfer_us"))
        own_us = (layers_us - embedding_us - transfer_us) * share
        own_us += max(embedding_us, transfer_us / last + logits_us + drafts_us)
        # decodes of all stages and this one's prompts are what each stage's scheduler looks at
        active_us = host.per_active_us * (decoding * len(stages) + chunks)
        busy_us = host.gap_us * share + max(own_us, launch_us * share) + active_us
        prepared_us = exposed_us - host.gap_us + max(hidden_us - launch_us, 0.0)
        if busy_us >= prepared_us:
            return Time(busy_us, min(own_us, busy_us), 0.0)
        return Time(prepared_us, 0.0, prepared_us if streams else 0.0)

    def _drafts_us(self, tokens: float, decoding: float, sequences: float) -> float:
        """Return the time of the draft model: on all tokens once, then on one of each sequence."""
        draft, passes = self.draft, self.limits.drafts - 1
        first = draft.layers_us(tokens) + draft.decode_us(decoding, self.lengths.context)
        again = draft.layers_us(sequences) + draft.decode_us(sequences, self.lengths.context)
        return first + passes * again + self.limits.drafts * draft.logits_us(sequences)


def _sum(parts: Iterable[tuple[float, Time]]) -> Time:
    """Return the sum of so many of each time."""
    scaled = [[count * each for each in time] for count, time in parts]
    return Time(*(math.fsum(column) for column in zip(*scaled, strict=True)))


def _streams(host: Host, decoding: float, exposed_us: float, hidden_us: float) -> bool:
    """Whether streaming, and not the engine's own work, is the hidden host time of a step."""
    return host.per_output_token_us > 0.0 and host.per_output_token_us * decoding - exposed_us >= hidden_us - 1e-6


def prompt_steps(begin: float, prompt: float, room: float) -> list[tuple[float, float]]:
    """Return (share of steps, prompt tokens in them), where prompts of one length begin independently of each other.

    What does not fit beside the decoding requests goes into steps of its own: full ones, as far as prompts meet.

    >>> [(round(share, 3), tokens) for share, tokens in prompt_steps(0.1, 500.0, 1000.0)]
    [(0.905, 0.0), (0.09, 500.0), (0.005, 1000.0)]
    >>> [(round(share, 3), tokens) for share, tokens in prompt_steps(0.1, 2500.0, 1000.0)]
    [(0.713, 0.0), (0.075, 500.0), (0.212, 1000.0)]
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
    for share, count in counts_of(begin):
        tokens = min(count * prompt, room)
        parts[tokens] = parts.get(tokens, 0.0) + share
    full = (begin * prompt - sum(share * tokens for tokens, share in parts.items())) / room
    if full > 1e-9:
        parts[room] = parts.get(room, 0.0) + full
        remaining = full  # these were the emptiest steps
        for tokens in sorted(parts):
            taken = min(remaining, parts[tokens])
            parts[tokens] -= taken
            remaining -= taken
    return [(share, tokens) for tokens, share in sorted(parts.items()) if share > 1e-12]


def counts_of(mean: float) -> list[tuple[float, float]]:
    """Return (probability, number) of independent events in one step; neighbours together where there are many.

    >>> [(round(share, 3), count) for share, count in counts_of(0.05)]
    [(0.951, 0.0), (0.048, 1.0), (0.001, 2.0)]
    """
    most = math.ceil(mean + 4.0 * math.sqrt(mean) + 1.0)
    numbers = np.arange(most + 1)
    logs = numbers * math.log(mean) - mean - _log_factorials(most)
    shares = np.exp(logs)
    return grouped(numbers, shares / shares.sum())


def any_arrives(mean: float, burstiness: float) -> float:
    """Return the probability that any of ``mean`` requests arrives: one less that of none.

    As of a negative binomial number with the variance that arrivals of this burstiness have over a long time.

    >>> round(any_arrives(0.5, 1.0), 3), round(any_arrives(0.5, 0.5), 3)
    (0.393, 0.293)
    """
    together = mean if abs(burstiness - 1.0) < 1e-6 else mean * burstiness * math.log(burstiness) / (burstiness - 1.0)
    return -math.expm1(-together)


def cohorts_of(mean: float, first: float, again: float) -> list[tuple[float, float]]:
    """Return (share of decode steps, requests that begin after them at once), ``mean`` of them over all steps.

    After ``first`` of the steps there are any; they arrived in one step, and with ``again`` in one more, and so on: in
    each as many as independent arrivals that are not none.

    >>> [(round(share, 3), round(count, 2)) for share, count in cohorts_of(0.5, 0.4, 0.1)][:3]
    [(0.318, 1.0), (0.066, 2.0), (0.012, 3.0)]
    """
    of_step = max(mean * (1.0 - again) / first, 1.0)
    rate = _mean_before_none_left_out(of_step)
    most = math.ceil(4.0 + 8.0 * mean / first)
    numbers = np.arange(1, most + 1)
    one = np.exp(numbers * math.log(rate) - rate - _log_factorials(most)[1:])
    one /= one.sum()
    shares = (1.0 - again) * np.convolve(one, _and_so_on(again * one))[:most]
    # what is cut off is given to all
    shares *= first / shares.sum()
    return grouped(numbers, shares)


def _and_so_on(step: np.ndarray) -> np.ndarray:
    """Return the sum of all powers of a series without its constant, as long as it; ``step``: from its first power on.

    What is known doubles with each round: as far as that, the product of it with the series says what follows.
    """
    total = np.ones(1)
    while total.size < step.size:
        known = total.size
        more = min(2 * known, step.size) - known
        ahead = np.convolve(step[: known + more - 1], total)[known - 1 : known + more - 1]
        total = np.append(total, np.convolve(ahead, total)[:more])
    return total


def _log_factorials(most: int) -> np.ndarray:
    """Return the logarithms of the factorials of 0 to ``most``."""
    return _log_factorials_below(1 << (most + 1).bit_length())[: most + 1]


@cache
def _log_factorials_below(end: int) -> np.ndarray:
    return np.array([math.lgamma(number + 1.0) for number in range(end)])


def _mean_before_none_left_out(mean: float) -> float:
    """Return the mean of a Poisson number whose mean without zeros is ``mean``, at least a little."""
    low, high = 1e-6, max(mean, 1e-5)
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (middle, high) if middle / -math.expm1(-middle) < mean else (low, middle)
    return high


def grouped(numbers: np.ndarray, shares: np.ndarray) -> list[tuple[float, float]]:
    """Return (share, mean number) of at most MOST_COUNTS groups of neighbours."""
    count = min(MOST_COUNTS, numbers.size)
    size, larger = divmod(numbers.size, count)  # the first groups hold one more
    starts = np.minimum(np.arange(count), larger) + size * np.arange(count)
    stops = [*starts[1:].tolist(), numbers.size]
    sums = (np.add.reduceat(each, starts).tolist() for each in (shares, shares * numbers))
    # a number alone stays whole: a step's tokens count up to the next whole number
    return [
        (share, float(numbers[start]) if stop - start == 1 else total / share)
        for start, stop, share, total in zip(starts.tolist(), stops, *sums, strict=True)
        if share > 1e-12
    ]
