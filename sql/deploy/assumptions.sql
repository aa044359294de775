-- What each deployment's numbers rest on that nobody measured or stated, one sentence a subject
select settings.deployment_id, 'kernel constants' as subject,
       format('latencies of {} come from analytic terms with assumed constants (eta_coefficients), not from a fit to measurements',
              string_agg(distinct calls.family, ', ' order by calls.family)) as sentence
from deployment_settings as settings
join kernel_calls as calls using (deployment_id)
where settings.tier <> 'roofline' and calls.family in (select family from eta_coefficients where part = 'constant' and assumed is not null)
group by settings.deployment_id
union all
select settings.deployment_id, 'host overhead',
       format('host time of {} from version {} on ({:.1f} ms exposed and {:.1f} ms of {} work a step, {:.0f} us a running request, {:.2f} us between kernels, {:.0f} us a launch outside CUDA graphs, {:.0f} ms a request and {:.1f} us a token of its prompt) is {}, not measured',
              overheads.engine, overheads.from_version, overheads.step_exposed_us / 1000, overheads.step_base_us / 1000,
              case when overheads.overlapped then 'overlappable' else 'serial' end, overheads.exposed_per_request_us, overheads.launch_gap_us, overheads.per_eager_launch_us, overheads.request_us / 1000, overheads.per_prompt_token_us, overheads.assumed)
from deployment_settings as settings
join host_settings as overheads using (deployment_id)
where overheads.assumed is not null and settings.tier <> 'roofline'
union all
select settings.deployment_id, 'gpu', format('{} of {} are estimates: no vendor document states them', replace(gpus.estimated, ',', ', '), settings.gpu)
from deployment_settings as settings join gpus on gpus.gpu = settings.gpu
where gpus.estimated is not null
union all
select settings.deployment_id, 'hypothetical gpu',
       format('{} is hypothetical: where {} was measured, its kernels take that fit, at the rates of their own row', settings.gpu, gpus.measured_as)
from deployment_settings as settings join gpus on gpus.gpu = settings.gpu
where gpus.measured_as in (select gpu from eta_coefficients where gpu is not null) and settings.tier in ('auto', 'target-measured')
union all
select settings.deployment_id, 'model', models.notes
from deployment_settings as settings join models on models.model = settings.model
where models.notes is not null
union all
select settings.deployment_id, 'memory',
       'activations are estimated from the widest layer of the largest step, and CUDA graphs take 1 GiB'
from deployment_settings as settings
union all
select settings.deployment_id, 'number format',
       format('{} has no {} tensor cores: {} weights are expanded to 16 bit in the kernel', settings.gpu, number_formats.requires, number_formats.format)
from deployment_settings as settings
join gpu_formats on gpu_formats.gpu = settings.gpu and gpu_formats.format in (settings.attention_format, settings.ffn_format, settings.expert_format)
join number_formats on number_formats.format = gpu_formats.format
where not gpu_formats.native
union all
select settings.deployment_id, 'kv cache',
       format('attention over the {} KV cache computes in {}', settings.kv_cache_dtype, settings.dtype)
from deployment_settings as settings where settings.kv_cache_dtype <> settings.dtype
union all
select settings.deployment_id, 'experts', 'tokens reach experts at random, some of which are preferred: the busiest of the GPUs that share them sets the pace'
from deployment_settings as settings join models on models.model = settings.model
where models.experts is not null and settings.tier <> 'roofline'
union all
select settings.deployment_id, 'pipeline',
       format('{} pipeline stages work on as many batches; every layer, and the host''s share of it, counts alike{}', settings.pp,
              case when settings.engine = 'sglang' then ', and a request goes on in the micro-batch that is next, not in one of its own' else '' end)
from deployment_settings as settings where settings.pp > 1
union all
select settings.deployment_id, 'speculative decoding',
       format('of {} tokens that are proposed for a sequence in each step, each is accepted with probability {:.2f} where those before it were; {}', settings.num_speculative_tokens, settings.draft_acceptance_rate,
              case when settings.draft_deployment_id is null then 'proposing them takes no time' else 'attention over them takes as long as that of so many heads more' end)
from deployment_settings as settings where settings.num_speculative_tokens > 0
union all
select settings.deployment_id, 'data parallel', 'data-parallel replicas step by themselves, each as if the others brought equally many tokens to MoE layers'
from deployment_settings as settings where settings.dp > 1
union all
select settings.deployment_id, 'batch wait', 'every look for new requests lasts all of batch_wait_timeout_ms, also where a full batch of them has come before'
from deployment_settings as settings where settings.batch_wait_timeout_ms > 0
union all
select settings.deployment_id, 'static batches', 'a request of a static batch that has ended is no longer computed, and a batch begins with what waits: none waits to be full'
from deployment_settings as settings where settings.scheduling = 'static'
union all
select settings.deployment_id, 'prefix caching', 'prompts are computed whole: prefixes of layers with a state of their own, or with windows alone, are not shared here'
from deployment_settings as settings join kv_layout as layout using (deployment_id)
where settings.enable_prefix_caching and (layout.full_layers = 0 or layout.sequence_bytes > 0)
union all
select settings.deployment_id, 'prefix caching', 'a prefix is found where its blocks of layers without a window are cached: what their windows need of it is taken to be there too, in blocks of each request'
from deployment_settings as settings join kv_layout as layout using (deployment_id)
where settings.enable_prefix_caching and layout.full_layers > 0 and layout.window_layers > 0 and layout.sequence_bytes = 0
union all
select settings.deployment_id, 'max_model_len',
       format('max_model_len {} is more than the {} tokens that the KV cache holds: the engine would ask for a smaller one', settings.max_model_len, plan.kv_cache_tokens)
from deployment_settings as settings join memory_plan as plan using (deployment_id)
where plan.max_concurrency < 1
union all
select settings.deployment_id, 'communication',
       format('a group of {} GPUs spans nodes: it is joined by one NDR InfiniBand port a GPU', settings.tp * settings.dp)
from deployment_settings as settings
join gpus on gpus.gpu = settings.gpu
left join fabrics on fabrics.fabric = gpus.link_fabric
where settings.tp * settings.dp > coalesce(fabrics.max_gpus, 8)
