-- Whether each engine supports each GPU: the row of engine_support for its architecture, otherwise for its vendor
select
  gpus.gpu,
  support.engine,
  support.support,
  replace(support.says, '{gpu}', gpus.gpu) as says
from gpus
join engine_support as support on support.vendor = gpus.vendor and support.architecture in ('*', gpus.architecture)
qualify row_number() over (partition by gpus.gpu, support.engine order by support.architecture = '*') = 1
