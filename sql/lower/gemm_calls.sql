-- Dense matrix products of a step: m rows times an n x k weight
with rows_of_step as (
  select deployment_id, step_shape_id, 'tokens' as rows_from, '' as suffix, tokens as m from step_tokens
  union all
  select deployment_id, step_shape_id, 'sampled', '', sampled from step_tokens
  union all
  -- MLA expands new and cached tokens of prefill chunks in two separate products
  select deployment_id, step_shape_id, 'prefill', '', prefill_new from step_tokens
  union all
  select deployment_id, step_shape_id, 'prefill', '_context', prefill_past from step_tokens
)
select
  weights.deployment_id,
  rows_of_step.step_shape_id,
  weights.layer_kind || '.' || weights.name || rows_of_step.suffix as call,
  weights.name || rows_of_step.suffix as name,
  settings.gpu,
  settings.engine,
  weights.count,
  rows_of_step.m,
  weights.n,
  weights.k,
  weights.format,
  weights.math,
  starts_with(weights.name, 'shared_') and rows_of_step.m <= coalesce(layers.shared_beside_tokens, 0) as beside,
  gemm_flops(m, n, k) as flops,
  gemm_bytes(m, n, k, weights.activation_bits, weights.weight_bits) as bytes
from layer_weights as weights
join rows_of_step using (deployment_id, rows_from)
join deployment_settings as settings using (deployment_id)
left join sharded_layers as layers on layers.deployment_id = weights.deployment_id and layers.layer_kind = weights.layer_kind
-- products of residual streams: hyper_connection_calls
where weights.family = 'gemm' and weights.name not like '%_stream_proj' and rows_of_step.m > 0
