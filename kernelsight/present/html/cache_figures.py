"""Figure of a run's report with KV-cache tiers: prompt tokens over time, computed, cached on the GPU, or loaded."""

from __future__ import annotations

FOUND_QUERY = """
with sent as (
  select *, min(sent_ns) over () as low, greatest(max(sent_ns) over () - min(sent_ns) over (), 1) as length
  from request_events
  where sent_ns is not null and not warmup
),
windows as (
  select
    least(floor(40.0 * (sent_ns - low) / length), 39) as place,
    any_value(length) / 40e9 as width,
    sum(prompt_tokens - cached_tokens)::bigint as computed,
    sum(cached_tokens - tier_tokens)::bigint as device,
    sum(tier_tokens)::bigint as tiers,
    sum(kv_load_ns) / 1e9 as waited_s
  from sent
  group by place
)
select measure, (place + 0.5) * width as s, value, waited_s
from (
  unpivot windows on computed as 'computed', device as 'in the GPU cache', tiers as 'loaded from tiers'
  into name measure value value
)
where exists (select 1 from request_events where tier_tokens > 0)
order by measure, s
"""
FOUND = {
    "mark": {"type": "area", "interpolate": "step"},
    "encoding": {
        "x": {"field": "s", "type": "quantitative", "title": "sent (s)"},
        "y": {"field": "value", "type": "quantitative", "stack": "zero", "title": "prompt tokens"},
        "color": {"field": "measure", "type": "nominal", "title": None},
        "tooltip": [{"field": "measure"}, *({"field": name, "format": ".4g"} for name in ("s", "value", "waited_s"))],
    },
}
