-- Values of each flag that a question searches: of GPU, TP, and flags in which its deployments differ
with searched as (
  select question_id, 0 as part, place, gpu, tensor_parallel_size, flags from size_bounds
  union all
  select question_id, 1, place, gpu, tensor_parallel_size, flags from unsized_deployments
),
keyed as (
  select *, unnest(json_keys(flags)) as flag from searched
),
stated as (
  select question_id, part, place, unnest(['gpu', 'tensor_parallel_size']) as flag,
    unnest([gpu, tensor_parallel_size::varchar]) as value
  from searched
  union all
  select question_id, part, place, flag, flags ->> flag from keyed
),
named as (
  select question_id, flag, min((part, place)) as first from stated group by all
),
valued as (
  select named.question_id, named.flag, named.first, coalesce(stated.value, 'default') as value,
    min((searched.part, searched.place)) as first_value
  from named
  join searched using (question_id)
  left join stated using (question_id, part, place, flag)
  group by all
)
select question_id, flag, list(value order by value != 'default', try_cast(value as double), first_value) as values
from valued
group by question_id, flag, first
having count(*) > 1 or flag in ('gpu', 'tensor_parallel_size')
order by question_id, flag not in ('gpu', 'tensor_parallel_size'), first, flag
