-- Latencies of the kernels of all families
-- (family_latencies: the rows of every <family>_latencies)
select * from family_latencies
