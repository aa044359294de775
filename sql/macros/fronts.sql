-- Macros of Pareto fronts: used in a qualify clause

-- whether a row is on the front of its load: no row with a higher speed has as high a value, and none with the same speed a higher one;
-- rows with equal values are all on it
create macro is_on_front(load, speed, value) as
  value = max(value) over (partition by load, speed)
  and value > coalesce(max(value) over (
    partition by load order by speed desc range between unbounded preceding and current row exclude group
  ), '-infinity'::double);
