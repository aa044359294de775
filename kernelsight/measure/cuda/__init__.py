"""The local NVIDIA GPU as a device to measure: CuPy, NVML, cuBLASLt, and installed attention libraries."""
