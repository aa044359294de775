-- Number of the load of each scenario; loads that differ only in rate or concurrency share a number
select
  scenario_id,
  dense_rank() over (
    order by trace, lengths_from, length_distribution, input_len, output_len, range_ratio, input_len_cv, output_len_cv,
      prefix_len, num_prefixes, num_adapters, adapter_zipf, num_turns, think_time_s, think_time_cv
  ) as load
from scenarios
