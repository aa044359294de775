-- How η of measured kernels varies between GPUs: safe, or the danger region
-- One row per kernel family and kernel, and per family over all its kernels.
with measured as (
  select family, implementation, coefficient, value
  from eta_coefficients
  where part = 'portability'
  -- a kernel of two vendors, and a family over all its kernels: of NVIDIA's GPUs
  qualify vendor is not distinct from first_value(vendor) over (partition by family, implementation order by vendor nulls first)
),
kernels as (
  select
    family,
    implementation,
    any_value(value) filter (coefficient = 'geometric_mean') as geometric_mean,
    any_value(value) filter (coefficient = 'spread') as spread
  from measured
  group by all
)
select *, if(geometric_mean >= 2 and coalesce(spread, 2) >= 2, 'danger', 'safe') as region
from kernels
order by family, implementation
