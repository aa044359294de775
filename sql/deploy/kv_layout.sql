-- KV cache layout of each deployment on one GPU: bytes per token of layers without and with a window, and fixed state per sequence
with per_layer as (
  select
    layers.deployment_id,
    layers.attention,
    layers.count,
    case layers.attention when 'sliding' then layers."window" else 0 end as attention_window,
    -- an entry of the cache: keys and values, or one latent vector; and one FP8 key of the indexer with its FP32 scale; once for layers that share it
    (1 - layers.shared_cache) * (case when layers.attention in ('full', 'sliding', 'selected')
          then layers.kv_heads * (layers.head_dim + layers.value_dim) * formats.weight_bits / 8
          when layers.attention in ('mla', 'sparse') then (models.kv_lora_rank + models.qk_rope_head_dim) * formats.weight_bits / 8
          when layers.attention = 'compressed' and layers.compression > 0 then layers.head_dim * formats.weight_bits / 8
          else 0 end
     + case when layers.attention in ('sparse', 'selected', 'compressed') and layers.index_heads > 0 then models.index_head_dim + 4 else 0 end)
      / greatest(layers.compression, 1) as token_bytes,
    -- gated delta net: one FP32 matrix per value head, and the last taps of the short convolution
    case when layers.attention = 'linear'
         then layers.heads * models.linear_key_head_dim * models.linear_value_head_dim * 4
              + (models.linear_conv_kernel - 1) * (2 * layers.kv_heads * models.linear_key_head_dim + layers.heads * models.linear_value_head_dim) * 2
         -- the last tokens as they are
         when layers.attention = 'compressed' then layers."window" * layers.head_dim * formats.weight_bits / 8
         else 0 end as sequence_bytes
  from sharded_layers as layers
  join deployment_settings as settings using (deployment_id)
  join models on models.model = settings.model
  join number_formats as formats on formats.format = settings.kv_cache_dtype
)
select
  deployment_id,
  coalesce(sum(count) filter (where token_bytes > 0 and attention_window = 0), 0)::bigint as full_layers,
  coalesce(sum(count) filter (where token_bytes > 0 and attention_window > 0), 0)::bigint as window_layers,
  max(attention_window)::bigint as window_tokens,
  coalesce(sum(count * token_bytes) filter (where attention_window = 0), 0)::double as full_token_bytes,
  coalesce(sum(count * token_bytes) filter (where attention_window > 0), 0)::double as window_token_bytes,
  coalesce(sum(count * sequence_bytes), 0)::double as sequence_bytes
from per_layer
group by deployment_id
