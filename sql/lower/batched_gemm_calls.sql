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
-- the adapters of a step, or one for each token that reads its adapter's weights itself
adapters as (
  select deployment_id, step_shape_id, tokens, gpu, engine, dtype,
    case when adapter_gathers and tokens <= max_num_seqs then tokens else step_tokens.adapters end as adapters
  from step_tokens join deployment_settings using (deployment_id) where step_tokens.adapters > 0
),
products as (
  select deployment_id, step_shape_id, phase, layer_kind, 'q_absorb' as name, gpu, engine, count, heads, m, kv_lora_rank as n,
    qk_nope_head_dim as k, dtype, null::varchar as implementation
  from latent join rows_of_step using (deployment_id) where phase = 'decode' or attention = 'sparse'
  union all
  select deployment_id, step_shape_id, phase, layer_kind, 'v_absorb', gpu, engine, count, heads, m, v_head_dim, kv_lora_rank, dtype, null
  from latent join rows_of_step using (deployment_id) where phase = 'decode' or attention = 'sparse'
  union all
  -- engines that run each joined layer by itself launch as many narrower products
  select deployment_id, step_shape_id, 'tokens', layer_kind, weights.name, gpu, engine, count * slices, adapters, ceil(tokens / adapters)::bigint,
    ceil(n / slices)::bigint, k, dtype, 'adapter_products'
  from (
    select layer_weights.*, case when adapter_slices_apart then joined else 1 end as slices
    from layer_weights
    join deployment_settings using (deployment_id)
    join adapted_layers on layer_weights.name in (adapted_layers.name || '_lora_a', adapted_layers.name || '_lora_b')
    where max_loras > 0
  ) as weights
  join adapters using (deployment_id)
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
  batched_gemm_bytes(heads, m, n, k, 16) as bytes,
  implementation
from products
