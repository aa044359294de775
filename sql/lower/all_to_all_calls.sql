-- Tokens sent to the ranks of their experts and back; bytes: sent by one GPU, one copy per distinct expert rank
with exchanges as (
  select layers.*, settings.expert_exchange, exchange.name, exchange.element_bytes
  from sharded_layers as layers
  join deployment_settings as settings using (deployment_id)
  join (values ('moe_dispatch', 2.0), ('moe_combine', 2.0)) as exchange (name, element_bytes) on true
  where layers.ffn = 'moe' and layers.dp > 1 and layers.moe_ep > 1 and settings.expert_exchange = 'all_to_all'
)
select
  exchanges.deployment_id,
  step_tokens.step_shape_id,
  exchanges.layer_kind || '.' || exchanges.name as call,
  exchanges.name,
  exchanges.gpu,
  exchanges.engine,
  exchanges.count,
  exchanges.moe_ep as group_size,
  0.0 as flops,
  -- expected number of distinct ranks of a token's top_k experts, under uniform routing
  step_tokens.expert_tokens * exchanges.hidden * exchanges.element_bytes * exchanges.moe_ep * (1 - pow(1 - 1.0 / exchanges.moe_ep, exchanges.top_k)) as bytes
from exchanges
join step_tokens using (deployment_id)
where step_tokens.expert_tokens > 0
