-- Tokens sent to the ranks of their experts and back; bytes: sent by one GPU, one copy per distinct expert rank. SGLang's decode servers exchange by
-- DeepEP's low-latency kernels (deepep-mode), which send FP8 out and BF16 back, as long as their buffer holds the tokens of a rank
with exchanges as (
  select layers.*, exchange.name, exchange.element_bytes
  from sharded_layers as layers
  join deployment_settings as settings using (deployment_id)
  join (values ('moe_dispatch', 2.0), ('moe_combine', 2.0)) as exchange (name, element_bytes) on true
  where layers.ffn = 'moe' and layers.dp > 1 and layers.moe_ep > 1 and settings.expert_exchange = 'all_to_all'
),
sent as (
  select
    exchanges.*,
    step_tokens.step_shape_id,
    step_tokens.expert_tokens,
    exchanges.engine = 'sglang' and step_tokens.expert_tokens <= most_low_latency_tokens() as low_latency
  from exchanges
  join step_tokens using (deployment_id)
  where step_tokens.expert_tokens > 0
)
select
  deployment_id,
  step_shape_id,
  layer_kind || '.' || name as call,
  name,
  gpu,
  engine,
  case when low_latency then replace(name, 'moe', 'deepep_low_latency') end as implementation,
  count,
  moe_ep as group_size,
  0.0 as flops,
  -- expected number of distinct ranks of a token's top_k experts, under uniform routing
  expert_tokens * hidden * case when low_latency and name = 'moe_dispatch' then 1.0 else element_bytes end
    * moe_ep * (1 - pow(1 - 1.0 / moe_ep, top_k)) as bytes
from sent
