-- Token counts of each step shape: all, per rank for routed experts, sampled, new in prefill chunks, and cached before the chunks; and different adapters
select
  deployment_id,
  step_shape_id,
  tokens,
  coalesce(expert_tokens, tokens) as expert_tokens,
  sampled,
  prefill_requests * prefill_tokens as prefill_new,
  prefill_requests * prefill_cached as prefill_past,
  -- as many different adapters as requests drawn evenly from all of them are expected to have, unless stated
  case when max_loras = 0 then 0 when adapters is not null then least(adapters, tokens)
       else ceil(max_loras * (1 - (1 - 1 / max_loras) ** (decode_requests + prefill_requests)) - 1e-9)::bigint end as adapters
from step_shapes join (select deployment_id, max_loras from deployment_settings) using (deployment_id)
