-- Weight matrices of each deployment on one GPU: rows n, columns k, copies, number format, and the rows of their products
with attention as (
  select layers.*, settings.attention_format as format, settings.dtype, models.attention_output_gate, models.q_lora_rank, models.kv_lora_rank,
         models.qk_nope_head_dim, models.qk_rope_head_dim, models.v_head_dim, models.linear_key_head_dim, models.linear_value_head_dim,
         models.index_head_dim, models.qkv_inputs, models.linear_gates
  from sharded_layers as layers
  join deployment_settings as settings using (deployment_id)
  join models on models.model = settings.model
),
feed_forward as (
  select layers.*, settings.ffn_format, settings.expert_format, settings.dtype, case when models.ffn_gated then 2 else 1 end as branches,
         case when models.ffn_gated then 'gate_up_proj' else 'up_proj' end as first_name
  from sharded_layers as layers
  join deployment_settings as settings using (deployment_id)
  join models on models.model = settings.model
),
matrices as (
  select deployment_id, layer_kind, 'qkv_proj' as name, 'gemm' as family, 'tokens' as rows_from, count, 1 as experts, format,
         heads * head_dim * case when attention_output_gate then 2 else 1 end + kv_heads * (head_dim + value_dim * coalesce(value_projections, 1)) as n,
         hidden * coalesce(qkv_inputs, 1) as k
  from attention where attention in ('full', 'sliding', 'selected')
  union all
  select deployment_id, layer_kind, 'o_proj', 'gemm', 'tokens', count, 1, format, hidden, heads * value_dim
  from attention where attention in ('full', 'sliding', 'selected')
  union all
  select deployment_id, layer_kind, 'q_proj', 'gemm', 'tokens', count, 1, format, heads * head_dim, hidden
  from attention where attention in ('mla', 'sparse') and q_lora_rank is null
  union all
  select deployment_id, layer_kind, 'qkv_a_proj', 'gemm', 'tokens', count, 1, format,
         coalesce(q_lora_rank, 0) + kv_lora_rank + qk_rope_head_dim, hidden
  from attention where attention in ('mla', 'sparse')
  union all
  select deployment_id, layer_kind, 'q_b_proj', 'gemm', 'tokens', count, 1, format, heads * head_dim, q_lora_rank
  from attention where attention in ('mla', 'sparse') and q_lora_rank is not null
  union all
  select deployment_id, layer_kind, 'kv_b_proj', 'gemm', case when attention = 'mla' then 'prefill' else 'none' end, count, 1, format,
         heads * (qk_nope_head_dim + v_head_dim), kv_lora_rank
  from attention where attention in ('mla', 'sparse')
  union all
  select deployment_id, layer_kind, 'o_proj', 'gemm', 'tokens', count, 1, format, hidden, heads * v_head_dim
  from attention where attention in ('mla', 'sparse')
  union all
  select deployment_id, layer_kind, 'indexer_q_proj', 'gemm', 'tokens', count, 1, format, index_heads * index_head_dim, coalesce(q_lora_rank, hidden)
  from attention where attention in ('sparse', 'selected') and index_heads > 0
  union all
  select deployment_id, layer_kind, 'indexer_k_proj', 'gemm', 'tokens', count, 1, format, index_head_dim + index_heads, hidden
  from attention where attention in ('sparse', 'selected') and index_heads > 0
  union all
  select deployment_id, layer_kind, 'in_proj_qkvz', 'gemm', 'tokens', count, 1, format,
         2 * kv_heads * linear_key_head_dim + 2 * heads * linear_value_head_dim, hidden
  from attention where attention = 'linear'
  union all
  -- numbers for each head, such as write strength and decay: too small to be quantised
  select deployment_id, layer_kind, 'in_proj_ba', 'gemm', 'tokens', count, 1, dtype, coalesce(linear_gates, 2) * heads, hidden
  from attention where attention = 'linear'
  union all
  select deployment_id, layer_kind, 'out_proj', 'gemm', 'tokens', count, 1, format, hidden, heads * linear_value_head_dim
  from attention where attention = 'linear'
  union all
  select deployment_id, layer_kind, first_name, 'gemm', 'tokens', count, 1, ffn_format, branches * intermediate, hidden
  from feed_forward where ffn = 'dense'
  union all
  select deployment_id, layer_kind, 'down_proj', 'gemm', 'tokens', count, 1, ffn_format, hidden, intermediate
  from feed_forward where ffn = 'dense'
  union all
  select deployment_id, layer_kind, 'router', 'gemm', 'tokens', count, 1, dtype, experts, hidden
  from feed_forward where ffn = 'moe'
  union all
  select deployment_id, layer_kind, 'experts', 'moe', 'none', count, experts // moe_ep, expert_format, (branches + 1) * intermediate, expert_hidden
  from feed_forward where ffn = 'moe'
  union all
  select deployment_id, layer_kind, 'shared_' || first_name, 'gemm', 'tokens', count, 1, ffn_format, branches * shared_intermediate, hidden
  from feed_forward where ffn = 'moe' and shared_intermediate > 0
  union all
  select deployment_id, layer_kind, 'shared_down_proj', 'gemm', 'tokens', count, 1, ffn_format, hidden, shared_intermediate
  from feed_forward where ffn = 'moe' and shared_intermediate > 0
  union all
  select attention.deployment_id, attention.layer_kind, product.name, 'gemm', 'tokens', attention.count, 1,
         case product.format when 'attention' then attention.format when 'ffn' then settings.ffn_format when 'expert' then settings.expert_format
           else attention.dtype end,
         product.n * case product.n_of when 'heads' then heads when 'kv_heads' then kv_heads when 'intermediate' then intermediate
           when 'shared_intermediate' then shared_intermediate else 1 end,
         product.k * case product.k_of when 'heads' then heads when 'kv_heads' then kv_heads when 'intermediate' then intermediate
           when 'shared_intermediate' then shared_intermediate else 1 end
  from attention
  join deployment_settings as settings using (deployment_id)
  join (select model, layer_kind, unnest(products) as product from model_layers) as further
    on further.model = settings.model and further.layer_kind = attention.layer_kind
  union all
  select settings.deployment_id, 'model', 'embedding', 'embedding', 'none', 1,
         case when models.draft_inputs is null then 1 else 0 end, settings.dtype, ceil(models.vocab / settings.tp)::bigint, models.hidden
  from deployment_settings as settings join models on models.model = settings.model
  union all
  select settings.deployment_id, 'model', 'lm_head', 'gemm',
         'sampled', 1, case when models.tied_embeddings or (models.draft_inputs is not null and models.qkv_inputs is null) then 0 else 1 end, settings.dtype,
         ceil(models.vocab / settings.tp)::bigint, models.hidden
  from deployment_settings as settings join models on models.model = settings.model
  union all
  -- not sharded; 16 bits in checkpoints
  select settings.deployment_id, 'model', 'draft_input_proj', 'gemm', 'tokens', 1, 1,
         settings.dtype, models.hidden, models.draft_inputs * models.hidden
  from deployment_settings as settings join models on models.model = settings.model where models.draft_inputs > 1
  union all
  -- what a head takes from the model is computed once for all tokens of a step: its states, projected to one
  select settings.deployment_id, 'model', 'draft_state_proj', 'gemm', 'tokens', 1, 1, settings.dtype, heads.hidden, heads.fused_states * models.hidden
  from deployment_settings as settings
  join models on models.model = settings.model
  join deployment_settings as drafts on drafts.deployment_id = settings.draft_deployment_id
  join models as heads on heads.model = drafts.model
  where heads.fused_states is not null
  union all
  -- and for drafts in one block, their keys and values
  select settings.deployment_id, 'model', 'draft_kv_proj', 'gemm', 'tokens', layers.count, 1, settings.dtype,
         layers.kv_heads * (layers.head_dim + layers.value_dim), layers.hidden
  from deployment_settings as settings
  join draft_acceptance_rates as methods on methods.method = settings.speculative_method and methods.passes = 'block'
  join sharded_layers as layers on layers.deployment_id = settings.draft_deployment_id
),
-- slots of adapters, as wide as the largest rank: A takes the layer's inputs on this GPU, whole before columns are split; B gives its
-- outputs there, whole after rows are split (vLLM without fully_sharded_loras)
slots as (
  select matrices.*, max_loras, max_lora_rank, joined, settings.dtype
  from matrices
  join deployment_settings as settings using (deployment_id)
  join adapted_layers using (name)
  where max_loras > 0
),
weights as (
  select * from matrices
  union all
  select deployment_id, layer_kind, name || '_lora_a', 'batched_gemm', rows_from, count, max_loras, dtype, joined * max_lora_rank, k from slots
  union all
  select deployment_id, layer_kind, name || '_lora_b', 'batched_gemm', rows_from, count, max_loras, dtype, n, max_lora_rank from slots
)
select
  weights.deployment_id,
  weights.layer_kind,
  weights.name,
  weights.family,
  weights.rows_from,
  weights.count,
  weights.experts::bigint as copies,
  weights.n,
  weights.k,
  weights.format,
  formats.math,
  formats.activation_bits,
  formats.weight_bits,
  formats.quantizes_activations,
  weights.count * weights.experts * weights.n * weights.k as parameters,
  weights.count * weights.experts * weights.n * weights.k * formats.weight_bits / 8 as weight_bytes
from weights
join deployment_settings as settings using (deployment_id)
join gpu_formats as formats on formats.gpu = settings.gpu and formats.format = weights.format
order by weights.deployment_id, weights.layer_kind, weights.name
