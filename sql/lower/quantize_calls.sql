-- Conversions of activations to the format of the next matrix product, where the engine launches a separate kernel (routed experts: moe_calls)
with inputs as (
  select distinct
    weights.deployment_id, weights.layer_kind, weights.count, weights.k as columns, weights.activation_bits, weights.format,
    case when weights.name in ('o_proj', 'out_proj') then 'quantize_attention'
         when weights.name in ('down_proj', 'shared_down_proj') then 'quantize_activation'
         else 'quantize_hidden' end as operation,
    case when weights.name like 'shared_%' then 'shared_' when weights.name in ('gate_up_proj', 'up_proj', 'down_proj') then 'ffn_'
      else 'attention_' end as place
  from layer_weights as weights
  where weights.family = 'gemm' and weights.quantizes_activations and weights.rows_from = 'tokens'
)
select
  inputs.deployment_id,
  step_tokens.step_shape_id,
  inputs.layer_kind || '.' || inputs.place || inputs.operation || '.' || inputs.columns as call,
  inputs.operation as name,
  settings.gpu,
  settings.engine,
  fusions.implementation,
  inputs.count,
  step_tokens.tokens as rows,
  inputs.columns,
  inputs.place = 'shared_' and step_tokens.tokens <= coalesce(layers.shared_beside_tokens, 0) as beside,
  quantize_flops(step_tokens.tokens, inputs.columns) as flops,
  quantize_bytes(step_tokens.tokens, inputs.columns, inputs.activation_bits) as bytes
from inputs
join deployment_settings as settings using (deployment_id)
left join sharded_layers as layers on layers.deployment_id = inputs.deployment_id and layers.layer_kind = inputs.layer_kind
join engine_fusions as fusions
  on fusions.engine = settings.engine and fusions.operation = inputs.operation
 and fusions.condition = case inputs.format when 'nvfp4' then 'nvfp4' else settings.activation_scales end and fusions.launched
 and is_of_versions(layers.engine_version, fusions.from_version, fusions.before_version)
join step_tokens on step_tokens.deployment_id = inputs.deployment_id
where step_tokens.tokens > 0
  and not (inputs.operation = 'quantize_hidden' and (inputs.format = 'nvfp4' or settings.activation_scales = 'static')
    and step_tokens.tokens <= coalesce(layers.fused_norm_tokens, 0))
