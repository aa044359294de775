-- All-reduces over the tensor-parallel group: after the embedding, attention and feed-forward, and of the sums of squares of a norm over all heads
with sums as (
  select deployment_id, layer_kind, 'attention_all_reduce' as name, count, hidden, tp as group_size from sharded_layers where tp > 1
    and attention <> 'none'
  union all
  -- one FP32 sum for the queries of a token and one for its keys: the size of 4 elements of 2 bytes, in one all-reduce or two
  select layers.deployment_id, layers.layer_kind, 'qk_norm_all_reduce', case when parts.launched then 2 else 1 end * layers.count,
         case when parts.launched then 2 else 4 end, layers.tp
  from sharded_layers as layers
  join deployment_settings as settings using (deployment_id)
  join models on models.model = settings.model
  left join engine_fusions as parts on parts.engine = layers.engine and parts.operation = 'qk_norm_apart' and parts.architecture = models.architecture
   and is_of_versions(layers.engine_version, parts.from_version, parts.before_version)
  where layers.tp > 1 and models.qk_norm = 'full' and layers.attention in ('full', 'sliding', 'selected')
  union all
  -- after an all-to-all, routed outputs are complete; after a reduce-scatter over the data-parallel ranks, each tensor-parallel rank has a part
  select layers.deployment_id, layers.layer_kind, 'ffn_all_reduce', layers.count, layers.hidden, layers.tp
  from sharded_layers as layers
  join deployment_settings as settings using (deployment_id)
  where layers.tp > 1
    and (layers.ffn = 'dense'
         or (layers.ffn = 'moe' and (layers.dp = 1 or layers.moe_ep = 1 or layers.shared_intermediate > 0
           or settings.expert_exchange = 'all_gather')))
  union all
  select deployment_id, 'model', 'embedding_all_reduce', 1, any_value(hidden), any_value(tp) from sharded_layers where tp > 1 group by deployment_id
)
select
  sums.deployment_id,
  step_tokens.step_shape_id,
  sums.layer_kind || '.' || sums.name as call,
  sums.name,
  settings.gpu,
  settings.engine,
  sums.count,
  sums.group_size as group_size,
  (group_size - 1.0) * step_tokens.tokens * sums.hidden as flops,
  2.0 * step_tokens.tokens * sums.hidden as bytes
from sums
join deployment_settings as settings using (deployment_id)
join step_tokens using (deployment_id)
where step_tokens.tokens > 0
