-- Why a deployment cannot run, one sentence per fault: indivisible sizes, unsupported number formats, too little memory
with facts as (
  select settings.*, models.heads, models.vocab, models.experts, gpus.bf16_flops_per_s, gpus.compute_capability, plan.usable_bytes, plan.weights_bytes,
         plan.activations_bytes, plan.graphs_bytes, plan.kv_bytes, plan.capacity_units, plan.memory_units, plan.full_units,
           plan.window_units, plan.windows_apart,
         settings.model || coalesce(' with its draft model ' || drafts.model, '') as served, models.layer_count, models.max_positions,
           models.linear_key_heads, models.linear_value_heads, coalesce(models.weight_block, 128) as block,
         -- the memory of a draft model is counted with its target model
         settings.deployment_id in (select draft_deployment_id from deployment_settings where draft_deployment_id is not null) as is_draft
  from deployment_settings as settings
  join models on models.model = settings.model
  join gpus on gpus.gpu = settings.gpu
  join memory_plan as plan using (deployment_id)
  left join deployment_settings as drafts on drafts.deployment_id = settings.draft_deployment_id
),
attention_heads as (
  select facts.deployment_id, layers.heads, layers.kv_heads, layers.attention, facts.tp, facts.model
  from facts join model_layers as layers on layers.model = facts.model
  where layers.attention <> 'none'
),
widths as (
  select facts.deployment_id, facts.model, layers.ffn, layers.intermediate, layers.experts, layers.shared_intermediate, facts.tp,
         case when layers.ffn = 'moe' then facts.moe_tp else facts.tp end as parts, facts.moe_ep,
         case when layers.ffn = 'moe' then facts.expert_format else facts.ffn_format end as format, facts.ffn_format, facts.block,
         -- the version's kernel takes blocks as narrow as 32
         coalesce(layers.ffn = 'moe' and layers.intermediate // facts.moe_tp % 32 = 0 and exists (
           select 1 from engine_backends as known
           where known.needs = 'cut_blocks' and known.engine = facts.engine and known.implementation = facts.moe_backend
             and is_of_versions(facts.engine_version, known.from_version, known.before_version)
             and is_listed(facts.compute_capability, known.capabilities)), false) as takes_cut_blocks
  from facts join model_layers as layers on layers.model = facts.model
  where layers.ffn <> 'none'
),
-- versions of the engine that have the method of its drafts
drafting as (
  select facts.deployment_id, facts.engine, facts.engine_version, facts.speculative_method,
         bool_or(is_of_versions(facts.engine_version, known.from_version, known.before_version)) as has_method,
         string_agg('from ' || known.from_version || coalesce(' to before ' || known.before_version, ''), ' and '
                    order by version_numbers(known.from_version)) as versions
  from facts join engine_draft_methods as known on known.engine = facts.engine and known.method = facts.speculative_method
  group by all
),
-- engines that support each GPU
engines as (
  select gpu, string_agg(engine, ' or ' order by engine desc) as engines from gpu_engines where support <> 'none' group by gpu
)
select deployment_id, 'engine' as fault, gpu_engines.says || coalesce('; use ' || engines.engines, '') as sentence
from facts join gpu_engines using (gpu, engine) left join engines using (gpu)
where gpu_engines.support = 'none' and not is_draft
union
select deployment_id, 'drafts',
       format('{} {} has no drafts by {}, which it has {}; use another version or method', engine, engine_version, speculative_method, versions)
from drafting where not has_method
union
select deployment_id, 'heads',
       format('{} has {} attention heads, not divisible by tensor-parallel size {}; use a size that divides {}', model, heads, tp, heads)
from attention_heads where heads % tp <> 0
union
select deployment_id, 'kv_heads',
       format('{} has {} key-value heads, not divisible by tensor-parallel size {}; use a size that divides {}', model, kv_heads, tp, kv_heads)
from attention_heads
where attention in ('full', 'sliding', 'selected', 'linear') and kv_heads % tp <> 0 and (tp % kv_heads <> 0 or attention = 'linear')
union
select deployment_id, 'width',
       format('{} has a feed-forward width of {}, not divisible into {} parts; use other parallel sizes', model, intermediate, parts)
from widths where intermediate % parts <> 0
union
select deployment_id, 'width',
       format('{} has shared experts of width {}, not divisible by tensor-parallel size {}; use other parallel sizes', model, shared_intermediate, tp)
from widths where ffn = 'moe' and shared_intermediate % tp <> 0
union
select deployment_id, 'experts',
       format('{} has {} experts, not divisible by expert-parallel size {}; use other parallel sizes', model, experts, moe_ep)
from widths where ffn = 'moe' and experts % moe_ep <> 0
union
-- engines reject such a checkpoint where one scale would span parts of two blocks and no kernel of theirs takes narrower ones
select deployment_id, 'blocks',
       format('{} is quantised in blocks of {}, but each of {} parts gets {} of {} feed-forward channels, '
          || 'not a multiple of {}; use other parallel sizes',
              model, block, parts, intermediate // parts, intermediate, block)
from widths where format = 'fp8_block' and intermediate % parts = 0 and intermediate // parts % block <> 0 and not takes_cut_blocks
union
select deployment_id, 'blocks',
       format('{} is quantised in blocks of {}, but each of {} parts gets {} of {} channels of the shared experts, '
          || 'not a multiple of {}; use other parallel sizes',
              model, block, tp, shared_intermediate // tp, shared_intermediate, block)
from widths where ffn = 'moe' and ffn_format = 'fp8_block' and shared_intermediate % tp = 0 and shared_intermediate // tp % block <> 0
union
select deployment_id, 'expert_parallel',
       format('{} has no experts; disable expert parallelism', model)
from facts where moe_ep > 1 and experts is null
union
select deployment_id, 'pipeline',
       format('{} has {} layers, fewer than pipeline-parallel size {}; use a smaller size', model, layer_count, pp)
from facts where layer_count < pp
union
select deployment_id, 'dtype',
       format('{} has no bf16 tensor cores; use --dtype fp16', gpu)
from facts where dtype = 'bf16' and bf16_flops_per_s is null
union
select deployment_id, 'model_len',
       format('max_model_len {} exceeds the {} tokens that {} supports; '
          || 'use at most that, or state how far its RoPE reaches (--max-position-embeddings)',
              max_model_len, max_positions, model)
from facts where max_model_len > max_positions
union
-- above these limits, sums of tokens and bytes would overflow 64 bits
select deployment_id, 'limit',
       format('{} is {}, more than the {} that can be simulated; use at most that', stated.name, stated.figure, stated.most)
from facts, unnest([
  {'name': 'max_model_len', 'figure': case when max_model_len <= max_positions then max_model_len end, 'most': 1048576},
  {'name': 'max_num_batched_tokens', 'figure': max_num_batched_tokens, 'most': 134217728},
  {'name': 'max_num_seqs', 'figure': max_num_seqs, 'most': 16777216},
  {'name': 'block_size', 'figure': block_size, 'most': 1048576},
  {'name': 'kv_cache_tokens', 'figure': kv_cache_tokens, 'most': 1099511627776}
]) as limits(stated)
where stated.figure > stated.most
union
select deployment_id, 'chunking',
       format('max_num_batched_tokens {} is less than max_num_seqs {}; raise the former or lower the latter',
              max_num_batched_tokens, max_num_seqs)
from facts where max_num_batched_tokens < max_num_seqs and engine = 'vllm'
union
select deployment_id, 'partial_prefills',
       format('max_long_partial_prefills {} needs long_prefill_token_threshold; set it', max_long_partial_prefills)
from facts where max_long_partial_prefills > 0 and long_prefill_token_threshold = 0
union
select deployment_id, 'partial_prefills',
       format('max_long_partial_prefills {} exceeds max_num_partial_prefills {}; use at most that', max_long_partial_prefills,
         max_num_partial_prefills)
from facts where max_num_partial_prefills > 0 and max_long_partial_prefills > max_num_partial_prefills
union
select deployment_id, 'batch_wait',
       format('batch_wait_timeout_ms {} needs asynchronous scheduling; turn it on, or use batch_wait_timeout_iters', batch_wait_timeout_ms)
from facts where batch_wait_timeout_ms > 0 and not async_scheduling
union
-- stated capacities of the KV cache do not change whether the weights fit
select deployment_id, 'memory',
       format('{} does not fit on {} with tensor-parallel size {}: weights, activations and CUDA graphs take '
          || '{:.1f} GiB, {:.1f} GiB are usable, so it needs {:.1f} GiB more',
              served, gpu, tp, (weights_bytes + activations_bytes + graphs_bytes) / 1024.0 ** 3, usable_bytes / 1024.0 ** 3, -kv_bytes / 1024.0 ** 3)
from facts where kv_bytes <= 0 and not is_draft
union
select deployment_id, 'kv_cache',
       format('no KV cache block fits for {} on {}: {:.2f} GiB are left for the cache; '
          || 'use more GPUs, a smaller max_num_batched_tokens, or another kv_cache_dtype',
              served, gpu, kv_bytes / 1024.0 ** 3)
from facts where kv_bytes > 0 and memory_units = 0 and not is_draft
union
-- the plan estimates activations, so the capacity in an engine's log may be slightly larger
select deployment_id, 'kv_cache_tokens',
       format('kv_cache_tokens {} is more than the {} tokens that fit beside {} on {}; use at most that', kv_cache_tokens,
              memory_units // units_of_block(full_units, window_units, windows_apart) * block_size, served, gpu)
from facts where kv_bytes > 0 and memory_units > 0 and kv_cache_tokens is not null and not is_draft and exceeds_plan(capacity_units, memory_units)
union
select deployment_id, 'kv_cache_tokens',
       format('kv_cache_tokens {} is less than one block of {} tokens; use at least {}', kv_cache_tokens, block_size, block_size)
from facts where capacity_units = 0 and kv_cache_tokens is not null and not is_draft
