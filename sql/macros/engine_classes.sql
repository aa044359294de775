-- Classes of GPUs with separate engine defaults, as distinguished in the engine's source

create macro memory_bound(min_memory, unit) as min_memory * case unit when 'GiB' then 1073741824 else 1048576 end;
create macro holds_memory(memory_bytes, min_memory, unit, operator) as
  case operator when '>' then memory_bytes > memory_bound(min_memory, unit) else memory_bytes >= memory_bound(min_memory, unit) end;
create macro device_words(name, compute_capability) as concat(lower(name), ' cc', compute_capability);
-- words, unlike: separated by spaces
create macro is_like(device, words, unlike) as
  (words = '*' or len(list_filter(string_split(words, ' '), lambda word: contains(device, word))) > 0)
  and len(list_filter(string_split(coalesce(unlike, ''), ' '), lambda word: word <> '' and contains(device, word))) = 0;
create macro preset_class(version, min_memory, unit, operator, words, least, what) as
  concat('from ', version,
         case when min_memory > 0 then format(', GPUs of {} {:,} {}', case operator when '>' then 'more than' else 'at least' end,
           min_memory::bigint, unit) else '' end,
         case when words = '*' then '' else ' (' || words || ')' end,
         case when least > 1 then format(', {} {} or more', what, least) else '' end);
-- the number format of weights that are stored in a plain dtype is that of the deployment
create macro format_in(format, dtype) as case when coalesce(format, 'bf16') in ('bf16', 'fp16', 'fp32') then dtype else format end;
