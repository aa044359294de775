-- Numbers of tokens in a step: all, those of routed experts by rank, sampled, new ones of prefill chunks, and cached ones before the chunks
select
  deployment_id,
  step_shape_id,
  tokens,
  coalesce(expert_tokens, tokens) as expert_tokens,
  sampled,
  prefill_requests * prefill_tokens as prefill_new,
  prefill_requests * prefill_cached as prefill_past
from step_shapes
