"""The step budget that gaps between tokens show: pieces of prompts that are never longer than many are."""

from __future__ import annotations

import numpy as np
import pytest

from kernelsight.comparison.observed_limits import budget_seen

STATED, DECODE_MS, TOKEN_MS = 8192, 8.0, 0.03
LINE = (10.0, TOKEN_MS)
N, RUNNING = 600, 12


def gaps_of(prompts: np.ndarray, budget: int) -> np.ndarray:
    """Return the gaps of an engine that computes prompts in pieces of a budget, beside decodes, with 2 % of noise."""
    pieces = [min(budget, prompt - begin) for prompt in prompts.tolist() for begin in range(0, prompt, budget)]
    steps = np.concatenate([np.maximum(np.array(pieces) * TOKEN_MS, DECODE_MS), np.full(20 * prompts.size, DECODE_MS)])
    return np.repeat(steps, RUNNING) * np.exp(0.02 * np.random.default_rng(3).standard_normal(steps.size * RUNNING))


def lengths(spread: float = 0.6) -> np.ndarray:
    return np.clip(np.random.default_rng(4).lognormal(7.0, spread, N), 64, 8000).astype(int)


@pytest.mark.parametrize("budget", [512, 1024])
def test_pieces_of_a_smaller_budget_are_seen(budget: int) -> None:
    prompts = lengths()
    assert budget_seen(gaps_of(prompts, budget), prompts, STATED, LINE) == budget


def test_whole_prompts_are_no_pieces() -> None:
    prompts = lengths()
    assert budget_seen(gaps_of(prompts, STATED), prompts, STATED, LINE) is None
    one_length = np.full(N, 1000)
    assert budget_seen(gaps_of(one_length, STATED), one_length, STATED, LINE) is None
    # long prompts that are rare among steps of two lengths
    rare = np.where(np.arange(N) % 10 == 0, 4000, 64)
    gaps = np.repeat([8.0, 10.5, 130.0], [120_000, 100_000, 60 * RUNNING])
    assert budget_seen(gaps, rare, STATED, LINE) is None
    assert budget_seen(gaps[gaps < 100.0], rare, STATED, LINE) is not None


def test_a_budget_that_is_stated_is_no_other_one() -> None:
    prompts = lengths()
    assert budget_seen(gaps_of(prompts, 1024), prompts, 1024, LINE) is None
    assert budget_seen(gaps_of(prompts, 512)[:100], prompts, STATED, LINE) is None
