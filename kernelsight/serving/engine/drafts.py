"""Speculative decoding: draft tokens are verified in one step and accepted up to the first rejection.

A draft token is accepted with a probability of its position if the ones before it were; with a constant one, a, a step
yields (1 - a^(k + 1)) / (1 - a) tokens per sequence on average (Leviathan et al., arXiv 2211.17192). Acceptance is a
hash of the request's number and the token's position, so that it does not depend on anything else in the simulation.

As in vLLM's ``EagleProposer``, the draft model first runs on all tokens of the step, then on one token per sequence for
each further draft, and computes logits for each draft; in a tree, as SGLang has them, on several. A block head (DFlash)
runs once, on all drafts of all sequences and the token before them. Drafts from n-grams of the prompt cost nothing.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled, inlined
from kernelsight.serving.engine.costs import spend
from kernelsight.serving.engine.state import Core, StepCosts
from kernelsight.serving.engine.steps import cost_decodes, cost_layers

# SplitMix64 (Steele, Lea, Flood 2014): the increment of the counter, and the multipliers that mix its bits
STEP, FIRST_MIX, SECOND_MIX = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)
REQUEST_STEP = np.uint64(0xD1342543DE82EF95)
S30, S27, S31, S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


@inlined
def chance(number: int, token: int) -> float:
    """Return a uniform number in [0, 1): the hash of a request's number and a token position."""
    bits = np.uint64(number) * REQUEST_STEP + np.uint64(token) * STEP
    bits = (bits ^ (bits >> S30)) * FIRST_MIX
    bits = (bits ^ (bits >> S27)) * SECOND_MIX
    return np.float64((bits ^ (bits >> S31)) >> S11) * 2.0**-53


@inlined
def accepted_drafts(number: int, known: int, drafts: int, acceptance: np.ndarray) -> int:
    """Return the number of accepted drafts of a request that has ``known`` tokens."""
    accepted = 0
    while accepted < drafts and chance(number, known + accepted) < acceptance[accepted]:
        accepted += 1
    return accepted


@compiled
def cost_drafts(
    core: Core,
    costs: StepCosts,
    phase: int,
    tokens: int,
    decodes: int,
    context: float,
    windowed: float,
    sequences: int,
    all_context: float,
    all_windowed: float,
) -> float:
    """Return the GPU time of the draft model (with these ``costs``) in a scheduled step; count the costs it uses.

    ``tokens``: of the step; ``decodes``: requests that decode in it, with their mean contexts; ``sequences``: these and
    the prompts that finish in it, which all get drafts, with their mean contexts.
    """
    engine, limits, values, layout = core.engine, core.limits, costs.values, costs.layout
    drafts = limits.drafts
    if limits.draft_block:
        if sequences == 0:
            return 0.0
        queries = min(sequences * (1 + drafts), limits.max_num_batched_tokens)
        sampled = min(sequences * drafts, limits.max_num_batched_tokens)
        spend(engine, costs, phase, layout.tokens_at + queries, 1.0)
        spend(engine, costs, phase, layout.sampled_at + sampled, 1.0)
        gpu_us = values[layout.tokens_at + queries] + values[layout.sampled_at + sampled]
        return gpu_us + cost_decodes(engine, costs, phase, sequences, all_context, all_windowed, 1)
    gpu_us, _, _ = cost_layers(engine, core.requests, costs, phase, tokens, decodes, context, windowed)
    if sequences == 0:
        return gpu_us
    passes = min(limits.draft_depth, drafts) - 1
    proposed = min(sequences * limits.draft_branches, limits.max_num_batched_tokens)
    spend(engine, costs, phase, layout.tokens_at + proposed, float(passes))
    spend(engine, costs, phase, layout.sampled_at + proposed, float(passes))
    spend(engine, costs, phase, layout.sampled_at + sequences, 1.0)
    gpu_us += passes * (values[layout.tokens_at + proposed] + values[layout.sampled_at + proposed])
    gpu_us += values[layout.sampled_at + sequences]
    return gpu_us + cost_decodes(engine, costs, phase, sequences, all_context, all_windowed, passes)
