-- Transfers of hidden state and residual between pipeline stages
select
  settings.deployment_id,
  step_tokens.step_shape_id,
  'model.stage_transfer' as call,
  'stage_transfer' as name,
  settings.gpu,
  settings.engine,
  settings.pp - 1 as count,
  2::bigint as group_size,
  0.0 as flops,
  4.0 * step_tokens.tokens * models.hidden as bytes
from deployment_settings as settings
join models on models.model = settings.model
join step_tokens using (deployment_id)
where settings.pp > 1 and step_tokens.tokens > 0
