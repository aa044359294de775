-- Token counts of each step shape: all, per rank for routed experts, sampled, new in prefill chunks, and cached before the chunks
select
  deployment_id,
  step_shape_id,
  tokens,
  coalesce(expert_tokens, tokens) as expert_tokens,
  sampled,
  prefill_requests * prefill_tokens as prefill_new,
  prefill_requests * prefill_cached as prefill_past
from step_shapes
