# %% [markdown]
# # Replay a trace
#
# A load of your own, served on a deployment, and asked in SQL. The log is generated here, so that the notebook runs
# anywhere; use the path of your own instead.

# %%
import json
import random
import tempfile
from pathlib import Path

import kernelsight as ks

folder = Path(tempfile.mkdtemp())
log = folder / "requests.jsonl"

# %% [markdown]
# ## A small log
#
# Chats that share a system prompt of 1,024 tokens; every minute has a busy half. `hash_ids` names blocks of 512 tokens,
# each together with all blocks before it.

# %%
random.seed(7)
arrival, lines = 0.0, []
for number in range(300):
    arrival += random.expovariate(8.0 if arrival % 60 < 30 else 2.0)
    tail = random.choice([100, 500, 2500])
    lines.append(
        {
            "arrival_s": round(arrival, 3),
            "prompt_tokens": 1024 + tail,
            "output_tokens": random.choice([40, 120, 360]),
            "hash_ids": [0, 1, *(1000 + 10 * number + block for block in range(-(-tail // 512)))],
            "hash_block_tokens": 512,
        }
    )
log.write_text("".join(json.dumps(line) + "\n" for line in lines))
print(len(lines), "requests in", round(arrival), "seconds")

# %% [markdown]
# ## Serve it

# %%
s = ks.connect()
deployment = {"model": "qwen3-8b", "gpu": "h100_sxm"}
run = s.simulate(**deployment, trace=str(log))
for metric in ("ttft_ms", "tpot_ms", "e2e_ms"):
    values = run.summary[metric]
    print(f"{metric}: mean {values['mean']:,.1f}, p99 {values['p99']:,.1f}")
print(f"prefix cache hit rate {run.summary['prefix_cache_hit_rate']:.2f}")

# %% [markdown]
# ## When was it busy?

# %%
busy = run.sql(
    """
    select start_s, round(running_mean, 1) as running, round(waiting_mean, 2) as waiting,
      round(100 * kv_share_mean, 1) as kv_percent
    from cache_over_time where start_s % 10 = 0 order by start_s limit 8
    """
)
print(busy.pl())

# %% [markdown]
# ## Is the tail a matter of length, or of waiting?

# %%
by_length = run.sql(
    """
    select prompt_tokens, count(*) as n, round(median(ttft_ms), 1) as ttft_p50,
      round(quantile_cont(ttft_ms, 0.99), 1) as ttft_p99, round(quantile_cont(queue_ms, 0.99), 1) as queue_p99
    from request_metrics group by all order by prompt_tokens
    """
)
print(by_length.pl())

# %% [markdown]
# ## What is prefix caching worth here?
#
# The same arrivals, one flag changed.

# %%
w = s.what_if([{**deployment, "trace": str(log), "enable_prefix_caching": caching} for caching in (True, False)])
for row in w.table("scenario_summary").to_pylist():
    print(
        f"caching {row['enable_prefix_caching']}: TTFT p99 {row['ttft_p99_ms']:,.1f} ms, GPU busy {row['gpu_s']:,.1f} s"
    )

# %% [markdown]
# ## Keep it
#
# A saved run answers later without simulating again.

# %%
run.save(folder / "replay.duckdb")
with ks.connect(folder / "replay.duckdb", read_only=True) as saved:
    seconds = saved.sql("select name, sum(total_us) / 1e6 as gpu_s from kernel_breakdown group by all")
    print(seconds.order("gpu_s desc").limit(3).pl())
