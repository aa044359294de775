-- Sparse attention: an indexer scores every cached token in FP8, then MLA in the latent space attends to the top index_top_k.
-- Compressed attention: queries attend to the last tokens as they are, and to entries of several tokens each: all, or those of
-- the index_top_k tokens that an indexer of entries selects
with layers as (
  select sharded_layers.*, models.index_head_dim, models.index_top_k, models.kv_lora_rank, models.qk_rope_head_dim,
         settings.dtype, formats.weight_bits / 8 as kv_bytes, indexing.math as index_math,
         -- as many entries are selected in all layers: index_top_k tokens where entries have the most
         max(sharded_layers.compression) filter (where sharded_layers.index_heads + shared_cache > 0) over (partition by sharded_layers.deployment_id) as widest
  from sharded_layers
  join deployment_settings as settings using (deployment_id)
  join models on models.model = settings.model
  join number_formats as formats on formats.format = settings.kv_cache_dtype
  join gpu_formats as indexing on indexing.gpu = settings.gpu and indexing.format = 'fp8'
  where sharded_layers.attention in ('sparse', 'selected', 'compressed')
),
decodes as (
  select step_shapes.*, query_tokens from step_shapes join (select deployment_id, query_tokens from deployment_settings) using (deployment_id)
),
chunks as (
  -- a decode is a chunk of one token plus its draft tokens
  select deployment_id, step_shape_id, 'all' as reach, 'decode' as phase, decode_requests as requests, query_tokens as new_tokens,
         decode_context as cached
  from decodes where decode_requests > 0 and decode_context is not null
  union all
  select deployment_id, step_shape_id, 'selected', 'decode', decode_requests, query_tokens, decode_window_context
  from decodes where decode_requests > 0 and decode_window_context is not null
  union all
  select deployment_id, step_shape_id, stage.reach, 'prefill', prefill_requests, prefill_tokens, prefill_cached
  from step_shapes cross join (values ('all'), ('selected')) as stage (reach) where prefill_requests > 0
),
stages as (
  -- what reads all cached tokens, and what reads a selection or a window of them
  select *, 'indexer' as name, 'all' as reach, 0 as seen, greatest(compression, 1) as tokens_of_entry from layers where index_heads > 0
  union all
  select *, 'sparse_mla', 'selected', index_top_k, 1 from layers where attention = 'sparse'
  union all
  select *, 'window_mla', 'selected', "window", 1 from layers where attention = 'compressed'
  union all
  select *, 'entries_mla', case when index_heads + shared_cache > 0 then 'selected' else 'all' end,
         case when index_heads + shared_cache > 0 then index_top_k * compression // widest else 0 end, compression
  from layers where attention = 'compressed' and compression > 0
),
work as (
  select
    stages.*, step_shape_id, phase, requests * new_tokens as queries,
    requests * floor(visible_pairs(new_tokens, cached, seen) / tokens_of_entry)::bigint as visible_pairs,
    requests * (case when seen = 0 then cached + new_tokens else least(cached + new_tokens, new_tokens * seen) end // tokens_of_entry) as keys_read
  from stages join chunks using (deployment_id, reach)
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
