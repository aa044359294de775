# %% [markdown]
# # What if: which deployment for this load?
#
# One call simulates a grid of deployments. Then SQL and polars pick the winner, and the kernel breakdown says where
# its time goes.

# %%
import polars as pl

import kernelsight as ks

s = ks.connect()

# %% [markdown]
# ## The question
#
# Qwen3-32B, prompts of 2,000 tokens, answers of 200. Every key is a flag of `kernelsight simulate`; every list is an
# axis. The scenarios are the product of the lists.

# %%
grid = {
    "model": "qwen3-32b",
    "gpu": ["h100_sxm", "h200_sxm", "b200_sxm"],
    "tensor_parallel_size": [1, 2, 4],
    "request_rate": [2, 6],
    "num_prompts": 150,
    "input_len": 2000,
    "output_len": 200,
}
w = s.what_if(grid)
rows = pl.from_arrow(w.table("scenario_summary")).sort("request_rate", "gpu", "gpus")
shown = rows.select("gpu", "gpus", "request_rate", pl.col("ttft_p99_ms", "tpot_p50_ms", "peak_kv_share").round(2))
print(shown.filter(pl.col("request_rate") == 6))

# %% [markdown]
# A deployment that cannot run (a model that does not fit) is a row with a `status`, not an error.

# %%
print(rows.group_by("status").len())

# %% [markdown]
# ## The cheapest that keeps the objectives
#
# Prices are a frame of your own. In `s.sql` it has the name of its variable; here polars joins it.

# %%
prices = pl.DataFrame({"gpu": ["h100_sxm", "h200_sxm", "b200_sxm"], "usd_per_gpu_hour": [2.2, 2.6, 4.2]})
good = (
    rows.filter((pl.col("request_rate") == 6) & (pl.col("ttft_p99_ms") < 2000) & (pl.col("tpot_p50_ms") < 40))
    .join(prices, on="gpu")
    .with_columns(usd_per_hour=pl.col("gpus") * pl.col("usd_per_gpu_hour"))
    .sort("usd_per_hour", "scenario_id")
)
print(good.select("gpu", "gpus", "usd_per_hour", pl.col("ttft_p99_ms", "tpot_p50_ms").round(1)))
best = good.row(0, named=True)

# %% [markdown]
# ## Where does its GPU time go?
#
# The kernels of one scenario, without simulating the others again.

# %%
kernels = pl.from_arrow(w.table("kernel_breakdown", scenario=best["scenario_id"]))
by_family = (
    kernels.group_by("phase", "family").agg(pl.col("share").sum().round(3)).sort("share", "family", descending=True)
)
print(by_family.head(6))

# %% [markdown]
# The shares of a scenario add up to one: the breakdown is made from what the simulation paid for.

# %%
print(round(kernels["share"].sum(), 6))

# %% [markdown]
# ## One run of the grid, in full
#
# `w.scenario(...)` is that one scenario as a run of its own, with every table.

# %%
run = w.scenario(best["scenario_id"])
slowest = run.sql("select request_id, ttft_ms, queue_ms, e2e_ms from request_metrics order by ttft_ms desc limit 3")
print(slowest.pl())

# %% [markdown]
# ## What is assumed?
#
# Read this before deciding anything.

# %%
step = s.predict(
    model="qwen3-32b",
    gpu=best["gpu"],
    tensor_parallel_size=best["tensor_parallel_size"],
    batch_size=32,
    context_len=2100,
)
print(f"{step.total_us:,.0f} us a decode step, 90 % interval {step.p05_us:,.0f} to {step.p95_us:,.0f}")
for sentence in step.assumed:
    print("-", sentence)
