-- The layers of each deployment on one GPU: heads, widths and experts after tensor and expert parallelism
select
  settings.deployment_id,
  settings.gpu,
  settings.engine,
  layers.layer_kind,
  layers.count,
  layers.attention,
  layers."window",
  layers.heads // settings.tp as heads,
  case when layers.attention in ('full', 'sliding') then greatest(layers.kv_heads // settings.tp, 1)
       when layers.attention = 'linear' then layers.kv_heads // settings.tp
       else layers.kv_heads end as kv_heads,
  layers.head_dim,
  layers.ffn,
  case when layers.ffn = 'moe' then layers.intermediate // settings.moe_tp else layers.intermediate // settings.tp end as intermediate,
  layers.experts,
  layers.top_k,
  layers.shared_intermediate // settings.tp as shared_intermediate,
  settings.tp,
  settings.dp,
  settings.moe_tp,
  settings.moe_ep,
  models.hidden,
  fusions.engine is not null as norms_in_all_reduce,
  beside.most_tokens as shared_beside_tokens
from deployment_settings as settings
join model_layers as layers on layers.model = settings.model
join models on models.model = settings.model
left join engine_fusions as fusions
  on fusions.engine = settings.engine and fusions.operation = 'residual_norm' and fusions.condition = 'tensor_parallel' and not fusions.launched
 and settings.tp > 1 and settings.dp = 1 and fusions.architecture in ('*', models.architecture) and models.hidden >= coalesce(fusions.least_hidden, 0)
left join engine_fusions as beside
  on beside.engine = settings.engine and beside.operation = 'shared_experts' and beside.launched
 and beside.architecture in ('*', models.architecture) and layers.shared_intermediate > 0
