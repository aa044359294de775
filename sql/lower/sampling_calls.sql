-- Sampling of one token per sequence from FP32 logits: the largest, or one drawn by the engine's sampler
select
  settings.deployment_id,
  step_tokens.step_shape_id,
  'model.sampling' as call,
  'sampling' as name,
  settings.gpu,
  settings.engine,
  settings.sampler as implementation,
  1::bigint as count,
  step_tokens.sampled as rows,
  models.vocab as columns,
  sampling_flops(step_tokens.sampled, models.vocab) as flops,
  sampling_bytes(step_tokens.sampled, models.vocab, false) as bytes
from deployment_settings as settings
join models on models.model = settings.model
join step_tokens using (deployment_id)
where step_tokens.sampled > 0
