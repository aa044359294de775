"""An engine with a full batch: the mean time that it needs for a request, from step costs alone.

A request takes its steps, so the batch decides how many requests begin in a step, in the mean; their number varies as
independent arrivals do. The mean time of such a step, over the requests that begin in it, is the time of a request.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from kernelsight.serving.costs.knots import Reach, first_beyond
from kernelsight.serving.engine.host import host_times
from kernelsight.serving.engine.inputs import Surface
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


class Costs(NamedTuple):
    """Step costs of one model, microseconds, of several steps at once."""

    surface: Surface
    window: int

    def decode_us(self, requests: np.ndarray, context: float) -> np.ndarray:
        """Attention of one step over all requests that decode."""
        s = self.surface
        inside = min(context, float(self.window)) if self.window else 0.0
        full = _between(s.decode_x, s.decode_y, s.decode_us, requests, context)
        return full + _between(s.window_x, s.window_y, s.window_us, requests, inside)

    def prefill_us(self, tokens: np.ndarray, cached: np.ndarray, chunks: np.ndarray) -> np.ndarray:
        """Attention of ``chunks`` chunks of this length in one step: they share one launch."""
        s = self.surface
        if not s.prefill_us.size or not chunks.any():
            return np.zeros(tokens.size)
        one = _between(s.prefill_x, s.prefill_y, s.prefill_us, tokens, cached)
        return chunks * one - np.maximum(chunks - 1.0, 0.0) * s.prefill_us[0, 0]

    def layers_us(self, tokens: np.ndarray) -> np.ndarray:
        """Everything that goes by the tokens of a step, padded as its CUDA graph is."""
        s = self.surface
        return s.token_us[s.padded_tokens[_rows(tokens, s.padded_tokens)]]

    def logits_us(self, sampled: np.ndarray) -> np.ndarray:
        """The logits of sampled tokens."""
        return self.surface.sampled_us[_rows(sampled, self.surface.sampled_us)]

    def part_us(self, name: str, tokens: np.ndarray) -> np.ndarray:
        """A part of the layers, or of what ranks share: 0 where the deployment has none."""
        values = getattr(self.surface, name)
        return values[_rows(tokens, values)] if values.size else np.zeros(tokens.size)


def _rows(numbers: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the rows of a table by whole numbers, up to its last one."""
    return np.clip(np.ceil(numbers), 0, values.size - 1).astype(np.intp)


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


def as_far_as(surface: Surface, reach: Reach) -> Surface:
    """Return attention as far as one load reaches, as ``within_reach`` cuts it: other loads may need more of it."""
    decodes, contexts, window, prompts, before = (
        first_beyond(knots, most) + 1
        for knots, most in (
            *((surface.decode_x, reach.requests), (surface.decode_y, reach.tokens)),
            (surface.window_x, reach.requests),
            *((surface.prefill_x, reach.tokens), (surface.prefill_y, reach.tokens)),
        )
    )
    return surface._replace(
        decode_x=surface.decode_x[:decodes],
        decode_y=surface.decode_y[:contexts],
        decode_us=surface.decode_us[:decodes, :contexts],
        window_x=surface.window_x[:window],
        window_us=surface.window_us[:window],
        prefill_x=surface.prefill_x[:prompts],
        prefill_y=surface.prefill_y[:before],
        prefill_us=surface.prefill_us[:prompts, :before],
    )


def station_of(pool: Pool, lengths: Lengths, reach: Reach) -> Station:
    """Return what one engine completes at most; ``reach``: of the load."""
    limits, stages = pool.limits, len(pool.layers)
    costs = Costs(as_far_as(pool.costs.surface, reach), limits.window_tokens)
    draft = Costs(as_far_as(pool.draft.costs.surface, reach), pool.draft.window_tokens) if pool.draft else None
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
    full, windows = limits.full_units * blocks, limits.window_units * min(blocks, limits.window_blocks)
    return (max(full, windows) if limits.windows_apart else full + windows) + limits.sequence_units


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
            return self._of_steps(begin, [(1.0, room)])
        return self._of_steps(begin, prompt_steps(begin, prompt, room))

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

    def _of_steps(self, begin: float, steps: list[tuple[float, float]]) -> Time:
        """Return the time of a request, of which ``begin`` begin in a step; (share of steps, prompt tokens in them)."""
        shares, tokens = np.array(steps).T
        times = self._times(begin * self.steps, tokens, begin)
        # a step waits for all ranks, or for the batch before it in a pipeline
        together = self.pool.ranks if self.pool.ranks > 1 else min(len(self.pool.layers), 2)
        order = np.argsort(times[0], kind="stable")
        below = np.concatenate([[0.0], np.cumsum(shares[order])]) ** together
        return Time(*(times[:, order] @ (np.diff(below) / begin)).tolist())

    def _prefill_first(self) -> Time:
        """Steps that decode alone, and before them steps for the prompts that wait."""
        begin = self.batch / self.steps
        decode = self._times(self.batch, np.zeros(1), begin)[:, 0]
        time = self._with_prompts(decode, begin, counts_of(begin))
        if self.lengths.longest > self.lengths.decodes:
            return time
        # answers of one length that began together end together, and others begin together in their seats: those that
        # arrived before seats were short, in the steps with prompts between two that decode
        for _ in range(COHORT_ROUNDS):
            first, again = self._prompts_follow(decode[0], time, begin)
            time = self._with_prompts(decode, begin, cohorts_of(begin, first, again))
        return time

    def _with_prompts(self, decode: np.ndarray, begin: float, counts: list[tuple[float, float]]) -> Time:
        """Return the time of a request where ``counts`` (share of decode steps, prompts before them) begin."""
        shares, numbers = np.array(counts).T
        return Time(*((decode + self._of_prompts(numbers, begin) @ shares) / begin).tolist())

    def _prompts_follow(self, decode_us: float, time: Time, begin: float) -> tuple[float, float]:
        """Return how often prompts come next after a step that decodes, and after one of prompts, while seats are free.

        A step has prompts if any arrived in the step before it; with asynchronous scheduling, in the one before that.
        Every other step then depends on each other alone, and where both kinds follow, neither knows of the last step.
        """
        after_decode = any_arrives(decode_us / time.total_us, self.lengths.burstiness)
        tokens = begin * self.lengths.prompt / max(after_decode, 1e-9)
        tokens = min(max(tokens * (1.0 - after_decode), self.lengths.prompt), self.budget)
        prompts_us = float(self._times(0.0, np.array([tokens]), begin)[0, 0])
        after_prompts = any_arrives(prompts_us / time.total_us, self.lengths.burstiness)
        if not self.limits.asynchronous:
            return after_decode, after_prompts
        mean = after_decode / (1.0 + after_decode - after_prompts)
        return mean, mean

    def _static(self) -> Time:
        """A batch that ends with its longest answer; answers that ended leave their seats empty."""
        steps = self.lengths.longest * self.steps / max(self.lengths.decodes, 1.0)
        decoding = self.batch * self.lengths.decodes / max(self.lengths.longest, 1)
        decodes = steps * self._times(decoding, np.zeros(1), 1.0)[:, 0]
        return Time(*((decodes + self._of_prompts(np.array([self.batch]), 1.0)[:, 0]) / self.batch).tolist())

    def _of_prompts(self, counts: np.ndarray, begin: float) -> np.ndarray:
        """Return the times (3, n) of the steps that compute so many prompts alone: full ones, and the rest."""
        full_steps, rest = np.divmod(counts * self.lengths.prompt, self.budget)
        times = self._times(0.0, np.append(rest, self.budget), begin)
        return times[:, :-1] * (rest >= 1.0) + times[:, -1:] * full_steps

    def _times(self, decoding: float, prompt_tokens: np.ndarray, begin: float) -> np.ndarray:
        """Return the rows of ``Time`` (3, n) of steps; ``begin``: requests that begin in one."""
        lengths, host, stages = self.lengths, self.pool.host, self.pool.layers
        tokens = decoding * self.query_tokens + prompt_tokens
        piece = np.minimum(lengths.prompt, np.maximum(prompt_tokens, 1.0))
        chunks = np.divide(prompt_tokens, piece, out=np.zeros(tokens.size), where=piece > 0.0)
        ended = prompt_tokens / lengths.prompt if lengths.prompt else begin
        sampled = decoding * self.query_tokens + ended + np.zeros(tokens.size)
        logits_us = self.costs.logits_us(sampled)
        before = lengths.cached + np.maximum(lengths.prompt - piece, 0.0) / 2.0
        layers_us = self.costs.layers_us(tokens) + self.costs.decode_us(np.array([decoding]), lengths.context)
        layers_us += self.costs.prefill_us(piece, before, chunks)
        if self.pool.ranks > 1:
            mean = decoding * self.query_tokens + min(begin * lengths.prompt, self.budget)
            layers_us += self.costs.part_us("experts_us", np.array([mean]))
        hidden_us, exposed_us, launch_us = np.array(
            [
                host_times(decoding + number, each, math.ceil(number), host)
                for number, each in zip(chunks.tolist(), tokens.tolist(), strict=True)
            ]
        ).T
        drafts_us = self._drafts_us(tokens, decoding, sampled / self.query_tokens) if self.draft else 0.0
        # whether streaming, and not the engine's own work, is the hidden host time of a step
        streamed_us = host.per_output_token_us * decoding
        streams = (streamed_us > 0.0) & (streamed_us - exposed_us >= hidden_us - 1e-6)
        if len(stages) == 1:
            gpu_us = layers_us + logits_us + drafts_us
            kernels = gpu_us >= hidden_us
            total_us = exposed_us + np.maximum(gpu_us, hidden_us)
            return np.stack([total_us, gpu_us * kernels, total_us * (streams & ~kernels)])
        share, last = max(stages) / sum(stages), len(stages) - 1
        embedding_us, transfer_us = (self.costs.part_us(name, tokens) for name in ("embedding_us", "transfer_us"))
        own_us = (layers_us - embedding_us - transfer_us) * share
        own_us += np.maximum(embedding_us, transfer_us / last + logits_us + drafts_us)
        # decodes of all stages and this one's prompts are what each stage's scheduler looks at
        active_us = host.per_active_us * (decoding * len(stages) + chunks)
        busy_us = host.gap_us * share + np.maximum(own_us, launch_us * share) + active_us
        prepared_us = exposed_us - host.gap_us + np.maximum(hidden_us - launch_us, 0.0)
        busy = busy_us >= prepared_us
        total_us = np.maximum(busy_us, prepared_us)
        return np.stack([total_us, np.minimum(own_us, busy_us) * busy, total_us * (streams & ~busy)])

    def _drafts_us(self, tokens: np.ndarray, decoding: float, sequences: np.ndarray) -> np.ndarray:
        """Return the time of the draft model: on all tokens once, then on one of each sequence."""
        draft, passes = self.draft, self.limits.drafts - 1
        first = draft.layers_us(tokens) + draft.decode_us(np.array([decoding]), self.lengths.context)
        again = draft.layers_us(sequences) + draft.decode_us(sequences, self.lengths.context)
        return first + passes * again + self.limits.drafts * draft.logits_us(sequences)


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
    shares = _poisson(numbers, mean)
    return grouped(numbers, shares / shares.sum())


def _poisson(numbers: np.ndarray, mean: float) -> np.ndarray:
    """Return the probabilities of numbers in a row of independent events, up to one factor."""
    return np.exp((numbers - numbers[0]) * math.log(mean) - mean - np.cumsum(np.log(np.maximum(numbers, 1))))


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
    # one arrives in each step at least
    first = min(first, mean)
    again = min(again, 1.0 - first / mean)
    of_step = mean * (1.0 - again) / first
    rate = _mean_before_none_left_out(of_step)
    most = math.ceil(4.0 + 8.0 * mean / first)
    numbers = np.arange(1, most + 1)
    one = _poisson(numbers, rate)
    one /= one.sum()
    # p (1 - a) (1 + a p + (a p)^2 + ...), products of convolutions; so long that what wraps around is far below p
    transformed = np.fft.rfft(np.append(0.0, one), 2 * most + 2)
    shares = np.fft.irfft((1.0 - again) * transformed / (1.0 - again * transformed))[1 : most + 1]
    # what is cut off is given to all
    shares *= first / shares.sum()
    return grouped(numbers, shares)


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
    size, longer = divmod(numbers.size, count)
    starts = np.arange(count) * size + np.minimum(np.arange(count), longer)
    sums, totals = np.add.reduceat(np.stack([shares, shares * numbers]), starts, axis=1)
    # a number that stands alone stays whole, and so do the tokens of its steps
    means = numbers.astype(float) if count == numbers.size else totals / np.maximum(sums, 1e-300)
    return [(share, mean) for share, mean in zip(sums.tolist(), means.tolist(), strict=True) if share > 1e-12]


def _between(xs: np.ndarray, ys: np.ndarray, grid: np.ndarray, x: np.ndarray, y: np.ndarray | float) -> np.ndarray:
    """Return bilinear values of a grid; beyond its last knots lines go on, over ``x`` from half of the last one."""
    if not grid.size or not x.any():
        return np.zeros(x.size)
    j = np.clip(np.searchsorted(ys, y, side="right") - 1, 0, max(ys.size - 2, 0))
    upper = np.minimum(j + 1, ys.size - 1)
    above = (y - ys[j]) / np.where(upper > j, ys[upper] - ys[j], math.inf)
    low = np.clip(np.searchsorted(xs, x, side="right") - 1, 0, max(xs.size - 2, 0))
    low = np.where(x > xs[-1], np.searchsorted(xs, xs[-1] / 2.0, side="right") - 1, low)
    high = np.where(x > xs[-1], xs.size - 1, np.minimum(low + 1, xs.size - 1))
    right = (x - xs[low]) / np.where(xs[high] > xs[low], xs[high] - xs[low], math.inf)
    first, last = ((1.0 - right) * grid[low, each] + right * grid[high, each] for each in (j, upper))
    inside = (1.0 - above) * first + above * last
    # less than one request, in the mean
    few = x / max(xs[0], 1e-300) * ((1.0 - above) * grid[0, j] + above * grid[0, upper])
    return np.where(x <= 0.0, 0.0, np.where(x < xs[0], few, inside))
