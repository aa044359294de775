-- Time to transfer a prompt's KV cache from a prefill replica to a decode replica: bytes per GPU over one port each
with sides as (
  select scenario_id, deployment_id, kv_transfer_fabric from scenarios where prefill_deployment_id is not null
  union all
  select scenario_id, prefill_deployment_id, kv_transfer_fabric from scenarios where prefill_deployment_id is not null
),
bytes as (
  -- stages and tensor-parallel ranks send in parallel: the GPU with the most bytes, on either side, determines the time;
  -- layers of a draft model are added to those of one stage
  select
    sides.scenario_id,
    coalesce(any_value(sides.kv_transfer_fabric), 'infiniband_ndr') as fabric,
    max(layout.full_token_bytes / settings.pp + coalesce(drafts.full_token_bytes, 0)) as token,
    max(layout.window_token_bytes / settings.pp + coalesce(drafts.window_token_bytes, 0)) as window_token,
    max(greatest(layout.window_tokens, coalesce(drafts.window_tokens, 0))) as window_tokens,
    max(layout.sequence_bytes / settings.pp + coalesce(drafts.sequence_bytes, 0)) as sequence
  from sides
  join kv_layout as layout using (deployment_id)
  join deployment_settings as settings using (deployment_id)
  left join kv_layout as drafts on drafts.deployment_id = settings.draft_deployment_id
  group by sides.scenario_id
)
select
  bytes.scenario_id,
  fabrics.fabric,
  bytes.token / (fabrics.bytes_per_s * fabrics.efficiency) * 1e6 as token_us,
  bytes.window_token / (fabrics.bytes_per_s * fabrics.efficiency) * 1e6 as window_token_us,
  bytes.window_tokens,
  bytes.sequence / (fabrics.bytes_per_s * fabrics.efficiency) * 1e6 as sequence_us,
  fabrics.latency_us,
  format('each KV cache is sent in one piece after its prefill, one prompt at a time, over one {} port per GPU at {:.1f} GB/s and {:.1f} us latency, without using memory in transit; '
         'the prefill replica returns the first token, and the decode replica adds no host time per request',
         fabrics.fabric, fabrics.bytes_per_s * fabrics.efficiency / 1e9, fabrics.latency_us) as assumed
from bytes join fabrics using (fabric)
order by bytes.scenario_id
