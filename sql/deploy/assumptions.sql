-- Assumptions behind the predictions of each deployment, one sentence per subject
with fitted as (select distinct family, coalesce(vendor, 'nvidia') as vendor from eta_coefficients where part = 'constant'),
foreign_kernels as (
  select settings.deployment_id, settings.gpu, fit.vendor, string_agg(distinct launched.family, ', ' order by launched.family) as families
  from deployment_settings as settings
  join deployment_families as launched using (deployment_id)
  join gpus on gpus.gpu = settings.gpu
  join gpus as fit on fit.gpu = coalesce(gpus.measured_as, gpus.gpu)
  anti join fitted on fitted.family = launched.family and fitted.vendor = fit.vendor
  where settings.tier <> 'roofline'
  group by all
)
select settings.deployment_id, 'engine' as subject, gpu_engines.says as sentence
from deployment_settings as settings join gpu_engines using (gpu, engine)
where gpu_engines.says is not null
union all
select deployment_id, 'engine defaults',
       format('engine defaults: {}; sizes {}{} (tables engine_presets, engine_sizes, engine_memory){}', presets.presets_row, presets.sizes_row,
              case when deployments.gpu_memory_utilization is null then '; memory ' || memory.memory_row else '' end, coalesce('; ' || presets.assumed, ''))
from deployment_presets as presets join memory_defaults as memory using (deployment_id) join deployments using (deployment_id)
union all
select settings.deployment_id, 'kv cache tokens',
       format('kv_cache_tokens {} is taken as stated, although {} fit by the memory plan, which estimates activations and CUDA graphs', settings.kv_cache_tokens,
              plan.memory_units // units_of_block(plan.full_units, plan.window_units, plan.windows_apart) * plan.block_size)
from deployment_settings as settings join memory_plan as plan using (deployment_id)
where settings.kv_cache_tokens is not null and plan.capacity_units > plan.memory_units
union all
select deployment_id, 'vendor' as subject,
       format('on no {} GPU {} measured: general constants stand in on {}, and may be off by a factor of 4', upper(vendor),
              case when vendor in (select vendor from fitted) then format('were these kernels ({})', families) else 'was any kernel' end, gpu) as sentence
from foreign_kernels
union all
select settings.deployment_id, 'kernel constants' as subject,
       format('latencies of {} use assumed constants, not measured (table eta_coefficients)',
              string_agg(distinct launched.family, ', ' order by launched.family)) as sentence
from deployment_settings as settings
join deployment_families as launched using (deployment_id)
where settings.tier <> 'roofline' and launched.family in (select family from eta_coefficients where part = 'constant' and assumed is not null)
group by settings.deployment_id
union all
select settings.deployment_id, 'host overhead',
       format('host times of {} from version {} are {}, not measured (table host_settings)', overheads.engine, overheads.from_version, overheads.assumed)
from deployment_settings as settings
join host_settings as overheads using (deployment_id)
where overheads.assumed is not null and settings.tier <> 'roofline'
union all
select settings.deployment_id, 'engine version',
       format('engine_version_used: the newest {} that was measured; engine_version names another', settings.engine)
from deployment_settings as settings
join host_settings as overheads using (deployment_id)
where overheads.engine_version is null and settings.tier <> 'roofline'
union all
select deployments.deployment_id, 'engine version',
       format('engine_version {} is before {} {}: {} (table engine_versions)', engine_version, engine, modelled_from, before)
from deployments join engine_versions using (engine)
where version_numbers(engine_version) < version_numbers(modelled_from) and coalesce(tier, 'auto') <> 'roofline'
union all
select deployments.deployment_id, 'engine version',
       format('engine_version {} is newer than {} {}, the newest of which kernels were measured: what is known of that version stands in (table engine_versions)',
              engine_version, engine, swept_to)
from deployments join engine_versions using (engine)
where version_numbers(engine_version) > version_numbers(swept_to) and coalesce(tier, 'auto') <> 'roofline'
union all
select settings.deployment_id, 'expert tiles',
       format('{} {} has no tuned tiles for {} experts of width {} on {}, and takes small ones in steps of more tokens than experts (table engine_expert_tiles)',
              settings.engine, deployments.engine_version, any_value(layers.experts // layers.moe_ep), any_value(layers.intermediate), settings.gpu)
from deployment_settings as settings
join deployments using (deployment_id)
join sharded_layers as layers using (deployment_id)
join layer_weights as weights on weights.deployment_id = settings.deployment_id and weights.layer_kind = layers.layer_kind and weights.name = 'experts'
where layers.small_expert_tiles and weights.format in ('bf16', 'fp16') and settings.tier <> 'roofline'
group by settings.deployment_id, settings.engine, deployments.engine_version, settings.gpu
union all
select settings.deployment_id, 'gpu', format('{} of {} are estimates, not from a vendor document', replace(gpus.estimated, ',', ', '), settings.gpu)
from deployment_settings as settings join gpus on gpus.gpu = settings.gpu
where gpus.estimated is not null
union all
select settings.deployment_id, 'energy',
       format('power and energy of {} are estimated: {} ({}); their 90 % intervals are as wide as constants of one architecture predict servers of another',
              settings.gpu, case power.basis when 'architecture' then 'servers were measured with another GPU of its architecture'
                                             else 'no server with a GPU of its architecture was measured' end, gpus.architecture)
from deployment_settings as settings join gpus on gpus.gpu = settings.gpu join gpu_power as power on power.gpu = settings.gpu
where power.basis <> 'fitted'
union all
select deployment_id, 'power limit',
       format('power limit of {:.0f} W: how far clocks fall and arithmetic slows down is estimated (energy_constants, clock_exponent), not measured', power_limit_w)
from deployment_settings as settings join gpus on gpus.gpu = settings.gpu where power_limit_w < tdp_w
union all
select settings.deployment_id, 'hypothetical gpu',
       format('{} is hypothetical: its kernels use the fit of {} where there is one, with its own rates', settings.gpu, gpus.measured_as)
from deployment_settings as settings join gpus on gpus.gpu = settings.gpu
where gpus.measured_as in (select gpu from eta_coefficients where gpu is not null) and settings.tier in ('auto', 'target-measured')
union all
select settings.deployment_id, 'model', models.notes
from deployment_settings as settings join models on models.model = settings.model
where models.notes is not null
union all
select settings.deployment_id, 'memory',
       'activation memory is estimated from the widest layer of the largest step; CUDA graphs take 1 GiB'
from deployment_settings as settings
union all
select distinct deployment_id, 'shared experts',
       format('shared experts run beside the routed ones in steps of up to {} tokens: only their memory time is added', shared_beside_tokens)
from sharded_layers where shared_beside_tokens is not null
union all
select settings.deployment_id, 'number format',
       format('{} has no {} tensor cores: {} weights are expanded to 16 bit in the kernel', settings.gpu, number_formats.requires, number_formats.format)
from deployment_settings as settings
join gpu_formats on gpu_formats.gpu = settings.gpu and gpu_formats.format in (settings.attention_format, settings.ffn_format, settings.expert_format)
join number_formats on number_formats.format = gpu_formats.format
where not gpu_formats.native
union all
-- vLLM pull request 53400 and issue 49723: measured on B200 in 0.25.1 and 0.27.1; 0.33.0 still selects it
select settings.deployment_id, 'matrix products',
       'on this GPU vLLM multiplies FP8 weights with static scales by FlashInfer''s bmm_fp8, which took prompts about twice as long as CUTLASS in 0.25.1 and 0.27.1; CUTLASS is predicted'
from deployment_settings as settings
join deployments using (deployment_id)
join gpus on gpus.gpu = settings.gpu
where settings.engine = 'vllm' and settings.activation_scales = 'static' and 'fp8' in (settings.attention_format, settings.ffn_format)
  and try_cast(gpus.compute_capability as double) between 10 and 11 and settings.tier <> 'roofline'
  and coalesce(is_of_versions(deployments.engine_version, '0.25', null), true)
union all
select settings.deployment_id, 'kv cache',
       format('attention over the {} KV cache computes in {}', settings.kv_cache_dtype, settings.dtype)
from deployment_settings as settings where settings.kv_cache_dtype <> settings.dtype
union all
select settings.deployment_id, 'experts', 'tokens are routed to experts at random, with some experts preferred; the busiest GPU determines the time'
from deployment_settings as settings join models on models.model = settings.model
where models.experts is not null and settings.tier <> 'roofline'
union all
select settings.deployment_id, 'pipeline',
       format('{} pipeline stages process one batch each at the same time; layers and host time are split evenly{}', settings.pp,
              case when settings.engine = 'sglang' then '; a request continues in the next micro-batch, not always in the same one' else '' end)
from deployment_settings as settings where settings.pp > 1
union all
select settings.deployment_id, 'speculative decoding',
       format('num_speculative_tokens {}: each draft token is accepted with probability {:.2f} if all earlier ones were{}; {}', settings.num_speculative_tokens, settings.draft_acceptance_rate,
              coalesce(format(' (assumed: no draft_acceptance_rate is stated; {})', usual.source), ''),
              case when settings.draft_deployment_id is null then 'drafting takes no time' else 'attention over them costs as much as over that many additional heads' end)
from deployment_settings as settings
join deployments using (deployment_id)
left join draft_acceptance_rates as usual on usual.method = settings.speculative_method and deployments.draft_acceptance_rate is null
where settings.num_speculative_tokens > 0
union all
select settings.deployment_id, 'data parallel', case when settings.lock_step then 'data-parallel ranks begin and end each step together; one without requests takes no time of its own'
                                            when models.experts is null then 'data-parallel replicas step independently'
                                            else 'data-parallel replicas step independently, each as if the others sent equally many tokens to MoE layers' end
from deployment_settings as settings join models on models.model = settings.model where settings.dp > 1
union all
select settings.deployment_id, 'batch wait', 'batch_wait_timeout_iters has no effect on data-parallel ranks that share experts, as in TensorRT-LLM'
from deployment_settings as settings where settings.lock_step and settings.batch_wait_timeout_iters > 0
union all
select settings.deployment_id, 'attention_dp_balance', 'attention_dp_balance has no effect: no data-parallel ranks share experts here'
from deployment_settings as settings where settings.attention_dp_balance and not settings.lock_step
union all
select stated.deployment_id, 'without effect', format('{} has no effect: {}', unused.flag, unused.reason)
from deployments as stated
join deployment_settings as settings using (deployment_id)
join models on models.model = settings.model
left join gpus on gpus.gpu = settings.gpu
left join memory_plan as plan using (deployment_id)
cross join lateral (values
  ('moe_backend', stated.moe_backend is not null and models.experts is null, format('{} has no experts', settings.model)),
  ('expert_exchange', stated.expert_exchange is not null and (models.experts is null or settings.dp = 1 or settings.moe_ep = 1),
   'no data-parallel ranks share experts here'),
  ('schedule_conservativeness', stated.schedule_conservativeness is not null and settings.capacity_policy <> 'new_token_ratio',
   format('the capacity policy is {}, not new_token_ratio', settings.capacity_policy)),
  ('swa_full_tokens_ratio', stated.swa_full_tokens_ratio is not null and not plan.windows_apart, 'no layers with a window have a KV cache of their own here'),
  ('kv_tier', stated.kv_tier <> 'none' and not settings.enable_prefix_caching, 'prefix caching is off'),
  ('kv_write_policy', stated.kv_write_policy is not null and coalesce(stated.kv_tier, 'none') = 'none', 'no kv_tier is stated'),
  ('max_cudagraph_capture_size', stated.max_cudagraph_capture_size is not null and stated.enforce_eager, 'enforce_eager runs without CUDA graphs'),
  ('prompt_graphs', stated.prompt_graphs <> 'none' and stated.enforce_eager, 'enforce_eager runs without CUDA graphs'),
  ('power_limit_w', settings.power_limit_w >= gpus.tdp_w, format('the board of {} draws {:.0f} W at most', settings.gpu, gpus.tdp_w))
) as unused (flag, holds, reason)
where unused.holds
union all
select settings.deployment_id, 'batch wait', 'every wait for new requests lasts the full batch_wait_timeout_ms, even if a full batch arrives earlier'
from deployment_settings as settings where settings.batch_wait_timeout_ms > 0
union all
select settings.deployment_id, 'static batches', 'finished requests of a static batch are no longer computed, and a batch starts with the waiting requests, full or not'
from deployment_settings as settings where settings.scheduling = 'static'
union all
select settings.deployment_id, 'prefix caching', 'prompts are computed in full: prefixes of models with recurrent layers, or only sliding-window layers, are not shared'
from deployment_settings as settings join kv_layout as layout using (deployment_id)
where settings.enable_prefix_caching and (layout.full_layers = 0 or layout.sequence_bytes > 0)
union all
select settings.deployment_id, 'prefix caching', 'a prefix counts as cached if its blocks of full-attention layers are; those of sliding-window layers are assumed to be cached too'
from deployment_settings as settings join kv_layout as layout using (deployment_id)
where settings.enable_prefix_caching and settings.windows_freed and layout.full_layers > 0 and layout.window_layers > 0 and layout.sequence_bytes = 0
union all
select settings.deployment_id, 'window pool',
       format('layers with a window have a KV cache of their own with {} as many tokens as the others (swa_full_tokens_ratio): a request counts by the one of which it takes more', settings.swa_full_tokens_ratio)
from deployment_settings as settings join memory_plan as plan using (deployment_id)
where plan.windows_apart
union all
select settings.deployment_id, 'max_model_len',
       format('max_model_len {} exceeds the {} tokens of the KV cache; the engine would require a smaller one', settings.max_model_len, plan.kv_cache_tokens)
from deployment_settings as settings join memory_plan as plan using (deployment_id)
where plan.max_concurrency < 1
union all
select settings.deployment_id, 'communication',
       format('a group of {} GPUs spans several nodes, connected by one NDR InfiniBand port per GPU', settings.tp * settings.dp)
from deployment_settings as settings
join gpus on gpus.gpu = settings.gpu
left join fabrics on fabrics.fabric = gpus.link_fabric
where settings.tp * settings.dp > greatest(coalesce(fabrics.max_gpus, 8), 8)
union all
select settings.deployment_id, 'communication', format('of a group of {} GPUs bridges join {}: its messages go over PCIe', settings.tp * settings.dp, fabrics.max_gpus)
from deployment_settings as settings join gpus on gpus.gpu = settings.gpu join fabrics on fabrics.fabric = gpus.link_fabric
where settings.tp * settings.dp between fabrics.max_gpus + 1 and 8
union all
select settings.deployment_id, 'communication', format('{} has no peer access: messages between GPUs are copied through the host''s memory (latency and rate estimated)', settings.gpu)
from deployment_settings as settings join gpus on gpus.gpu = settings.gpu join fabrics on fabrics.fabric = gpus.link_fabric
where settings.tp * settings.dp * settings.pp > 1 and not fabrics.peer_access
union all
select deployments.deployment_id, 'sampling',
       format('sampling greedy is assumed: where clients use top-p or top-k, as the generation_config of many models sets them, {} runs {}, with {:.0f} times the memory traffic of a draw without a filter (--sampling top_p)',
              deployments.engine, samplers.sampler, filtered.value / drawn.value)
from deployments join deployment_samplers as samplers using (deployment_id)
join kernel_implementations as filtered on filtered.family = 'sampling' and filtered.implementation = samplers.sampler and filtered.coefficient = 'passes'
join kernel_implementations as drawn on drawn.family = 'sampling' and drawn.implementation = 'torch_draw' and drawn.coefficient = 'passes'
where deployments.sampling is null and filtered.value > drawn.value
