-- What it takes to bring the KV of a prompt from the engine that computed it to one that decodes: bytes of a GPU over its own port
with sides as (
  select scenario_id, deployment_id, kv_transfer_fabric from scenarios where prefill_deployment_id is not null
  union all
  select scenario_id, prefill_deployment_id, kv_transfer_fabric from scenarios where prefill_deployment_id is not null
),
bytes as (
  -- stages and tensor-parallel ranks send side by side: the GPU with the most bytes, on either side, sets the pace;
  -- layers of a model that proposes tokens stand beside those of one stage
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
  format('the KV cache of a prompt goes whole, after the prompt, prompt after prompt, over one {} port a GPU at {:.1f} GB/s and {:.1f} us of latency, and holds no memory on its way; '
         'the client has the first token from the engine that computed the prompt, and the engine that decodes takes no request time of its own',
         fabrics.fabric, fabrics.bytes_per_s * fabrics.efficiency / 1e9, fabrics.latency_us) as assumed
from bytes join fabrics using (fabric)
order by bytes.scenario_id
