-- Every kernel of every step shape: the union of the family tables, with the sizes in one struct
with calls as (
  select 'gemm' as family, * from gemm_calls
  union all by name
  select 'batched_gemm' as family, * from batched_gemm_calls
  union all by name
  select 'prefill_attention' as family, * from prefill_attention_calls
  union all by name
  select 'decode_attention' as family, * from decode_attention_calls
  union all by name
  select 'mla_prefill' as family, * from mla_prefill_calls
  union all by name
  select 'mla_decode' as family, * from mla_decode_calls
  union all by name
  select 'sparse_attention' as family, * from sparse_attention_calls
  union all by name
  select 'linear_attention' as family, * from linear_attention_calls
  union all by name
  select 'moe' as family, * from moe_calls
  union all by name
  select 'norm' as family, * from norm_calls
  union all by name
  select 'activation' as family, * from activation_calls
  union all by name
  select 'rope' as family, * from rope_calls
  union all by name
  select 'kv_write' as family, * from kv_write_calls
  union all by name
  select 'quantize' as family, * from quantize_calls
  union all by name
  select 'embedding' as family, * from embedding_calls
  union all by name
  select 'sampling' as family, * from sampling_calls
  union all by name
  select 'all_reduce' as family, * from all_reduce_calls
  union all by name
  select 'all_gather' as family, * from all_gather_calls
  union all by name
  select 'reduce_scatter' as family, * from reduce_scatter_calls
  union all by name
  select 'all_to_all' as family, * from all_to_all_calls
  union all by name
  select 'p2p' as family, * from p2p_calls
)
select
  deployment_id,
  step_shape_id,
  call,
  family,
  name,
  gpu,
  engine,
  count,
  {
    m: m, n: n, k: k, batch: batch, new_tokens: new_tokens, cached_tokens: cached_tokens, context: context, heads: heads, kv_heads: kv_heads,
    head_dim: coalesce(head_dim, qk_head_dim), v_head_dim: v_head_dim, "window": "window", kv_lora_rank: kv_lora_rank, rope_dim: rope_dim,
    queries: queries, pairs: case when queries is null then null else visible_pairs end, width: width,
    tokens: tokens, hidden: hidden, intermediate: intermediate, experts: local_experts, top_k: top_k, moe_tp: moe_tp, moe_ep: moe_ep,
    rows: rows, columns: columns, sequences: sequences,
    bytes: case when group_size is null then null else bytes::bigint end, gpus: group_size
  } as shape,
  format,
  math,
  flops,
  bytes
from calls
