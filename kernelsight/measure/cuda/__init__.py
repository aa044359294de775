"""The device to measure on NVIDIA GPUs, by CuPy, NVML, cuBLASLt, and installed attention libraries."""
