-- Layers of each deployment on one GPU: heads, widths and experts after tensor and expert parallelism
with tiles as (
  -- of the rows that apply to a version, a tuned file for experts of this size on this GPU precedes the general row
  select settings.deployment_id, layers.layer_kind, known.small_tiles
  from deployment_settings as settings
  join deployments using (deployment_id)
  join model_layers as layers on layers.model = settings.model and layers.ffn = 'moe'
  join engine_expert_tiles as known
    on known.engine = settings.engine and known.gpu in ('*', settings.gpu)
   and known.experts in (0, layers.experts // settings.moe_ep) and known.intermediate in (0, layers.intermediate // settings.moe_tp)
  where holding_version(known.from_version, deployments.engine_version) is not null
  qualify row_number() over (
    partition by settings.deployment_id, layers.layer_kind
    order by known.experts > 0 desc, holding_version(known.from_version, deployments.engine_version) desc) = 1
),
blocks as (
  select settings.deployment_id, known.*
  from deployment_settings as settings
  join deployments using (deployment_id)
  join engine_expert_blocks as known on known.engine = settings.engine
  where holding_version(known.from_version, deployments.engine_version) is not null
  qualify row_number() over (
    partition by settings.deployment_id order by holding_version(known.from_version, deployments.engine_version) desc) = 1
)
select
  settings.deployment_id,
  settings.gpu,
  settings.engine,
  deployments.engine_version,
  layers.layer_kind,
  layers.count,
  layers.attention,
  layers."window",
  layers.heads // settings.tp as heads,
  case when layers.attention in ('full', 'sliding', 'selected') then greatest(layers.kv_heads // settings.tp, 1)
       when layers.attention = 'linear' then layers.kv_heads // settings.tp
       else layers.kv_heads end as kv_heads,
  layers.head_dim,
  coalesce(layers.v_head_dim, layers.head_dim) as value_dim,
  layers.value_projections,
  coalesce(layers.index_heads, models.index_heads, 0) as index_heads,
  coalesce(layers.compression, 0) as compression,
  coalesce(layers.shared_cache, 0) as shared_cache,
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
  coalesce(layers.expert_hidden, models.hidden) as expert_hidden,
  -- messages have 2 bytes per element
  case when fusions.engine is not null
       then coalesce(fusions.most_bytes * case when settings.tp > 2 then 1 else 2 end // (2 * models.hidden), 2147483647) end as fused_norm_tokens,
  beside.most_tokens as shared_beside_tokens,
  -- applies where products use warpgroup-level instructions; on earlier GPUs the sweeps already measured the small tiles
  coalesce(tiles.small_tiles and try_cast(gpus.compute_capability as double) between 9 and 11, false) as small_expert_tiles,
  coalesce(layers.ffn = 'moe' and blocks.whole_blocks and list_contains(string_split(blocks.capabilities, ' '), gpus.compute_capability)
           and settings.moe_tp <= coalesce(blocks.largest_moe_tp, settings.moe_tp), false) as whole_expert_blocks
from deployment_settings as settings
join model_layers as layers on layers.model = settings.model
join models on models.model = settings.model
join gpus on gpus.gpu = settings.gpu
join deployments on deployments.deployment_id = settings.deployment_id
left join tiles on tiles.deployment_id = settings.deployment_id and tiles.layer_kind = layers.layer_kind
left join blocks on blocks.deployment_id = settings.deployment_id
left join engine_fusions as fusions
  on fusions.engine = settings.engine and fusions.operation = 'residual_norm' and fusions.condition = 'tensor_parallel' and not fusions.launched
 and settings.tp > 1 and settings.dp = 1 and fusions.architecture in ('*', models.architecture) and models.hidden >= coalesce(fusions.least_hidden, 0)
 and is_of_versions(deployments.engine_version, fusions.from_version, fusions.before_version)
left join engine_fusions as beside
  on beside.engine = settings.engine and beside.operation = 'shared_experts' and beside.launched
 and beside.architecture in ('*', models.architecture) and layers.shared_intermediate > 0
