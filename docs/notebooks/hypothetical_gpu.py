# %% [markdown]
# # A GPU that does not exist
#
# A GPU is a row of facts. Change one rate at a time, and see which of them matters: in a decode step, a prefill step,
# and in a served load.

# %%
import kernelsight as ks

s = ks.connect()

# %% [markdown]
# ## Variants of an H100
#
# `measured_as` keeps the H100's fit: its constants, at the rates of the new row. (`None` predicts the row as a GPU that
# was never measured.)

# %%
h100 = s.sql("select * from gpus where gpu = 'h100_sxm'").to_arrow_table().to_pylist()[0]
doubled = {
    "h100_2x_memory": ["memory_bandwidth_bytes_per_s"],
    "h100_2x_tensor": ["bf16_flops_per_s", "fp16_flops_per_s", "fp8_flops_per_s", "int8_flops_per_s"],
    "h100_2x_link": ["link_bytes_per_s"],
}
variants = [
    {**h100, "gpu": name, "measured_as": "h100_sxm", **{rate: 2 * h100[rate] for rate in rates}}
    for name, rates in doubled.items()
]
s.extend("gpus", variants)
gpus = ["h100_sxm", *doubled]

# %% [markdown]
# ## One step, kernel by kernel
#
# Decode reads every weight for a few tokens, so it is bound by memory. Prefill multiplies, so it is bound by the tensor
# cores.

# %%
model = {"model": "qwen3-32b", "tensor_parallel_size": 2}
for phase, sizes in {
    "decode": {"batch_size": 64, "context_len": 4096},
    "prefill": {"batch_size": 1, "input_len": 8192},
}.items():
    for gpu in gpus:
        step = s.predict(**model, gpu=gpu, phase=phase, **sizes)
        print(f"{phase:8} {gpu:16} {step.total_us / 1e3:8.2f} ms   [{step.p05_us / 1e3:.2f}, {step.p95_us / 1e3:.2f}]")

# %% [markdown]
# Which kernels still take the time when the memory is twice as fast?

# %%
step = s.predict(**model, gpu="h100_2x_memory", phase="decode", batch_size=64, context_len=4096)
for kernel in step.kernels.select(["name", "bound", "share"]).slice(0, 5).to_pylist():
    print(f"{kernel['name']:20} {kernel['bound']:8} {kernel['share']:.1%}")

# %% [markdown]
# ## A served load
#
# Latencies of a load do not follow one step: a faster GPU also queues less, and host time stays as it was.

# %%
w = s.what_if({**model, "gpu": gpus, "request_rate": 4, "num_prompts": 150, "input_len": 2000, "output_len": 200})
served = {row["gpu"]: row for row in w.table("scenario_summary").to_pylist()}
for gpu in gpus:
    row = served[gpu]
    print(
        f"{gpu:16} TTFT p99 {row['ttft_p99_ms']:7.1f} ms, TPOT p50 {row['tpot_p50_ms']:6.2f} ms, "
        f"waiting for the host {row['host_exposed_s']:.1f} s"
    )

# %% [markdown]
# ## No rate makes it slower
#
# A latency never rises when a rate of the row rises.

# %%
times = {gpu: s.predict(**model, gpu=gpu, batch_size=64, context_len=4096).total_us for gpu in gpus}
assert all(time <= times["h100_sxm"] for time in times.values())
print({gpu: f"{times['h100_sxm'] / time:.2f} x" for gpu, time in times.items()})
