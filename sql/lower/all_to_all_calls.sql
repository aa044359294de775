-- All-to-all of tokens to the ranks of their experts and back; bytes: sent by one GPU, one copy per distinct expert rank
-- SGLang's decode servers use DeepEP's low-latency kernels (deepep-mode), which send FP8 out and BF16 back, while their buffer holds the tokens
-- of a rank. Kernels that write to other GPUs' memory (exchange_kernel) need links between all of them, and send quantised tokens out.
with exchanges as (
  select
    layers.*,
    exchange.name,
    experts.format,
    sent_token_bytes(experts.math, experts.format, formats.activation_bits) as quantised_bytes,
    case when fabrics.kind = 'nvlink' and layers.moe_ep <= least(fabrics.max_gpus, 8) then settings.exchange_kernel end as exchange_kernel
  from sharded_layers as layers
  join deployment_settings as settings using (deployment_id)
  join layer_weights as experts on experts.deployment_id = layers.deployment_id and experts.layer_kind = layers.layer_kind
    and experts.name = 'experts'
  join number_formats as formats on formats.format = experts.format
  join gpus on gpus.gpu = layers.gpu
  left join fabrics on fabrics.fabric = gpus.link_fabric
  join (values ('moe_dispatch'), ('moe_combine')) as exchange (name) on true
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
  case when low_latency then replace(name, 'moe', 'deepep_low_latency') when exchange_kernel is not null
    then replace(name, 'moe', exchange_kernel) end
    as implementation,
  -- one-sided kernels were measured with NVFP4 tokens only, with the 16-bit sums that they read counted in NVFP4 bytes
  case when exchange_kernel is null then 'bf16' when name = 'moe_combine' then 'nvfp4' when quantised_bytes < 2 then format else 'bf16' end as format,
  count,
  moe_ep as group_size,
  0.0 as flops,
  -- expected number of distinct ranks of a token's top_k experts, under uniform routing
  expert_tokens * expert_hidden * moe_ep * (1 - pow(1 - 1.0 / moe_ep, top_k))
    * case when low_latency and name = 'moe_dispatch' then 1.0
           when exchange_kernel is null then 2.0
           when name = 'moe_combine' then nvfp4_token_bytes()
           else quantised_bytes end as bytes
from sent
