"""The step budget that a log shows: prompts that are computed in pieces bound the time between two tokens of others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

# every usual budget, tokens a step
BUDGETS = (256, 512, 1024, 2048, 4096, 8192, 16384)
# tokens of one chunk come together: such gaps, ms, are none of steps
TOGETHER_MS = 0.05
# a gap this many times the median holds a piece of a prompt; the number of them that shows how long pieces are
WITH_PROMPT, LEAST_GAPS = 1.2, 200
# the longest gaps are as long as many are: within this factor, the 99th percentile over the 90th
FLAT = 1.12
# whole, a long prompt would take this many times as long as the longest piece, and fewer gaps than this share of the
# requests are half way there
LEAST_LONGER, MOST_WHOLE = 1.6, 0.01


def all_gaps(chunk_gaps_ms: pa.ChunkedArray) -> np.ndarray:
    """Return the gaps between the tokens of all requests, ms; none where a log has none."""
    values = chunk_gaps_ms.combine_chunks().flatten()
    return values.drop_null().to_numpy(zero_copy_only=False).astype(float)


def budget_seen(gaps_ms: np.ndarray, prompt_tokens: np.ndarray, stated: int, line: tuple[float, float]) -> int | None:
    """Return the step budget that gaps between tokens show, where it is smaller than stated; None: they show none.

    ``line``: predicted ms of a prompt's only step without tokens, and ms a token. Prompts of one length have gaps of
    one length too, but then no prompt would take longer whole.
    """
    gaps = gaps_ms[gaps_ms > TOGETHER_MS]
    base_ms, token_ms = line
    if not gaps.size or not token_ms > 0.0 or not np.isfinite(base_ms):
        return None
    usual_gap = float(np.median(gaps))
    gaps = gaps[gaps > WITH_PROMPT * usual_gap]
    if gaps.size < LEAST_GAPS:
        return None
    usual, longest = np.quantile(gaps, (0.9, 0.99))
    whole_ms = base_ms + token_ms * min(float(np.quantile(prompt_tokens, 0.95)), stated)
    long_gaps = np.count_nonzero(gaps > (longest + whole_ms) / 2.0)
    if longest > FLAT * usual or whole_ms < LEAST_LONGER * longest or long_gaps > MOST_WHOLE * prompt_tokens.size:
        return None
    # a piece hides the reading of weights in a step without prompts, and not its attention and host time: half of it
    tokens = (longest - usual_gap / 2.0) / token_ms
    budget = min(BUDGETS, key=lambda size: abs(np.log(size / tokens)))
    return budget if budget < stated else None
