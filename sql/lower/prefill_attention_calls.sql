-- Causal softmax attention of new tokens over cached and new tokens, with grouped queries and sliding windows: of prompts, and of decodes
-- that the kernel treats as prompts
with queries as (
  select deployment_id, step_shape_id, 'prefill_attention' as call, prefill_requests as batch, prefill_tokens as new_tokens,
         prefill_cached as cached, prefill_cached as window_cached
  from step_shapes where prefill_requests > 0
  union all
  select deployment_id, step_shape_id, 'decode_attention', decode_requests, query_tokens, decode_context, decode_window_context
  from step_shapes as shapes
  join deployment_settings as settings using (deployment_id)
  join kernel_implementations as known on known.family = 'decode_attention'
    and known.implementation = settings.attention_backend and known.coefficient = 'joins_prompts'
  where decode_requests > 0 and joins_prompts(known.value, part, prefill_tokens, query_tokens)
),
chunks as (
  select
    -- keys and values of different width count as of their mean: products and bytes are the same
    layers.* replace ((layers.head_dim + layers.value_dim) // 2 as head_dim), step_shape_id, settings.dtype, settings.kv_cache_dtype,
    formats.weight_bits / 8 as kv_bytes,
    call,
    batch,
    new_tokens,
    case when layers.attention = 'full' then cached else window_cached end as cached_tokens
  from sharded_layers as layers
  join queries using (deployment_id)
  join deployment_settings as settings using (deployment_id)
  join number_formats as formats on formats.format = settings.kv_cache_dtype
  where layers.attention in ('full', 'sliding', 'selected')
)
select
  deployment_id,
  step_shape_id,
  layer_kind || '.' || call as call,
  -- of the same kernel as prompts: its own name, since decode_attention names launches of a decode kernel
  if(call = 'decode_attention', 'decode_as_prefill', call) as name,
  gpu,
  engine,
  count,
  batch,
  new_tokens,
  cached_tokens,
  heads,
  kv_heads,
  head_dim,
  "window",
  kv_cache_dtype as format,
  dtype as math,
  batch * visible_pairs(new_tokens, cached_tokens, "window") as visible_pairs,
  attention_flops(heads, head_dim, visible_pairs) as flops,
  prefill_attention_bytes(batch, new_tokens, cached_tokens, "window", heads, kv_heads, head_dim, kv_bytes) as bytes
from chunks
where cached_tokens is not null
