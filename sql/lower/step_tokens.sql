-- Numbers of tokens in a step: all, sampled, new ones of prefill chunks, and cached ones before the chunks
select
  deployment_id,
  step_shape_id,
  tokens,
  sampled,
  prefill_requests * prefill_tokens as prefill_new,
  prefill_requests * prefill_cached as prefill_past
from step_shapes
