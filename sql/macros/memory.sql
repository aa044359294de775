-- What the memory plan allows

-- the plan estimates activations and graphs: KV blocks that an engine's log states may be a little more
create macro exceeds_plan(stated_units, memory_units) as stated_units > memory_units * 1.05;

-- parts of which a block of the larger of two KV pools has 1,000: what the ratio of their tokens is rounded to
create macro pool_parts() as 1000;
-- KV units of a block of the longest contexts, and of a request with this many blocks: layers with a window in a pool of their own
-- (windows_apart) are not added to the others; a request counts by the pool of which it takes the larger share
create macro units_of_block(full_units, window_units, windows_apart) as case when windows_apart then full_units else full_units + window_units end;
create macro units_of_request(full_units, window_units, window_blocks, sequence_units, windows_apart, blocks) as
  case when windows_apart then greatest(full_units * blocks, window_units * least(blocks, window_blocks))
       else full_units * blocks + window_units * least(blocks, window_blocks) end + sequence_units;
