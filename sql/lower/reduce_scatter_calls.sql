-- Reduce-scatters of expert outputs to the data-parallel ranks; bytes: the tensor before scattering
select
  layers.deployment_id,
  step_tokens.step_shape_id,
  layers.layer_kind || '.moe_combine' as call,
  'moe_combine' as name,
  layers.gpu,
  layers.engine,
  layers.count,
  layers.dp as group_size,
  (layers.dp - 1.0) * step_tokens.expert_tokens * layers.expert_hidden as flops,
  2.0 * step_tokens.expert_tokens * layers.dp * layers.expert_hidden as bytes
from sharded_layers as layers
join deployment_settings as settings using (deployment_id)
join step_tokens using (deployment_id)
where layers.ffn = 'moe' and layers.dp > 1 and step_tokens.expert_tokens > 0 and (settings.expert_exchange = 'all_gather' or layers.moe_ep = 1)
