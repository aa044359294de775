-- Macros of the memory plan

-- the plan estimates activations and graphs, so the KV blocks in an engine's log may be slightly more
create macro exceeds_plan(stated_units, memory_units) as stated_units > memory_units * 1.05;

-- parts per block of the larger of two KV pools: the resolution of the ratio of their tokens
create macro pool_parts() as 1000;
-- KV units of a block of the longest contexts, and of a request with this many blocks: sliding-window layers with a separate pool
-- (windows_apart) are not added to the others; a request counts in the pool of which it uses the larger share
create macro units_of_block(full_units, window_units, windows_apart) as case when windows_apart then full_units else full_units + window_units end;
create macro units_of_request(full_units, window_units, window_blocks, sequence_units, windows_apart, blocks) as
  case when windows_apart then greatest(full_units * blocks, window_units * least(blocks, window_blocks))
       else full_units * blocks + window_units * least(blocks, window_blocks) end + sequence_units;
