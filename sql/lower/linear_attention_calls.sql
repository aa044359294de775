-- Kernels of the gated delta net: the short causal convolution, and the delta rule on one state matrix per value head (Yang et al., arXiv 2412.06464)
with layers as (
  select sharded_layers.*, models.linear_key_head_dim as key_dim, models.linear_value_head_dim as value_width,
    models.linear_conv_kernel as taps, settings.dtype
  from sharded_layers
  join deployment_settings as settings using (deployment_id)
  join models on models.model = settings.model
  where sharded_layers.attention = 'linear'
),
rows_of_step as (
  select deployment_id, step_shape_id, 'decode' as phase, decode_requests as sequences, decode_requests * query_tokens as rows
  from step_shapes join (select deployment_id, query_tokens from deployment_settings) using (deployment_id)
  where decode_requests > 0 and decode_context is not null
  union all
  select deployment_id, step_shape_id, 'prefill', prefill_requests, prefill_requests * prefill_tokens from step_shapes where prefill_requests > 0
),
work as (
  select layers.*, rows_of_step.step_shape_id, rows_of_step.phase, sequences, rows, 2 * kv_heads * key_dim + heads * value_width as channels
  from layers join rows_of_step using (deployment_id)
)
select deployment_id, step_shape_id, layer_kind || '.causal_conv.' || phase as call, 'causal_conv' as name, gpu, engine, count,
       rows, channels as columns, sequences, dtype as math,
       convolution_flops(rows, channels, taps) as flops, convolution_bytes(rows, channels, sequences, taps) as bytes
from work
union all
select deployment_id, step_shape_id, layer_kind || '.delta_rule.' || phase, 'delta_rule', gpu, engine, count,
       rows, heads * value_width, sequences, dtype,
       delta_rule_flops(rows, heads, key_dim, value_width), delta_rule_bytes(rows, sequences, heads, kv_heads, key_dim, value_width)
from work
