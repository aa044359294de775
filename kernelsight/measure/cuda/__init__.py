"""The running NVIDIA GPU as a device to measure on: CuPy, NVML, cuBLASLt, and attention libraries where installed."""
