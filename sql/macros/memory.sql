-- What the memory plan allows

-- the plan estimates activations and graphs: KV blocks that an engine's log states may be a little more
create macro exceeds_plan(stated_units, memory_units) as stated_units > memory_units * 1.05;
