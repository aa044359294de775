"""Closed loops while all of their seats are taken: which windows of a simulation those are, and their output tokens.

A campaign that measures a full loop leaves out its first prompts and its last requests. Where a run has hardly more
requests than users, most of it is the latter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

# name of a prediction beside those of scenario_summary
FULL_THROUGHPUT = "full_output_throughput"
# share of the users that run in a window that counts as full, and that get a token in a mean step once all have begun
RUNNING, DECODING = 0.9, 0.8
# windows of full loops with the output tokens of their steps, from the first on in whose mean step all decode
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
# a prompt's step gives its first token
TOKENS_QUERY = f"""
with full_windows as ({FULL_WINDOWS}),
rates as (select scenario_id, sum(tokens) / sum(lasting_s) as tokens_per_s from full_windows group by scenario_id)
select scenario_id, tokens_per_s * tokens / greatest(tokens - 1, 1) as tokens_per_s
from rates
join (select scenario_id, output_throughput / request_throughput as tokens from scenario_summary) using (scenario_id)
"""


def full_throughputs(session: Session) -> dict[str, float]:
    """Return output tokens a second of each closed loop while it is full; none for a scenario that never is."""
    return {row["scenario_id"]: row["tokens_per_s"] for row in session.query(TOKENS_QUERY).to_pylist()}
