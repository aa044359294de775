-- Work of one call of a kernel: FLOP, and the least bytes through device memory, every operand read and every result written once.
-- Lowering queries, rows of sweeps and files of calls all count by these macros; so do the bounds of imports, as far as FLOP.
-- 16-bit activations have 2 bytes, and a sum of products over n numbers has 2 n FLOP.

-- products: m rows against an n x k weight
create macro gemm_flops(m, n, k) as 2.0 * m * n * k;
create macro gemm_bytes(m, n, k, activation_bits, weight_bits) as
  m * k * activation_bits / 8 + n * k * weight_bits / 8 + m * n * 2.0;
create macro batched_gemm_flops(batch, m, n, k) as 2.0 * batch * m * n * k;
create macro batched_gemm_bytes(batch, m, n, k, bits) as batch * ((m * k + n * k) * bits / 8 + m * n * 2.0);

-- attention of prompts; reach: keys that a query sees at most, itself among them, 0: all
-- queries of a prompt that see one key more than the query before: until their reach is full
create macro growing_queries(new_tokens, cached_tokens, reach) as
  case when reach > 0 then least(greatest(reach - cached_tokens, 0), new_tokens) else new_tokens end;
-- pairs of a query and a key that it sees, of one head and sequence
create macro visible_pairs(new_tokens, cached_tokens, reach) as
  growing_queries(new_tokens, cached_tokens, reach) * cached_tokens
  + growing_queries(new_tokens, cached_tokens, reach) * (growing_queries(new_tokens, cached_tokens, reach) + 1) / 2
  + (new_tokens - growing_queries(new_tokens, cached_tokens, reach)) * reach;
create macro cached_keys(cached_tokens, reach) as
  case when reach > 0 then least(cached_tokens, reach - 1) else cached_tokens end;
create macro attention_flops(heads, head_dim, pairs) as 4.0 * heads * head_dim * pairs;
-- queries and outputs, new keys and values, and those of the cache
create macro prefill_attention_bytes(batch, new_tokens, cached_tokens, reach, heads, kv_heads, head_dim, kv_bytes) as
  batch * (4.0 * new_tokens * heads * head_dim + 4.0 * new_tokens * kv_heads * head_dim
           + 2.0 * cached_keys(cached_tokens, reach) * kv_heads * head_dim * kv_bytes);
create macro mla_prefill_flops(heads, qk_head_dim, v_head_dim, pairs) as 2.0 * heads * (qk_head_dim + v_head_dim) * pairs;
create macro mla_prefill_bytes(batch, new_tokens, cached_tokens, heads, qk_head_dim, v_head_dim) as
  2.0 * batch * heads * (qk_head_dim + v_head_dim) * (2 * new_tokens + cached_tokens);

-- attention of single tokens over their context and themselves
create macro keys_seen(context, reach) as case when reach > 0 then least(context + 1, reach) else context + 1 end;
create macro decode_attention_bytes(batch, context, reach, heads, kv_heads, head_dim, kv_bytes) as
  batch * (4.0 * heads * head_dim + 2.0 * keys_seen(context, reach) * kv_heads * head_dim * kv_bytes);
-- in the latent space of MLA: one vector a key, read by all heads; queries are 16-bit, outputs have no rotated part
create macro latent_flops(pairs, heads, kv_lora_rank, rope_dim) as 2.0 * pairs * heads * (2 * kv_lora_rank + rope_dim);
create macro latent_bytes(keys, queries, heads, kv_lora_rank, rope_dim, kv_bytes) as
  keys * (kv_lora_rank + rope_dim) * kv_bytes + 2.0 * queries * heads * (2 * kv_lora_rank + rope_dim);

-- sparse attention: scores in FP8, with one 4-byte scale a key; then the selection, which writes 4-byte positions
create macro index_flops(pairs, heads, width) as 2.0 * pairs * heads * width;
create macro index_bytes(keys, queries, heads, width) as keys * (width + 4.0) + queries * heads * width * 1.0;
create macro selected_bytes(selected) as 4.0 * selected;

-- gated delta net: a convolution over taps; per token and value head: read by key, rank-one update, read by query
create macro convolution_flops(rows, channels, taps) as 2.0 * rows * channels * taps;
create macro convolution_bytes(rows, channels, sequences, taps) as
  2.0 * channels * (2 * rows + 2 * sequences * (taps - 1) + taps);
create macro delta_rule_flops(rows, heads, key_dim, value_dim) as 6.0 * rows * heads * key_dim * value_dim;
create macro delta_rule_bytes(rows, sequences, heads, kv_heads, key_dim, value_dim) as
  2.0 * rows * (2 * kv_heads * key_dim + 2 * heads * value_dim + 2 * heads) + 8.0 * sequences * heads * key_dim * value_dim;

-- routed experts of one of moe_ep ranks; expert_rows: rows of all matrices of an expert, over hidden columns
-- Experts of a rank that at least one token reaches. A sweep's collector draws them alike, each token top_k of all of them.
create macro evenly_reached_experts(tokens, local_experts, top_k, moe_ep) as
  local_experts * (1 - pow(1 - least(top_k / (local_experts * moe_ep), 1), tokens));
-- Served tokens prefer some experts, on purpose another count: the first token reaches top_k of them; popularity, the variance
-- over the square of the mean of how often experts are chosen, is drawn from a gamma distribution. That of served models is an
-- estimate, the same for the load of expert-parallel ranks (POPULARITY_VARIANCE of kernels/moe.py): routers are trained to balance.
create macro popularity_variance() as 0.3;
create macro unevenly_reached_experts(tokens, experts, top_k, moe_ep, popularity) as
  experts / moe_ep * (1 - (1 - top_k::double / experts)
    * pow(1 - popularity * ln(1 - least(top_k::double / experts, 0.999999)) * (tokens - 1), -1 / popularity));
-- rows of a block of DeepGEMM's grouped products (get_mk_alignment_for_contiguous_layout), and rows filled up to whole blocks
create macro expert_block_rows() as 128;
create macro whole_blocks(rows) as (((rows + expert_block_rows() - 1) // expert_block_rows()) * expert_block_rows())::bigint;
-- tokens of a rank that DeepEP's low-latency buffers hold (SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK in published recipes of decode servers)
create macro most_low_latency_tokens() as 1024;
-- bytes an element that TensorRT-LLM sends to other ranks: quantised tokens, but for scales by block; and those of NVFP4, whose scales are sent too
create macro sent_token_bytes(math, format, activation_bits) as
  case when math in ('fp4', 'fp8', 'int8') and format <> 'fp8_block' then activation_bits / 8 else 2.0 end;
create macro nvfp4_token_bytes() as 4.5 / 8;
create macro moe_flops(tokens, top_k, moe_ep, expert_rows, hidden) as 2.0 * tokens * top_k / moe_ep * expert_rows * hidden;
-- tokens in and out of a rank: those of its experts, but each once
create macro moe_token_bytes(tokens, top_k, moe_ep, hidden) as 4.0 * tokens * least(1.0, top_k / moe_ep) * hidden;
create macro moe_bytes(active_experts, expert_rows, hidden, weight_bits, tokens, top_k, moe_ep) as
  active_experts * expert_rows * hidden * weight_bits / 8 + moe_token_bytes(tokens, top_k, moe_ep, hidden);

-- kernels that stream rows x columns elements of 16 bits
-- square, mean, scale and multiply; the residual is read and written too
create macro norm_flops(rows, columns) as 4.0 * rows * columns;
create macro norm_bytes(rows, columns, with_residual) as rows * columns * case when with_residual then 8.0 else 4.0 end;
create macro activation_flops(rows, columns) as 4.0 * rows * columns;
create macro activation_bytes(rows, columns, gated) as rows * columns * case when gated then 6.0 else 4.0 end;
create macro rope_flops(rows, columns) as 3.0 * rows * columns;
create macro rope_bytes(rows, columns) as 4.0 * rows * columns;
create macro kv_write_bytes(rows, columns, kv_bytes) as rows * columns * (2 + kv_bytes);
create macro quantize_flops(rows, columns) as 2.0 * rows * columns;
create macro quantize_bytes(rows, columns, activation_bits) as rows * columns * (2 + activation_bits / 8);
create macro embedding_bytes(rows, columns) as 4.0 * rows * columns;
-- logits in FP32, read once for the softmax and once for the choice; a greedy choice needs no softmax
create macro sampling_flops(rows, columns) as 3.0 * rows * columns;
create macro sampling_bytes(rows, columns, greedy) as case when greedy then 4.0 else 8.0 end * rows * columns;
