-- Products of adapters, one batch entry per adapter of the step, and per-head products of MLA that project queries into the latent space and values out of it (absorbed projections), one batch entry per head
with latent as (
  select layers.*, models.kv_lora_rank, models.qk_nope_head_dim, models.v_head_dim, settings.dtype
  from sharded_layers as layers
  join deployment_settings as settings using (deployment_id)
  join models on models.model = settings.model
  where layers.attention in ('mla', 'sparse')
),
rows_of_step as (
  select deployment_id, step_shape_id, 'decode' as phase, decode_requests * query_tokens as m
  from step_shapes join (select deployment_id, query_tokens from deployment_settings) using (deployment_id)
  where decode_requests > 0 and decode_context is not null
  union all
  select deployment_id, step_shape_id, 'prefill', prefill_requests * prefill_tokens from step_shapes where prefill_requests > 0
),
-- as many adapters as tokens drawn evenly from all of them are expected to be of
adapters as (
  select deployment_id, step_shape_id, tokens, ceil(max_loras * (1 - (1 - 1 / max_loras) ** tokens) - 1e-9)::bigint as adapters, gpu, engine, dtype
  from step_tokens join deployment_settings using (deployment_id) where max_loras > 0 and tokens > 0
),
products as (
  select deployment_id, step_shape_id, phase, layer_kind, 'q_absorb' as name, gpu, engine, count, heads, m, kv_lora_rank as n,
    qk_nope_head_dim as k, dtype
  from latent join rows_of_step using (deployment_id) where phase = 'decode' or attention = 'sparse'
  union all
  select deployment_id, step_shape_id, phase, layer_kind, 'v_absorb', gpu, engine, count, heads, m, v_head_dim, kv_lora_rank, dtype
  from latent join rows_of_step using (deployment_id) where phase = 'decode' or attention = 'sparse'
  union all
  select deployment_id, step_shape_id, 'tokens', layer_kind, weights.name, gpu, engine, count, adapters, ceil(tokens / adapters)::bigint, n, k, dtype
  from layer_weights as weights join adapters using (deployment_id) where weights.family = 'batched_gemm'
)
select
  deployment_id,
  step_shape_id,
  layer_kind || '.' || name || '.' || phase as call,
  name,
  gpu,
  engine,
  count,
  heads as batch,
  m,
  n,
  k,
  dtype as format,
  dtype as math,
  batched_gemm_flops(heads, m, n, k) as flops,
  batched_gemm_bytes(heads, m, n, k, 16) as bytes
from products
