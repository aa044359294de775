-- Kernel calls of every step shape: the calls of every family, with the sizes of each family in one struct
-- (family_calls: the rows of every <family>_calls, each with its family)
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
from family_calls
