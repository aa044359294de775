-- Memory of one GPU for each deployment, and the capacity of its KV cache in blocks, tokens and full-length requests
-- A draft model adds its weights and its layers of the cache. Sliding-window layers count as full layers where the engine does not free
-- blocks outside the window; in a separate pool they get swa_full_tokens_ratio times the tokens of the other layers.
with stages as (
  -- the largest pipeline stage: its share of the layers, plus embedding and output head
  select deployment_id, ceil(sum(count) / any_value(pp)) / sum(count) as layer_share
  from sharded_layers join (select deployment_id, pp from deployment_settings) using (deployment_id)
  group by deployment_id
),
weights as (
  select deployment_id, sum(weight_bytes * case when layer_kind = 'model' then 1 else layer_share end) as weights_bytes
  from layer_weights join stages using (deployment_id)
  group by deployment_id
),
-- one adapter: its slot in every layer, read from disk and moved to the GPU
adapters as (
  select deployment_id, sum(weight_bytes * layer_share / max_loras) as adapter_bytes
  from layer_weights
  join adapted_layers on layer_weights.name in (adapted_layers.name || '_lora_a', adapted_layers.name || '_lora_b')
  join stages using (deployment_id)
  join deployment_settings using (deployment_id)
  group by deployment_id
),
split as (
  select
    coalesce(adapter_bytes, 0) as adapter_bytes,
    coalesce(adapter_bytes / gpus.pcie_bytes_per_s * 1e6, 0) as adapter_load_us,
    coalesce(adapter_bytes * settings.tp / (select read_bytes_per_s from kv_tier_devices where tier = 'disk') * 1e6, 0) as adapter_read_us,
    settings.deployment_id,
    settings.block_size,
    settings.max_model_len,
    settings.kv_cache_tokens as stated_tokens,
    gpus.memory_bytes,
    settings.gpu_memory_utilization,
    settings.memory_fraction_of,
    settings.swa_full_tokens_ratio,
    weights.weights_bytes + coalesce(draft_weights.weights_bytes, 0) as weights_bytes,
    -- residual, hidden and the widest projection of the largest step, in 16 bits, and FP32 logits of the sampled tokens
    -- (larger values than can be simulated are a fault of the deployment, and must not overflow here)
    least(settings.max_num_batched_tokens::double * (4 * models.hidden + widest.width) * 2.0
      + least(settings.max_num_seqs::double * settings.query_tokens, settings.max_num_batched_tokens) * models.vocab / settings.tp * 4.0,
        1e18) as activations_bytes,
    case when settings.graph_max_tokens > 0 then 1073741824.0 else 0 end as graphs_bytes,
    layout.full_layers + coalesce(drafts.full_layers, 0) + case when settings.windows_freed then 0
      else layout.window_layers + coalesce(drafts.window_layers, 0) end as full_layers,
    case when settings.windows_freed then layout.window_layers + coalesce(drafts.window_layers, 0) else 0 end as window_layers,
    greatest(layout.window_tokens, coalesce(drafts.window_tokens, 0)) as window_tokens,
    layout.full_token_bytes * stages.layer_share + coalesce(drafts.full_token_bytes, 0) as full_token_bytes,
    layout.window_token_bytes * stages.layer_share + coalesce(drafts.window_token_bytes, 0) as window_token_bytes,
    layout.sequence_bytes * stages.layer_share + coalesce(drafts.sequence_bytes, 0) as sequence_bytes
  from deployment_settings as settings
  join gpus on gpus.gpu = settings.gpu
  join models on models.model = settings.model
  join weights using (deployment_id)
  join stages using (deployment_id)
  join kv_layout as layout using (deployment_id)
  left join adapters using (deployment_id)
  left join kv_layout as drafts on drafts.deployment_id = settings.draft_deployment_id
  left join weights as draft_weights on draft_weights.deployment_id = settings.draft_deployment_id
  join (select deployment_id, max(n) as width from layer_weights where family = 'gemm' and layer_kind <> 'model' group by deployment_id) as widest
    using (deployment_id)
),
used as (
  select
    *,
    weights_bytes + activations_bytes + graphs_bytes as used_bytes,
    -- of total memory; of total memory for weights and cache only, while activations and graphs use the rest; or of the memory left free
    case memory_fraction_of
      when 'memory' then memory_bytes * gpu_memory_utilization
      when 'weights_and_cache' then least(memory_bytes * gpu_memory_utilization + activations_bytes + graphs_bytes, memory_bytes)
      else used_bytes + (memory_bytes - used_bytes) * case when used_bytes < memory_bytes then gpu_memory_utilization else 1 end
    end as usable_bytes
  from split
),
units as (
  -- one unit is one block of one group of layers: all layers if they are of one kind, otherwise a group of layers of one kind
  select
    *,
    usable_bytes - used_bytes as kv_bytes,
    coalesce(full_layers > 0 and window_layers > 0 and swa_full_tokens_ratio > 0, false) as windows_apart,
    case when window_layers = 0 then least(full_layers, 1) else ceil(full_layers / least(nullif(full_layers, 0), window_layers)) end as full_group,
    case when window_layers = 0 then 0 else ceil(window_layers / least(window_layers,
      coalesce(nullif(full_layers, 0), window_layers))) end as window_units,
    -- the last group of each kind is padded with empty layers
    case when least(full_layers, window_layers) > 0 then least(full_layers, window_layers) else full_layers + window_layers end as group_layers,
    ceil(window_tokens / block_size)::bigint + 1 as window_blocks
  from used
),
sized as (
  select
    * exclude (window_units),
    case when windows_apart then round(swa_full_tokens_ratio * pool_parts()) else coalesce(full_group, 0) end as full_units,
    case when windows_apart then pool_parts() else window_units end as window_units,
    case when windows_apart then (full_token_bytes + swa_full_tokens_ratio * window_token_bytes)
      * block_size / round(swa_full_tokens_ratio * pool_parts())
         else (full_token_bytes + window_token_bytes) / greatest(full_layers + window_layers, 1) * group_layers * block_size end as unit_bytes
  from units
),
counted as (
  select
    *,
    case when unit_bytes > 0 then ceil(sequence_bytes / unit_bytes) else 1 end::bigint as sequence_units,
    greatest(floor(kv_bytes / case when unit_bytes > 0 then unit_bytes else greatest(sequence_bytes, 1) end), 0)::bigint as memory_units,
    case when stated_tokens is not null then (least(stated_tokens // block_size, 1e12)
      * units_of_block(full_units, window_units, windows_apart))::bigint
         else memory_units end as capacity_units
  from sized
),
longest as (
  select
    *,
    greatest(units_of_request(full_units, window_units, window_blocks, sequence_units, windows_apart, ceil(max_model_len / block_size)),
      1) as longest_units
  from counted
)
select
  deployment_id,
  memory_bytes,
  round(usable_bytes)::bigint as usable_bytes,
  round(weights_bytes)::bigint as weights_bytes,
  round(activations_bytes)::bigint as activations_bytes,
  round(graphs_bytes)::bigint as graphs_bytes,
  round(kv_bytes)::bigint as kv_bytes,
  round(adapter_bytes)::bigint as adapter_bytes,
  adapter_load_us,
  adapter_read_us,
  full_token_bytes + window_token_bytes as kv_bytes_per_token,
  block_size,
  full_units::bigint as full_units,
  window_units::bigint as window_units,
  case when window_units > 0 then window_blocks else 0 end::bigint as window_blocks,
  windows_apart,
  sequence_units,
  memory_units,
  capacity_units,
  capacity_units / longest_units as max_concurrency,
  floor(capacity_units::double * max_model_len / longest_units)::bigint as kv_cache_tokens
from longest
