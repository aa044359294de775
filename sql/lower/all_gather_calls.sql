-- All-gathers of logits over the tensor-parallel group, and of the tokens of all data-parallel ranks before MoE layers; bytes: the gathered tensor
with gathers as (
  select settings.deployment_id, step_shape_id, 'model.logits_all_gather' as call, 'logits_all_gather' as name, 1 as count, settings.tp as group_size,
         2.0 * sampled * models.vocab as bytes
  from deployment_settings as settings
  join models on models.model = settings.model
  join step_tokens using (deployment_id)
  where settings.tp > 1 and sampled > 0
  union all
  select
    layers.deployment_id, step_shape_id, layers.layer_kind || '.moe_dispatch', 'moe_dispatch', layers.count, layers.dp,
    -- TensorRT-LLM gathers quantised tokens (run_post_quant_allgather), except with block scales; others gather 16-bit tokens
    case when settings.engine = 'trtllm' then sent_token_bytes(experts.math, experts.format, formats.activation_bits) else 2.0 end
      * expert_tokens * layers.dp * layers.expert_hidden
  from sharded_layers as layers
  join deployment_settings as settings using (deployment_id)
  join layer_weights as experts on experts.deployment_id = layers.deployment_id and experts.layer_kind = layers.layer_kind
    and experts.name = 'experts'
  join number_formats as formats on formats.format = experts.format
  join step_tokens on step_tokens.deployment_id = layers.deployment_id
  where layers.ffn = 'moe' and layers.dp > 1 and expert_tokens > 0 and (settings.expert_exchange = 'all_gather' or layers.moe_ep = 1)
)
select gathers.deployment_id, step_shape_id, call, name, settings.gpu, settings.engine, count::bigint as count, group_size, 0.0 as flops, bytes
from gathers
join deployment_settings as settings using (deployment_id)
