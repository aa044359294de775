-- Sparse attention: an indexer scores every cached token in FP8, then MLA in the latent space attends to the top index_top_k
with layers as (
  select sharded_layers.*, models.index_head_dim, models.index_top_k, models.kv_lora_rank, models.qk_rope_head_dim,
         settings.dtype, formats.weight_bits / 8 as kv_bytes, indexing.math as index_math
  from sharded_layers
  join deployment_settings as settings using (deployment_id)
  join models on models.model = settings.model
  join number_formats as formats on formats.format = settings.kv_cache_dtype
  join gpu_formats as indexing on indexing.gpu = settings.gpu and indexing.format = 'fp8'
  where sharded_layers.attention = 'sparse'
),
decodes as (
  select step_shapes.*, query_tokens from step_shapes join (select deployment_id, query_tokens from deployment_settings) using (deployment_id)
),
chunks as (
  -- a decode is a chunk of one token plus its draft tokens
  select deployment_id, step_shape_id, 'indexer' as name, 'decode' as phase, decode_requests as requests, query_tokens as new_tokens,
    decode_context as cached
  from decodes where decode_requests > 0 and decode_context is not null
  union all
  select deployment_id, step_shape_id, 'sparse_mla', 'decode', decode_requests, query_tokens, decode_window_context
  from decodes where decode_requests > 0 and decode_window_context is not null
  union all
  select deployment_id, step_shape_id, stage.name, 'prefill', prefill_requests, prefill_tokens, prefill_cached
  from step_shapes cross join (values ('indexer'), ('sparse_mla')) as stage (name) where prefill_requests > 0
),
work as (
  -- the indexer reads all tokens; above index_top_k tokens, every query attends to the selection
  select
    layers.*, step_shape_id, name, phase, requests * new_tokens as queries,
    requests * visible_pairs(new_tokens, cached, case name when 'indexer' then 0 else index_top_k end) as visible_pairs,
    requests * case when name = 'indexer' then cached + new_tokens else least(cached + new_tokens, new_tokens * index_top_k) end as keys_read
  from layers join chunks using (deployment_id)
  where name <> 'indexer' or index_heads > 0
)
select
  deployment_id,
  step_shape_id,
  layer_kind || '.' || name || '.' || phase as call,
  name,
  gpu,
  engine,
  count,
  queries,
  visible_pairs,
  case name when 'indexer' then index_heads else heads end as heads,
  case name when 'indexer' then index_head_dim else 2 * kv_lora_rank + qk_rope_head_dim end as width,
  case name when 'indexer' then index_math else dtype end as math,
  case name
    when 'indexer' then index_flops(visible_pairs, index_heads, index_head_dim)
    else latent_flops(visible_pairs, heads, kv_lora_rank, qk_rope_head_dim) end as flops,
  case name
    when 'indexer' then index_bytes(keys_read, queries, index_heads, index_head_dim) + selected_bytes(queries * index_top_k)
    else latent_bytes(keys_read, queries, heads, kv_lora_rank, qk_rope_head_dim, kv_bytes) end as bytes
from work
