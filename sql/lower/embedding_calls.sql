-- Gathers of the step's token embeddings
select
  settings.deployment_id,
  step_tokens.step_shape_id,
  'model.embedding' as call,
  'embedding' as name,
  settings.gpu,
  settings.engine,
  1::bigint as count,
  step_tokens.tokens as rows,
  models.hidden as columns,
  0.0 as flops,
  embedding_bytes(step_tokens.tokens, models.hidden) as bytes
from deployment_settings as settings
join models on models.model = settings.model
join step_tokens using (deployment_id)
where step_tokens.tokens > 0
