-- Hyper-connections: before each block a mixture of all residual streams is read, after it the block's output is written into all
with sites as (
  select weights.deployment_id, weights.layer_kind, weights.name, weights.count, layers.hidden, weights.k // layers.hidden as streams
  from layer_weights as weights
  join sharded_layers as layers on layers.deployment_id = weights.deployment_id and layers.layer_kind = weights.layer_kind
  where weights.name like '%_stream_proj'
)
select
  sites.deployment_id,
  step_tokens.step_shape_id,
  sites.layer_kind || '.' || replace(sites.name, 'stream_proj', fusions.operation) as call,
  fusions.operation as name,
  settings.gpu,
  settings.engine,
  fusions.implementation,
  sites.count,
  step_tokens.tokens as rows,
  sites.hidden as columns,
  hyper_connection_flops(step_tokens.tokens, sites.hidden, streams, fusions.operation = 'stream_write') as flops,
  hyper_connection_bytes(step_tokens.tokens, sites.hidden, streams, fusions.operation = 'stream_write') as bytes
from sites
join deployment_settings as settings using (deployment_id)
join engine_fusions as fusions on fusions.engine = settings.engine and fusions.operation in ('stream_read', 'stream_write') and fusions.launched
join step_tokens using (deployment_id)
where step_tokens.tokens > 0
