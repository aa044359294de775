-- Gated activations of dense and shared feed-forwards, and the sigmoid gate on attention outputs (routed experts: moe_calls)
with layers as (
  select sharded_layers.*, models.ffn_gated, models.attention_output_gate, models.linear_value_head_dim
  from sharded_layers
  join deployment_settings as settings using (deployment_id)
  join models on models.model = settings.model
),
gates as (
  select deployment_id, layer_kind, 'ffn_activation' as name, count, intermediate as columns, ffn_gated as gated, 0 as beside_tokens
  from layers where ffn = 'dense'
  union all
  select deployment_id, layer_kind, 'shared_activation', count, shared_intermediate, ffn_gated, coalesce(shared_beside_tokens, 0)
  from layers where ffn = 'moe' and shared_intermediate > 0
  union all
  select deployment_id, layer_kind, 'attention_gate', count, heads * value_dim, true, 0
  from layers where attention_output_gate and attention in ('full', 'sliding', 'selected')
  union all
  -- gated norm on the output of the delta net: reads output and gate, writes one
  select deployment_id, layer_kind, 'linear_gate', count, heads * linear_value_head_dim, true, 0
  from layers where attention = 'linear'
  union all
  -- kernels inside other nodes that their sweeps do not hold, such as the router's choice of experts
  select deployment_id, layer_kind, launch, count, columns, two_inputs, 0 from layer_launches where apart and node <> 'adapted'
),
-- and those of adapters
adapted as (
  select deployment_id, step_shape_id, tokens, layer_kind, launch as name, count, columns, two_inputs as gated, 0 as beside_tokens
  from layer_launches join step_tokens using (deployment_id) where apart and node = 'adapted' and adapters > 0
),
rows_of_gates as (
  select deployment_id, step_shape_id, tokens, layer_kind, name, count, columns, gated, beside_tokens
  from gates join step_tokens using (deployment_id) where tokens > 0
  union all
  select * from adapted
)
select
  deployment_id,
  step_shape_id,
  layer_kind || '.' || name as call,
  name,
  settings.gpu,
  settings.engine,
  count,
  tokens as rows,
  columns,
  tokens <= beside_tokens as beside,
  activation_flops(tokens, columns) as flops,
  activation_bytes(tokens, columns, gated) as bytes
from rows_of_gates
join deployment_settings as settings using (deployment_id)
