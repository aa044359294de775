-- Assumptions behind the predictions of each deployment, one sentence per subject
with fitted as (
  select family, coalesce(vendor, 'nvidia') as vendor, bool_or(assumed is not null) as assumed
  from eta_coefficients where part = 'constant' group by all
),
families as (
  select settings.deployment_id, any_value(fit.vendor) as vendor,
         string_agg(distinct launched.family, ', ' order by launched.family)
           filter (launched.family in (select family from fitted where assumed)) as assumed,
         string_agg(distinct launched.family, ', ' order by launched.family)
           filter ((launched.family, fit.vendor) not in (select (family, vendor) from fitted)) as not_fitted
  from deployment_settings as settings
  join deployment_families as launched using (deployment_id)
  left join gpus on gpus.gpu = settings.gpu
  left join gpus as fit on fit.gpu = coalesce(gpus.measured_as, gpus.gpu)
  group by settings.deployment_id
),
tiles as (
  select deployment_id, any_value(layers.experts // layers.moe_ep) as experts, any_value(layers.intermediate) as width
  from sharded_layers as layers join layer_weights as weights using (deployment_id, layer_kind)
  where weights.name = 'experts' and layers.small_expert_tiles and weights.format in ('bf16', 'fp16')
  group by deployment_id
),
beside as (
  select deployment_id,
         list(distinct format('shared experts run beside the routed ones in steps of up to {} tokens: only their memory time is added',
                              shared_beside_tokens)) as sentences
  from sharded_layers where shared_beside_tokens is not null
  group by deployment_id
),
expanded as (
  select settings.deployment_id,
         list(format('{} has no {} tensor cores: {} weights are expanded to 16 bit in the kernel', settings.gpu, formats.requires,
                     formats.format)) as sentences
  from deployment_settings as settings
  join gpu_formats on gpu_formats.gpu = settings.gpu
    and gpu_formats.format in (settings.attention_format, settings.ffn_format, settings.expert_format)
  join number_formats as formats on formats.format = gpu_formats.format
  where not gpu_formats.native
  group by settings.deployment_id
),
-- of drafts for another one, which proposes nothing to itself
proposing as (select draft_deployment_id as deployment_id from deployment_settings where draft_deployment_id is not null),
settings as (select row_number() over () as number, *, tier <> 'roofline' as is_timed from deployment_settings),
-- subject, condition, sentence: a condition or a sentence that lacks a value does not hold
sentences as (
  select settings.number, settings.deployment_id, [
    ('engine', true, supported.says),
    ('engine defaults', true,
     format('engine defaults: {}; sizes {}{} (tables engine_presets, engine_sizes, engine_memory){}', presets.presets_row, presets.sizes_row,
            case when stated.gpu_memory_utilization is null then '; memory ' || memory.memory_row else '' end,
            coalesce('; ' || presets.assumed, ''))),
    ('kv cache tokens', settings.kv_cache_tokens is not null and plan.capacity_units > plan.memory_units,
     format('kv_cache_tokens {} is taken as stated, although {} fit by the memory plan, which estimates activations and CUDA graphs',
            settings.kv_cache_tokens,
            plan.memory_units // units_of_block(plan.full_units, plan.window_units, plan.windows_apart) * plan.block_size)),
    ('vendor', is_timed,
     format('on no {} GPU {} measured: general constants stand in on {}, and may be off by a factor of 4', upper(families.vendor),
            case when families.vendor in (select vendor from fitted) then format('were these kernels ({})', families.not_fitted)
                 else 'was any kernel' end,
            case when families.not_fitted is not null then settings.gpu end)),
    ('kernel constants', is_timed,
     format('latencies of {} use assumed constants, not measured (table eta_coefficients)', families.assumed)),
    ('host overhead', is_timed,
     format('host times of {} from version {} are {}, not measured (table host_settings)', host.engine, host.from_version, host.assumed)),
    ('engine version', is_timed and host.deployment_id is not null and host.engine_version is null,
     format('engine_version_used: the newest {} that was measured; engine_version names another', settings.engine)),
    ('engine version', coalesce(stated.tier, 'auto') <> 'roofline'
       and version_numbers(stated.engine_version) < version_numbers(versions.modelled_from),
     format('engine_version {} is before {} {}: {} (table engine_versions)', stated.engine_version, versions.engine,
            versions.modelled_from, versions.before)),
    ('engine version', coalesce(stated.tier, 'auto') <> 'roofline'
       and version_numbers(stated.engine_version) > version_numbers(versions.swept_to),
     format('engine_version {} is newer than {} {}, the newest of which kernels were measured: '
            || 'those kernels stand in (table engine_versions)',
            stated.engine_version, versions.engine, versions.swept_to)),
    ('expert tiles', is_timed,
     format('{} {} has no tuned tiles for {} experts of width {} on {}, and takes small ones in steps of more tokens than experts '
            || '(table engine_expert_tiles)', settings.engine, stated.engine_version, tiles.experts, tiles.width, settings.gpu)),
    ('gpu', true, format('{} of {} are estimates, not from a vendor document', replace(gpus.estimated, ',', ', '), settings.gpu)),
    ('energy', power.basis <> 'fitted',
     format('power and energy of {} are estimated: {} ({}); their 90 % intervals are as wide as constants of one architecture '
            || 'predict servers of another', settings.gpu,
            case power.basis when 'architecture' then 'servers were measured with another GPU of its architecture'
                             else 'no server with a GPU of its architecture was measured' end, gpus.architecture)),
    ('power limit', settings.power_limit_w < gpus.tdp_w,
     format('power limit of {:.0f} W: how far clocks fall and arithmetic slows down is estimated (energy_constants, clock_exponent), '
            || 'not measured', settings.power_limit_w)),
    ('hypothetical gpu', gpus.measured_as in (select gpu from eta_coefficients where gpu is not null)
       and settings.tier in ('auto', 'target-measured'),
     format('{} is hypothetical: its kernels use the fit of {} where there is one, with its own rates', settings.gpu, gpus.measured_as)),
    ('model', true, models.notes),
    ('memory', true, 'activation memory is estimated from the widest layer of the largest step; CUDA graphs take 1 GiB'),
    ('shared experts', true, beside.sentences[1]),
    ('shared experts', true, beside.sentences[2]),
    ('number format', true, expanded.sentences[1]),
    ('number format', true, expanded.sentences[2]),
    ('number format', true, expanded.sentences[3]),
    -- vLLM pull request 53400 and issue 49723: measured on B200 in 0.25.1 and 0.27.1; 0.33.0 still selects it
    ('matrix products', settings.engine = 'vllm' and settings.activation_scales = 'static' and is_timed
       and 'fp8' in (settings.attention_format, settings.ffn_format) and try_cast(gpus.compute_capability as double) between 10 and 11
       and coalesce(is_of_versions(stated.engine_version, '0.25', null), true),
     'on this GPU vLLM multiplies FP8 weights with static scales by FlashInfer''s bmm_fp8, which took prompts about twice as long as '
     || 'CUTLASS in 0.25.1 and 0.27.1; CUTLASS is predicted'),
    ('kv cache', settings.kv_cache_dtype <> settings.dtype,
     format('attention over the {} KV cache computes in {}', settings.kv_cache_dtype, settings.dtype)),
    ('experts', models.experts is not null and is_timed,
     'tokens are routed to experts at random, with some experts preferred; the busiest GPU determines the time'),
    ('pipeline', settings.pp > 1,
     format('{} pipeline stages process one batch each at the same time; layers and host time are split evenly{}', settings.pp,
            case when settings.engine = 'sglang' then '; a request continues in the next micro-batch, not always in the same one' else '' end)),
    ('speculative decoding', settings.num_speculative_tokens > 0 and settings.deployment_id not in (select deployment_id from proposing),
     format('num_speculative_tokens {}: {}{}; {}', settings.num_speculative_tokens,
            coalesce('of the draft tokens at each position these shares are accepted: ' || settings.draft_acceptance,
                     format('each draft token is accepted with probability {:.2f} if all earlier ones were', settings.draft_acceptance_rate)),
            coalesce(format(' (assumed: no draft_acceptance_rate is stated; {}; the interval reaches from half to twice these odds)', usual.source), ''),
            case when settings.draft_deployment_id is null then 'drafting takes no time'
                 else 'attention over them costs as much as over that many additional heads' end)),
    ('adapters', settings.max_loras > 0,
     format('adapters (LoRA) have rank {} on all linear layers but routed experts, {} of them in a step at most; in a step whose requests have some, '
            || 'all tokens do. Where the load names none, each request has one and all are on the GPU from the start. Their products are predicted '
            || 'as batched ones: no engine''s kernels for them were measured', settings.max_lora_rank, settings.max_loras)),
    ('without effect', settings.max_loras = 0 and coalesce(stated.max_loras, stated.max_lora_rank, stated.max_cpu_loras) is not null,
     'max_loras, max_cpu_loras and max_lora_rank have no effect: enable_lora is not stated'),
    ('data parallel', settings.dp > 1,
     case when settings.lock_step
            then 'data-parallel ranks begin and end each step together; one without requests adds no time'
          when models.experts is null then 'data-parallel replicas step independently'
          else 'data-parallel replicas step independently, each as if the others sent equally many tokens to MoE layers' end),
    ('batch wait', settings.lock_step and settings.batch_wait_timeout_iters > 0,
     'batch_wait_timeout_iters has no effect on data-parallel ranks that share experts, as in TensorRT-LLM'),
    ('attention_dp_balance', settings.attention_dp_balance and not settings.lock_step,
     'attention_dp_balance has no effect: no data-parallel ranks share experts here'),
    ('without effect', settings.power_limit_w >= gpus.tdp_w,
     format('power_limit_w has no effect: the board of {} draws {:.0f} W at most', settings.gpu, gpus.tdp_w)),
    ('without effect', stated.prompt_graphs <> 'none' and stated.enforce_eager,
     'prompt_graphs has no effect: enforce_eager runs without CUDA graphs'),
    ('without effect', stated.max_cudagraph_capture_size is not null and stated.enforce_eager,
     'max_cudagraph_capture_size has no effect: enforce_eager runs without CUDA graphs'),
    ('without effect', stated.kv_write_policy is not null and coalesce(stated.kv_tier, 'none') = 'none',
     'kv_write_policy has no effect: no kv_tier is stated'),
    ('without effect', stated.kv_tier <> 'none' and not settings.enable_prefix_caching, 'kv_tier has no effect: prefix caching is off'),
    ('without effect', stated.swa_full_tokens_ratio is not null and not plan.windows_apart,
     'swa_full_tokens_ratio has no effect: no layers with a window have a KV cache of their own here'),
    ('without effect', stated.schedule_conservativeness is not null and settings.capacity_policy <> 'new_token_ratio',
     format('schedule_conservativeness has no effect: the capacity policy is {}, not new_token_ratio', settings.capacity_policy)),
    ('without effect', stated.expert_exchange is not null and (models.experts is null or settings.dp = 1 or settings.moe_ep = 1),
     'expert_exchange has no effect: no data-parallel ranks share experts here'),
    ('without effect', stated.moe_backend is not null and models.experts is null,
     format('moe_backend has no effect: {} has no experts', settings.model)),
    ('batch wait', settings.batch_wait_timeout_ms > 0,
     'every wait for new requests lasts the full batch_wait_timeout_ms, even if a full batch arrives earlier'),
    ('static batches', settings.scheduling = 'static',
     'finished requests of a static batch are no longer computed, and a batch starts with the waiting requests, full or not'),
    ('prefix caching', settings.enable_prefix_caching and (layout.full_layers = 0 or layout.sequence_bytes > 0),
     'prompts are computed in full: prefixes of models with recurrent layers, or only sliding-window layers, are not shared'),
    ('prefix caching', settings.enable_prefix_caching and settings.windows_freed and layout.full_layers > 0
       and layout.window_layers > 0 and layout.sequence_bytes = 0,
     'a prefix counts as cached if its blocks of full-attention layers are; those of sliding-window layers are assumed to be cached too'),
    ('window pool', plan.windows_apart,
     format('layers with a window have a KV cache of their own with {} as many tokens as the others (swa_full_tokens_ratio): '
            || 'a request counts by the one of which it takes more', settings.swa_full_tokens_ratio)),
    ('max_model_len', plan.max_concurrency < 1,
     format('max_model_len {} exceeds the {} tokens of the KV cache; the engine would require a smaller one', settings.max_model_len,
            plan.kv_cache_tokens)),
    ('communication', settings.tp * settings.dp > greatest(coalesce(fabrics.max_gpus, 8), 8),
     format('a group of {} GPUs spans several nodes, connected by one NDR InfiniBand port per GPU', settings.tp * settings.dp)),
    ('communication', settings.tp * settings.dp between fabrics.max_gpus + 1 and 8,
     format('of a group of {} GPUs bridges join {}: its messages go over PCIe', settings.tp * settings.dp, fabrics.max_gpus)),
    ('communication', settings.tp * settings.dp * settings.pp > 1 and not fabrics.peer_access,
     format('{} has no peer access: messages between GPUs are copied through the host''s memory (latency and rate estimated)', settings.gpu)),
    ('sampling', stated.sampling is null and filtered.value > drawn.value,
     format('sampling greedy is assumed: where clients use top-p or top-k, as the generation_config of many models sets them, '
            || '{} runs {}, with {:.0f} times the memory traffic of a draw without a filter (--sampling top_p)',
            stated.engine, samplers.sampler, filtered.value / drawn.value))
  ]::struct(subject varchar, holds boolean, sentence varchar)[] as said
  from settings
  left join deployments as stated using (deployment_id)
  left join gpus on gpus.gpu = settings.gpu
  left join models on models.model = settings.model
  left join memory_plan as plan using (deployment_id)
  left join kv_layout as layout using (deployment_id)
  left join host_settings as host using (deployment_id)
  left join engine_versions as versions on versions.engine = settings.engine
  left join gpu_power as power on power.gpu = settings.gpu
  left join gpu_engines as supported on supported.gpu = settings.gpu and supported.engine = settings.engine
  left join deployment_presets as presets using (deployment_id)
  left join memory_defaults as memory using (deployment_id)
  left join families using (deployment_id)
  left join tiles using (deployment_id)
  left join beside using (deployment_id)
  left join expanded using (deployment_id)
  left join fabrics on fabrics.fabric = gpus.link_fabric
  left join draft_acceptance_rates as usual on usual.method = settings.speculative_method and settings.draft_acceptance_assumed
  left join deployment_samplers as samplers using (deployment_id)
  left join kernel_implementations as filtered
    on filtered.family = 'sampling' and filtered.implementation = samplers.sampler and filtered.coefficient = 'passes'
  left join kernel_implementations as drawn
    on drawn.family = 'sampling' and drawn.implementation = 'torch_draw' and drawn.coefficient = 'passes'
)
select deployment_id, said.subject, said.sentence
from (select number, deployment_id, unnest(said) as said, generate_subscripts(said, 1) as place from sentences)
where said.holds and said.sentence is not null
order by place, number
