-- Macros of the work of one kernel call: FLOP, and minimum bytes through device memory, each operand read and each result written once.
-- Used by the lowering queries, rows of sweeps and files of calls; the bounds of imports use only the FLOP.
-- 16-bit activations have 2 bytes; a sum of products over n numbers has 2 n FLOP.

-- products: m rows against an n x k weight
create macro gemm_flops(m, n, k) as 2.0 * m * n * k;
create macro gemm_bytes(m, n, k, activation_bits, weight_bits) as
  m * k * activation_bits / 8 + n * k * weight_bits / 8 + m * n * 2.0;
create macro batched_gemm_flops(batch, m, n, k) as 2.0 * batch * m * n * k;
create macro batched_gemm_bytes(batch, m, n, k, bits) as batch * ((m * k + n * k) * bits / 8 + m * n * 2.0);

-- attention of prompts; reach: largest number of keys that a query sees, itself included, 0: all
-- number of queries that see one key more than the previous query, until their reach is full
create macro growing_queries(new_tokens, cached_tokens, reach) as
  case when reach > 0 then least(greatest(reach - cached_tokens, 0), new_tokens) else new_tokens end;
-- query-key pairs of one head and sequence
create macro visible_pairs(new_tokens, cached_tokens, reach) as
  growing_queries(new_tokens, cached_tokens, reach) * cached_tokens
  + growing_queries(new_tokens, cached_tokens, reach) * (growing_queries(new_tokens, cached_tokens, reach) + 1) / 2
  + (new_tokens - growing_queries(new_tokens, cached_tokens, reach)) * reach;
create macro cached_keys(cached_tokens, reach) as
  case when reach > 0 then least(cached_tokens, reach - 1) else cached_tokens end;
create macro attention_flops(heads, head_dim, pairs) as 4.0 * heads * head_dim * pairs;
-- bytes of queries and outputs, new keys and values, and cached keys and values
create macro prefill_attention_bytes(batch, new_tokens, cached_tokens, reach, heads, kv_heads, head_dim, kv_bytes) as
  batch * (4.0 * new_tokens * heads * head_dim + 4.0 * new_tokens * kv_heads * head_dim
           + 2.0 * cached_keys(cached_tokens, reach) * kv_heads * head_dim * kv_bytes);
create macro mla_prefill_flops(heads, qk_head_dim, v_head_dim, pairs) as 2.0 * heads * (qk_head_dim + v_head_dim) * pairs;
create macro mla_prefill_bytes(batch, new_tokens, cached_tokens, heads, qk_head_dim, v_head_dim) as
  2.0 * batch * heads * (qk_head_dim + v_head_dim) * (2 * new_tokens + cached_tokens);

-- attention of single tokens over their context and themselves
-- whether the kernel treats decodes as prompts: it does so (kernel_implementations.joins_prompts) in a step whose longest query has several tokens
create macro joins_prompts(value, part, prefill_tokens, query_tokens) as
  coalesce(value, 0) > 0 and (part = 'mixed_decode' or prefill_tokens > 1 or query_tokens > 1);
create macro keys_seen(context, reach) as case when reach > 0 then least(context + 1, reach) else context + 1 end;
create macro decode_attention_bytes(batch, context, reach, heads, kv_heads, head_dim, kv_bytes) as
  batch * (4.0 * heads * head_dim + 2.0 * keys_seen(context, reach) * kv_heads * head_dim * kv_bytes);
-- attention in the latent space of MLA: one vector per key, read by all heads; queries are 16-bit, outputs have no rotated part
create macro latent_flops(pairs, heads, kv_lora_rank, rope_dim) as 2.0 * pairs * heads * (2 * kv_lora_rank + rope_dim);
create macro latent_bytes(keys, queries, heads, kv_lora_rank, rope_dim, kv_bytes) as
  keys * (kv_lora_rank + rope_dim) * kv_bytes + 2.0 * queries * heads * (2 * kv_lora_rank + rope_dim);

-- sparse attention: scores in FP8, with one 4-byte scale per key; then the selection, which writes 4-byte positions
create macro index_flops(pairs, heads, width) as 2.0 * pairs * heads * width;
create macro index_bytes(keys, queries, heads, width) as keys * (width + 4.0) + queries * heads * width * 1.0;
create macro selected_bytes(selected) as 4.0 * selected;

-- gated delta net: a convolution over taps; per token and value head a read by the key, a rank-one update, a read by the query
create macro convolution_flops(rows, channels, taps) as 2.0 * rows * channels * taps;
create macro convolution_bytes(rows, channels, sequences, taps) as
  2.0 * channels * (2 * rows + 2 * sequences * (taps - 1) + taps);
create macro delta_rule_flops(rows, heads, key_dim, value_dim) as 6.0 * rows * heads * key_dim * value_dim;
create macro delta_rule_bytes(rows, sequences, heads, kv_heads, key_dim, value_dim) as
  2.0 * rows * (2 * kv_heads * key_dim + 2 * heads * value_dim + 2 * heads) + 8.0 * sequences * heads * key_dim * value_dim;

-- routed experts of one of moe_ep ranks; expert_rows: rows of all matrices of an expert, each with hidden columns
-- Experts of a rank with at least one token. The collector of a sweep draws experts uniformly, top_k of all of them for each token.
create macro evenly_reached_experts(tokens, local_experts, top_k, moe_ep) as
  local_experts * (1 - pow(1 - least(top_k / (local_experts * moe_ep), 1), tokens));
-- Served tokens prefer some experts, so they are counted differently: the first token reaches top_k of them; popularity, the variance
-- over the squared mean of how often experts are chosen, follows a gamma distribution. Its value for served models is an estimate,
-- the same as for the load of expert-parallel ranks (POPULARITY_VARIANCE of kernels/moe.py): routers are trained for balance.
create macro popularity_variance() as 0.3;
create macro unevenly_reached_experts(tokens, experts, top_k, moe_ep, popularity) as
  experts / moe_ep * (1 - (1 - top_k::double / experts)
    * pow(1 - popularity * ln(1 - least(top_k::double / experts, 0.999999)) * (tokens - 1), -1 / popularity));
-- rows of a block in DeepGEMM's grouped products (get_mk_alignment_for_contiguous_layout), and a number of rows rounded up to whole blocks
create macro expert_block_rows() as 128;
create macro whole_blocks(rows) as (((rows + expert_block_rows() - 1) // expert_block_rows()) * expert_block_rows())::bigint;
-- tokens per rank that fit in DeepEP's low-latency buffers (SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK in published recipes of decode servers)
create macro most_low_latency_tokens() as 1024;
-- bytes per element that TensorRT-LLM sends to other ranks: quantised tokens, except with block scales; for NVFP4 including its scales
create macro sent_token_bytes(math, format, activation_bits) as
  case when math in ('fp4', 'fp8', 'int8') and format <> 'fp8_block' then activation_bits / 8 else 2.0 end;
create macro nvfp4_token_bytes() as 4.5 / 8;
create macro moe_flops(tokens, top_k, moe_ep, expert_rows, hidden) as 2.0 * tokens * top_k / moe_ep * expert_rows * hidden;
-- token bytes into and out of a rank: each token once, however many of its experts the rank holds
create macro moe_token_bytes(tokens, top_k, moe_ep, hidden) as 4.0 * tokens * least(1.0, top_k / moe_ep) * hidden;
create macro moe_bytes(active_experts, expert_rows, hidden, weight_bits, tokens, top_k, moe_ep) as
  active_experts * expert_rows * hidden * weight_bits / 8 + moe_token_bytes(tokens, top_k, moe_ep, hidden);

-- kernels that stream rows x columns 16-bit elements
-- square, mean, scale and multiply; with_residual: the residual is also read and written
create macro norm_flops(rows, columns) as 4.0 * rows * columns;
create macro norm_bytes(rows, columns, with_residual) as rows * columns * case when with_residual then 8.0 else 4.0 end;
create macro activation_flops(rows, columns) as 4.0 * rows * columns;
create macro activation_bytes(rows, columns, gated) as rows * columns * case when gated then 6.0 else 4.0 end;
create macro rope_flops(rows, columns) as 3.0 * rows * columns;
create macro rope_bytes(rows, columns) as 4.0 * rows * columns;
create macro kv_write_bytes(rows, columns, kv_bytes) as rows * columns * (2 + kv_bytes);
-- residual streams of hyper-connections: a block reads a mixture of all, by 2 streams + streams^2 products of each token, and writes its output into all
create macro hyper_connection_flops(rows, columns, streams, writes) as
  2.0 * rows * columns * streams * case when writes then streams + 1 else 2 * streams + streams * streams end;
create macro hyper_connection_bytes(rows, columns, streams, writes) as
  2.0 * rows * columns * case when writes then 2 * streams + 1 else streams + 1 end;
create macro quantize_flops(rows, columns) as 2.0 * rows * columns;
create macro quantize_bytes(rows, columns, activation_bits) as rows * columns * (2 + activation_bits / 8);
create macro embedding_bytes(rows, columns) as 4.0 * rows * columns;
-- FP32 logits, read once for the softmax and once for the choice; a greedy choice needs no softmax
create macro sampling_flops(rows, columns) as 3.0 * rows * columns;
create macro sampling_bytes(rows, columns, greedy) as case when greedy then 4.0 else 8.0 end * rows * columns;
