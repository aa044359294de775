"""Throughput of an engine whose batch is always full: the engine's time per request, from step costs alone.

Each request holds its seat for its steps, so the batch size sets how many requests start in a step on average; their
number varies as that of independent arrivals does (``requests_per_step``). The mean time of a step, divided by the
requests that start in it, is the engine's time per request.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from kernelsight.scenario.speculation import MOST_DRAFTS
from kernelsight.serving.costs.knots import Reach
from kernelsight.serving.engine.host import host_times
from kernelsight.serving.engine.limits import Limits
from kernelsight.serving.engine.policy import FIRST_RATIO, LEAST_SHARE
from kernelsight.serving.engine.records import GUARANTEED_NO_EVICT, MAX_UTILIZATION, NEW_TOKEN_RATIO
from kernelsight.serving.engine.replica import Pool
from kernelsight.serving.runs.requests_per_step import (
    MeanStepCosts,
    any_arrives,
    cohorts_of,
    counts_of,
    prompt_steps,
    surface_within,
)

# recomputation by preemption: tokens that others compute again, for each token that an answer adds to a full KV cache.
# Each time that the cache is full the newest request, which holds its prompt, is preempted: 1 if free blocks did a
# random walk between two admissions. The simulator's own runs have 0.4 to 0.8
COMPUTED_AGAIN = 0.6
# fixed-point rounds for rate and cohorts: each reduces the error by four fifths or more
COHORT_ROUNDS = 6
STEPS, KV, FRONT_END = "steps", "KV cache", "front end"


class Lengths(NamedTuple):
    """The average request of a load, in tokens; ``context`` is averaged over decode steps."""

    prompt: float  # prompt tokens that are computed: without prefix-cache hits
    cached: float  # prompt tokens that the prefix cache holds
    decodes: float  # decode steps, of one token each
    longest: int  # decode steps of the longest answer
    context: float  # tokens in the KV cache in a decode step
    whole: float  # tokens of prompt and answer when the request ends
    burstiness: float = 1.0  # shape of the gamma distribution of gaps between arrivals; 1: a Poisson process


class Station(NamedTuple):
    """Highest throughput of a deployment, requests/s, and the station that is busy all the time at this rate."""

    rate: float
    limit: str  # STEPS, KV or FRONT_END
    kernels: float  # share of the time that scales with the time of kernels


class Time(NamedTuple):
    """Time of one step or more, and how much of it kernels or the front end determine, microseconds."""

    total_us: float
    kernels_us: float
    front_end_us: float


def lengths_of(prompts: np.ndarray, outputs: np.ndarray, cached: float) -> Lengths:
    """Return the average request of a load; ``cached``: share of prompt tokens that the prefix cache holds, 0 to 1."""
    steps = np.maximum(outputs - 1, 0).astype(float)
    prompt, decodes = float(prompts.mean()), float(steps.mean())
    context = float((steps * (prompts + (steps + 1.0) / 2.0)).sum() / max(steps.sum(), 1.0)) or prompt
    computed = max(prompt * (1.0 - cached), 1.0)
    return Lengths(computed, prompt - computed, decodes, int(steps.max()), context, prompt + decodes)


def station_of(pool: Pool, lengths: Lengths, reach: Reach) -> Station:
    """Return the highest throughput of one engine; ``reach``: largest batch and longest request of the load."""
    limits, stages = pool.limits, len(pool.layers)
    costs = MeanStepCosts(surface_within(pool.costs.surface, reach), limits.window_tokens)
    draft = None
    if pool.draft:
        draft = MeanStepCosts(surface_within(pool.draft.costs.surface, reach), pool.draft.window_tokens)
    accepted = np.cumprod(np.broadcast_to(limits.acceptance, MOST_DRAFTS)[: min(limits.drafts, limits.draft_depth)])
    tokens_a_step = 1.0 + float(accepted.sum())
    steps = lengths.decodes / tokens_a_step
    fitting = requests_in_cache(limits, lengths)
    # a pipeline has a batch in flight for each stage, and each holds its share of the requests
    batch = min(float(limits.max_num_seqs), fitting) / stages
    if fitting < limits.max_num_seqs and limits.capacity_policy == MAX_UTILIZATION and lengths.prompt and steps:
        lengths = lengths._replace(prompt=lengths.prompt + COMPUTED_AGAIN * lengths.decodes)
    engine = FullEngine(limits, pool, costs, draft, lengths, steps, batch)
    time = engine.time_of_request()
    limit = KV if fitting < limits.max_num_seqs and engine.budget_holds_batch else STEPS
    limit = FRONT_END if time.front_end_us > 0.5 * time.total_us else limit
    return Station(1e6 / time.total_us, limit, time.kernels_us / time.total_us)


def requests_in_cache(limits: Limits, lengths: Lengths) -> float:
    """Return how many requests the KV cache holds at once, on average over the time that they run."""
    held = lengths.context + limits.drafts
    if limits.capacity_policy == GUARANTEED_NO_EVICT:
        held = lengths.whole
    elif limits.capacity_policy == NEW_TOKEN_RATIO:
        ratio = min(FIRST_RATIO * limits.schedule_conservativeness, 1.0) * LEAST_SHARE
        held += ratio * max(lengths.whole - lengths.context, 0.0)
    units = units_of(limits, held)
    # free blocks are fewer than the next prompt needs: half of them on average
    free = units_of(limits, lengths.prompt + lengths.cached) / 2.0
    return max((limits.capacity_units - free) / units, 1.0) if units else math.inf


def units_of(limits: Limits, tokens: float) -> float:
    """Return the KV units of a request with this many tokens, its last block half full on average."""
    blocks = tokens / limits.block_size + 0.5
    full, windows = limits.full_units * blocks, limits.window_units * min(blocks, limits.window_blocks)
    return (max(full, windows) if limits.windows_apart else full + windows) + limits.sequence_units


class FullEngine(NamedTuple):
    """One engine with a full batch of ``batch`` requests, each of which decodes in ``steps`` steps."""

    limits: Limits
    pool: Pool
    costs: MeanStepCosts
    draft: MeanStepCosts | None
    lengths: Lengths
    steps: float
    batch: float

    @property
    def query_tokens(self) -> int:
        """Tokens of a decoding request in a step: its own, and the drafts that the step verifies."""
        return 1 + self.limits.drafts

    @property
    def budget(self) -> float:
        """Token budget of a step (vLLM: max_num_batched_tokens)."""
        return float(self.limits.max_num_batched_tokens)

    @property
    def budget_holds_batch(self) -> bool:
        """Whether the token budget lets the whole batch decode beside the prompts that start."""
        prompt, seats = self.lengths.prompt, self.batch / (self.steps + 1.0)
        return seats * (prompt + self.steps * self.query_tokens) <= self.budget

    def time_of_request(self) -> Time:
        """Return the engine's time per request at capacity: 1 / throughput."""
        if self.limits.static:
            return self._static()
        if self.limits.prefill_first and self.steps > 0.0:
            return self._prefill_first()
        return self._mixed()

    def _mixed(self) -> Time:
        """Return the time per request of mixed steps (chunked prefill): decodes and prompts up to the token budget."""
        prompt, query = self.lengths.prompt, self.query_tokens
        if not self.limits.chunked and prompt:
            return self._whole_prompts()
        starting = self.batch / (self.steps + 1.0)
        prompt_budget = self.budget - starting * self.steps * query
        for _ in range(4):  # a long prompt keeps its seat for several steps
            starting = self.batch / (self.steps + max(math.ceil(prompt / max(prompt_budget, 1.0)), 1))
            prompt_budget = self.budget - starting * self.steps * query
        if starting * prompt > prompt_budget:  # every step is full
            starting = self.budget / (prompt + self.steps * query)
            prompt_budget = self.budget - starting * self.steps * query
            return self._mean_over_steps(starting, [(1.0, prompt_budget)])
        return self._mean_over_steps(starting, prompt_steps(starting, prompt, prompt_budget))

    def _whole_prompts(self) -> Time:
        """Return the time per request without chunked prefill: a prompt starts where all of it fits beside decodes."""
        prompt, decoding = self.lengths.prompt, self.steps * self.query_tokens
        fitting = np.arange(1.0, max(self.budget // prompt, 1.0) + 1.0)
        most = np.minimum(fitting, np.maximum(self.budget - fitting * prompt, 0.0) / max(decoding, 1e-9))
        # a prompt that fits beside no other request runs alone
        most_starting = max(float(most.max()), 1.0 / (self.steps + 1.0))
        starting = min(self.batch / (self.steps + 1.0), most_starting)
        prompt_budget = max((self.budget - starting * decoding) // prompt, 1.0) * prompt
        return self._mean_over_steps(starting, prompt_steps(starting, prompt, prompt_budget))

    def _mean_over_steps(self, starting: float, steps: list[tuple[float, float]]) -> Time:
        """Return the mean step time per request that starts; ``steps``: (share of steps, prompt tokens in them)."""
        shares, tokens = np.array(steps).T
        times = self._step_times(starting * self.steps, tokens, starting)
        # the longest of several steps counts: of all ranks, or of a batch and the one before it in a pipeline
        concurrent_steps = self.pool.ranks if self.pool.ranks > 1 else min(len(self.pool.layers), 2)
        order = np.argsort(times[0], kind="stable")
        below = np.concatenate([[0.0], np.cumsum(shares[order])]) ** concurrent_steps
        return Time(*(times[:, order] @ (np.diff(below) / starting)).tolist())

    def _prefill_first(self) -> Time:
        """Return the time per request of decode steps, each after prefill steps for the prompts that wait (SGLang)."""
        starting = self.batch / self.steps
        decode = self._step_times(self.batch, np.zeros(1), starting)[:, 0]
        time = self._with_prompts(decode, starting, counts_of(starting))
        if self.lengths.longest > self.lengths.decodes:
            return time
        # answers of one length that started together end together, and a cohort takes their seats: the requests that
        # arrived in the prefill steps between two decode steps, before all seats were taken
        for _ in range(COHORT_ROUNDS):
            first, again = self._prefill_probabilities(decode[0], time, starting)
            time = self._with_prompts(decode, starting, cohorts_of(starting, first, again))
        return time

    def _with_prompts(self, decode: np.ndarray, starting: float, counts: list[tuple[float, float]]) -> Time:
        """Return the time per request where ``counts`` (share of decode steps, prompts before them) start."""
        shares, numbers = np.array(counts).T
        return Time(*((decode + self._prefill_times(numbers, starting) @ shares) / starting).tolist())

    def _prefill_probabilities(self, decode_us: float, time: Time, starting: float) -> tuple[float, float]:
        """Return the probability of a prefill step after a decode step, and after a prefill step, while seats are free.

        A step has prompts if any arrived in the step before it; with asynchronous scheduling, in the one before that:
        then the last step decides nothing, and both probabilities are their stationary mean.
        """
        after_decode = any_arrives(decode_us / time.total_us, self.lengths.burstiness)
        tokens = starting * self.lengths.prompt / max(after_decode, 1e-9)
        tokens = min(max(tokens * (1.0 - after_decode), self.lengths.prompt), self.budget)
        prompts_us = float(self._step_times(0.0, np.array([tokens]), starting)[0, 0])
        after_prompts = any_arrives(prompts_us / time.total_us, self.lengths.burstiness)
        if not self.limits.asynchronous:
            return after_decode, after_prompts
        mean = after_decode / (1.0 + after_decode - after_prompts)
        return mean, mean

    def _static(self) -> Time:
        """Return the time per request of static batches: each runs until its longest answer ends, seats left empty."""
        steps = self.lengths.longest * self.steps / max(self.lengths.decodes, 1.0)
        decoding = self.batch * self.lengths.decodes / max(self.lengths.longest, 1)
        decodes = steps * self._step_times(decoding, np.zeros(1), 1.0)[:, 0]
        return Time(*((decodes + self._prefill_times(np.array([self.batch]), 1.0)[:, 0]) / self.batch).tolist())

    def _prefill_times(self, counts: np.ndarray, starting: float) -> np.ndarray:
        """Return the rows of ``Time``, shape [3, counts], of the prefill steps of ``counts`` prompts."""
        full_steps, rest = np.divmod(counts * self.lengths.prompt, self.budget)
        times = self._step_times(0.0, np.append(rest, self.budget), starting)
        return times[:, :-1] * (rest >= 1.0) + times[:, -1:] * full_steps

    def _step_times(self, decoding: float, prompt_tokens: np.ndarray, starting: float) -> np.ndarray:
        """Return the rows of ``Time``, shape [3, steps], of steps with these decodes and prompt tokens."""
        lengths, host, stages = self.lengths, self.pool.host, self.pool.layers
        tokens = decoding * self.query_tokens + prompt_tokens
        chunk = np.minimum(lengths.prompt, np.maximum(prompt_tokens, 1.0))
        chunks = np.divide(prompt_tokens, chunk, out=np.zeros(tokens.size), where=chunk > 0.0)
        prefills_done = prompt_tokens / lengths.prompt if lengths.prompt else starting
        sampled = decoding * self.query_tokens + prefills_done + np.zeros(tokens.size)
        logits_us = self.costs.logits_us(sampled)
        past_tokens = lengths.cached + np.maximum(lengths.prompt - chunk, 0.0) / 2.0
        layers_us = self.costs.layers_us(tokens, prompt_tokens) + self.costs.decode_us(
            np.array([decoding]), lengths.context, prompt_tokens
        )
        layers_us += self.costs.prefill_us(chunk, past_tokens, chunks)
        if self.pool.ranks > 1:
            mean_tokens = decoding * self.query_tokens + min(starting * lengths.prompt, self.budget)
            shared = np.array([mean_tokens])
            captured = not np.any(prompt_tokens) and mean_tokens <= host.graph_max_tokens
            layers_us += self.costs.part_us("experts_us", self.costs.padded(shared) if captured else shared)
        hidden_us, exposed_us, launch_us = np.array(
            [
                host_times(decoding + count, step_tokens, math.ceil(count), host)
                for count, step_tokens in zip(chunks.tolist(), tokens.tolist(), strict=True)
            ]
        ).T
        drafts_us = self._drafts_us(tokens, decoding, sampled / self.query_tokens) if self.draft else 0.0
        exposed_us = exposed_us + np.maximum(host.drafts_us - drafts_us, 0.0) * (np.asarray(drafts_us) > 0.0)
        # whether the front end's streaming, and not the engine's own work, sets the hidden host time of a step
        streamed_us = host.per_output_token_us * decoding
        streams = (streamed_us > 0.0) & (streamed_us - exposed_us >= hidden_us - 1e-6)
        if len(stages) == 1:
            gpu_us = layers_us + logits_us + drafts_us
            kernels = gpu_us >= hidden_us
            total_us = exposed_us + np.maximum(gpu_us, hidden_us)
            return np.stack([total_us, gpu_us * kernels, total_us * (streams & ~kernels)])
        share, last = max(stages) / sum(stages), len(stages) - 1
        embedding_us, transfer_us = (self.costs.part_us(name, tokens) for name in ("embedding_us", "transfer_us"))
        stage_us = (layers_us - embedding_us - transfer_us) * share
        stage_us += np.maximum(embedding_us, transfer_us / last + logits_us + drafts_us)
        # each stage's scheduler looks at the decodes of all stages and at its own prompts
        active_us = host.per_active_us * (decoding * len(stages) + chunks)
        busy_us = host.gap_us * share + np.maximum(stage_us, launch_us * share) + active_us
        prepared_us = exposed_us - host.gap_us + np.maximum(hidden_us - launch_us, 0.0)
        busy = busy_us >= prepared_us
        total_us = np.maximum(busy_us, prepared_us)
        return np.stack([total_us, np.minimum(stage_us, busy_us) * busy, total_us * (streams & ~busy)])

    def _drafts_us(self, tokens: np.ndarray, decoding: float, sequences: np.ndarray) -> np.ndarray:
        """Return the GPU time of the draft model in us, as ``cost_drafts`` does."""
        draft, limits, drafts = self.draft, self.limits, self.limits.drafts
        if limits.draft_block:
            queries, sampled = (np.minimum(sequences * n, self.budget) for n in (1 + drafts, drafts))
            block_us = draft.layers_us(queries) + draft.decode_us(sequences, self.lengths.context)
            return (block_us + draft.logits_us(sampled)) * (sequences > 0)
        first = draft.layers_us(tokens) + draft.decode_us(np.array([decoding]), self.lengths.context)
        proposed = np.minimum(sequences * limits.draft_branches, self.budget)
        again = draft.layers_us(proposed) + draft.decode_us(sequences, self.lengths.context) + draft.logits_us(proposed)
        return first + draft.logits_us(sequences) + (min(limits.draft_depth, drafts) - 1) * again
