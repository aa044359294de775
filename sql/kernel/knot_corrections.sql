-- Factors on the kernels of each interpolation point, from corrections; no rows for deployments without corrections
select
  step_shapes.deployment_id,
  step_shapes.step_shape_id,
  coalesce(max(corrections.factor) filter (
    where corrections.part = case
      when step_shapes.part in ('decode_attention', 'decode_window') then 'decode_attention'
      when step_shapes.part = 'prefill_attention' then 'prefill_attention'
      -- products of few tokens are memory-bound on the weights, those of many are compute-bound
      when step_shapes.part = 'logits' or step_shapes.x <= 256 then 'decode_gemm'
      else 'prefill_gemm'
    end), 1) as factor,
  coalesce(max(corrections.factor) filter (where corrections.part = 'moe'), 1)
  * coalesce(max(corrections.factor) filter (
    where corrections.part = 'prefill_moe' and step_shapes.part = 'tokens' and step_shapes.x > 256
  ), 1) as moe_factor,
  coalesce(max(corrections.factor) filter (where corrections.part = 'communication'), 1) as communication_factor
from step_shapes
join corrections using (deployment_id)
where step_shapes.part <> 'whole'
group by all
