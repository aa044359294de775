-- Routed experts of a MoE layer on one GPU: routing, the grouped products and their activation
with layers as (
  select sharded_layers.*, settings.dtype, settings.moe_backend, weights.math, weights.weight_bits, weights.format, weights.n as expert_rows
  from sharded_layers
  join deployment_settings as settings using (deployment_id)
  join layer_weights as weights on weights.deployment_id = settings.deployment_id and weights.layer_kind = sharded_layers.layer_kind
    and weights.name = 'experts'
  where sharded_layers.ffn = 'moe'
),
work as (
  -- data-parallel ranks send their tokens to the same experts
  select layers.*, step_tokens.step_shape_id, step_tokens.expert_tokens * layers.dp as all_tokens
  from layers join step_tokens using (deployment_id)
  where step_tokens.expert_tokens > 0
),
routed as (
  select *, unevenly_reached_experts(all_tokens, experts, top_k, moe_ep, popularity_variance()) as active_experts from work
)
select
  deployment_id,
  step_shape_id,
  layer_kind || '.experts' as call,
  'experts' as name,
  gpu,
  engine,
  count,
  all_tokens as tokens,
  expert_hidden as hidden,
  intermediate,
  experts,
  experts // moe_ep as local_experts,
  top_k,
  moe_tp,
  moe_ep,
  format,
  math,
  active_experts,
  (small_expert_tiles and format in ('bf16', 'fp16') and all_tokens > experts // moe_ep)::bigint as small_tiles,
  -- space for every choice of all tokens, and for one block minus a row per expert
  case when whole_expert_blocks and format = 'fp8_block' and coalesce(moe_backend, 'deepgemm_moe') = 'deepgemm_moe'
       then whole_blocks(all_tokens * top_k + experts // moe_ep * (expert_block_rows() - 1)) else 0 end as block_rows,
  moe_flops(all_tokens, top_k, moe_ep, expert_rows, expert_hidden) as flops,
  moe_bytes(active_experts, expert_rows, expert_hidden, weight_bits, all_tokens, top_k, moe_ep) as bytes
from routed
