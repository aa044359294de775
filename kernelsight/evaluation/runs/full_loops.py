"""Saturated windows of simulated closed loops (all users in flight), and the output throughput in them.

Campaigns that measure a saturated loop leave out its first prompts and its last requests. If a run has hardly more
requests than users, most of it is the latter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

# name of this prediction, next to columns of scenario_summary
FULL_THROUGHPUT = "full_output_throughput"
# a window is saturated if this share of the users runs; from the first one on in whose mean step this share decodes
RUNNING, DECODING = 0.9, 0.8
# saturated windows, with the output tokens of their steps
FULL_WINDOWS = f"""
select scenario_id, "window", tokens, lasting_s
from (
  select scenario_id, "window", sum(decode_tokens) as tokens, max(end_ns - start_ns) / 1e9 as lasting_s,
         sum(running_us * 1e3 / (end_ns - start_ns)) / any_value(max_concurrency) as running,
         sum(decode_tokens / greatest(steps, 1)) / any_value(max_concurrency) as decoding
  from serving_windows
  join scenarios using (scenario_id)
  where end_ns > start_ns
  group by scenario_id, "window"
)
where running >= {RUNNING}
qualify "window" >= min(case when decoding >= {DECODING} then "window" end) over (partition by scenario_id)
"""
# decode tokens x tokens / (tokens - 1): the first token of a request comes from its prefill step
TOKENS_QUERY = f"""
with full_windows as ({FULL_WINDOWS}),
rates as (select scenario_id, sum(tokens) / sum(lasting_s) as tokens_per_s from full_windows group by scenario_id)
select scenario_id, tokens_per_s * tokens / greatest(tokens - 1, 1) as tokens_per_s
from rates
join (select scenario_id, output_throughput / request_throughput as tokens from scenario_summary) using (scenario_id)
"""


def full_throughputs(session: Session) -> dict[str, float]:
    """Return the output throughput, tokens/s, of saturated closed loops by scenario_id; others are left out."""
    return {row["scenario_id"]: row["tokens_per_s"] for row in session.query(TOKENS_QUERY).to_pylist()}
