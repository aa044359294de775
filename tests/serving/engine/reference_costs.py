"""What a step costs, in plain Python: the knots that it pays for, with their weights; its GPU time is their sum.

A step pays the token table (one for each level of adapters) at its padded tokens, the table of sampled sequences, the
decode surface at (batch, mean context), the window surface at (batch, mean context inside the window), and the prefill
surface at (chunk, cached) of every chunk, less its smallest knot for each chunk after the first, because all chunks
share one launch. Decodes beside a chunk of more than one token pay the mixed surface, where there is one, instead of
decode and window surfaces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.serving.engine.reference_scheduler import Run, Work

PHASES = ("prefill", "decode", "mixed")
PARTS = ("tokens", "sampled", "decode", "window", "prefill", "mixed")


def line_weights(knots: Sequence[float], value: float) -> list[tuple[int, float]]:
    """Weights of the two knots around ``value``; outside the knots the nearest line goes on.

    >>> line_weights([0.0, 10.0, 20.0], 12.5)
    [(1, 0.75), (2, 0.25)]
    """
    if len(knots) == 1:
        return [(0, 1.0)]
    below = 0
    while below < len(knots) - 2 and knots[below + 1] <= value:
        below += 1
    share = (value - knots[below]) / (knots[below + 1] - knots[below])
    return [(below, 1.0 - share), (below + 1, share)]


def priced_tokens(surface: Any, work: Work) -> int:
    """Tokens at which a step is priced: padded to its graph, which steps with prompts may not have."""
    padded = (
        surface.padded_prompt_tokens if work.chunks and surface.padded_prompt_tokens.size else surface.padded_tokens
    )
    return int(padded[work.tokens])


class Costs:
    """The cost tables of a world (the fields of the loop's Surface), read knot by knot."""

    def __init__(self, surface: Any, window_tokens: int) -> None:
        self.surface = surface
        self.window_tokens = window_tokens

    def level(self, work: Work) -> int:
        """0 without adapters; else the number, from 1, of the first level with as many, or the last level."""
        levels = self.surface.adapter_levels.tolist()
        if not work.adapters or not levels:
            return 0
        return next((n for n, most in enumerate(levels, 1) if most >= work.adapters), len(levels))

    def knots(self, work: Work) -> Counter[tuple]:
        """Weight of each (part, x index, y index) that a step pays for; dense tables have y index 0."""
        surface = self.surface
        paid: Counter[tuple] = Counter()
        paid["tokens", priced_tokens(surface, work), self.level(work)] += 1.0
        paid["sampled", work.sampled, 0] += 1.0
        if work.contexts and surface.mixed_us.size and any(new > 1 for new, _ in work.chunks):
            self._add(paid, "mixed", len(work.contexts), sum(work.contexts) / len(work.contexts))
        elif work.contexts:
            batch = len(work.contexts)
            windowed = [min(context, self.window_tokens) for context in work.contexts]
            self._add(paid, "decode", batch, sum(work.contexts) / batch)
            self._add(paid, "window", batch, sum(windowed) / batch)
        for new, cached in work.chunks:
            self._add(paid, "prefill", new, cached)
        if len(work.chunks) > 1 and surface.prefill_us.size:
            paid["prefill", 0, 0] -= len(work.chunks) - 1
        return paid

    def draft_knots(self, work: Work, limits: Any) -> Counter[tuple]:
        """The same of a model that proposes tokens: it sees those of the step, then one of each sequence in turn.

        Sequences are those that decode and those whose prompts end; each draft has its logits. A block head sees all
        drafts of these sequences and the token before them at once, within the budget of a step.
        """
        drafts, contexts = limits.drafts, [*work.contexts, *work.ended]
        if limits.draft_block:
            queries, sampled = (min(len(contexts) * n, limits.max_num_batched_tokens) for n in (1 + drafts, drafts))
            return self.knots(Work([], contexts, sampled, queries - len(contexts))) if contexts else Counter()
        paid = self.knots(Work(work.chunks, work.contexts, 0, work.proposed))
        paid["sampled", 0, 0] -= 1.0
        if contexts:
            proposed = min(len(contexts) * limits.draft_branches, limits.max_num_batched_tokens)
            later = self.knots(Work([], contexts, proposed, proposed - len(contexts)))
            for knot, weight in later.items():
                paid[knot] += weight * (min(drafts, limits.draft_depth) - 1)
            paid["sampled", len(contexts), 0] += 1
        return paid

    def _add(self, paid: Counter[tuple], part: str, x: float, y: float) -> None:
        if getattr(self.surface, f"{part}_us").size == 0:
            return
        for i, along_x in line_weights(getattr(self.surface, f"{part}_x"), x):
            for j, along_y in line_weights(getattr(self.surface, f"{part}_y"), y):
                paid[part, i, j] += along_x * along_y

    def price(self, part: str, i: int, j: int) -> float:
        """Cost of one knot, microseconds."""
        if part == "tokens":
            return float(self.surface.adapted_us[j - 1, i] if j else self.surface.token_us[i])
        if part == "sampled":
            return float(self.surface.sampled_us[i])
        return float(getattr(self.surface, f"{part}_us")[i, j])

    def gpu_time(self, work: Work) -> float:
        """GPU time of a step, microseconds."""
        return sum(weight * self.price(*knot) for knot, weight in self.knots(work).items())

    def draft_time(self, work: Work, limits: Any) -> float:
        """GPU time of the model that proposes tokens, in a step, microseconds."""
        return sum(weight * self.price(*knot) for knot, weight in self.draft_knots(work, limits).items())

    def uses(self, run: Run, proposing: Any = None) -> dict[str, Counter[tuple]]:
        """Weights of all knots that the steps of a run paid for, by phase; ``proposing``: limits, of what proposes."""
        paid: dict[str, Counter[tuple]] = {phase: Counter() for phase in PHASES}
        for step in run.steps:
            paid[step.work.phase].update(self.draft_knots(step.work, proposing) if proposing else self.knots(step.work))
        return paid
