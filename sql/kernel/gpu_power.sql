-- What each GPU draws: constants of its architecture, else those that hold for any, as shares of its power limit
with nearest as (
  select gpus.gpu, gpus.tdp_w, gpus.idle_w, constants."constant", constants.value, constants.basis, constants.architecture = '*' as "any"
  from gpus
  join energy_constants as constants on constants.architecture in (gpus.architecture, '*')
  qualify row_number() over (partition by gpus.gpu, constants."constant" order by "any") = 1
)
select
  gpu,
  coalesce(any_value(idle_w), any_value(tdp_w) * any_value(value) filter ("constant" = 'idle')) as idle_w,
  any_value(tdp_w * value) filter ("constant" = 'active') as active_w,
  any_value(tdp_w * value) filter ("constant" = 'memory') as memory_w,
  any_value(tdp_w * value) filter ("constant" = 'compute') as compute_w,
  any_value(tdp_w * value) filter ("constant" = 'expand') as expand_w,
  any_value(tdp_w * value) filter ("constant" = 'link') as link_w,
  any_value(tdp_w) as limit_w,
  any_value(tdp_w * value) filter ("constant" = 'cap') as cap_w,
  any_value(value) filter ("constant" = 'cap_sharpness') as cap_sharpness,
  any_value(value) filter ("constant" = 'clock_exponent') as clock_exponent,
  any_value(value) filter ("constant" = 'power_log_half') as power_log_half,
  any_value(value) filter ("constant" = 'energy_log_half') as energy_log_half,
  case when bool_or(basis = 'fitted' and not "any") then 'fitted' else 'estimated' end as basis
from nearest
group by gpu
order by gpu
