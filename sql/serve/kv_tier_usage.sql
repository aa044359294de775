-- Tokens found in each KV tier of a scenario, and bytes read from, written to and evicted from it
select
  totals.scenario_id,
  settings.tier,
  min(settings.position) as position,
  sum(totals.hit_blocks * plan.block_size)::bigint as hit_tokens,
  sum(totals.read_blocks * round(settings.block_bytes)::bigint)::bigint as read_bytes,
  sum(totals.written_blocks * round(settings.block_bytes)::bigint)::bigint as written_bytes,
  sum(totals.evicted_blocks * round(settings.block_bytes)::bigint)::bigint as evicted_bytes,
  (read_bytes + written_bytes) * any_value(devices.energy_j_per_byte) as energy_j
from kv_tier_totals as totals
join kv_tier_settings as settings using (deployment_id, position)
join memory_plan as plan using (deployment_id)
join kv_tier_devices as devices using (tier)
group by totals.scenario_id, settings.tier
order by totals.scenario_id, position
