"""Device names of published sweeps, mapped to GPUs of the catalogue."""

from __future__ import annotations

# names that do not identify the edition are not listed: their rows count as "gpu_not_in_catalogue"
DEVICES = {
    "Tesla V100-PCIE-32GB": "v100_pcie",
    "Tesla V100-SXM2-32GB": "v100_sxm",
    "Tesla T4": "t4",
    "NVIDIA L4": "l4",
    "NVIDIA L40S": "l40s",
    "NVIDIA A10": "a10",
    "NVIDIA A10G": "a10g",
    "NVIDIA A30": "a30",
    "NVIDIA A40": "a40",
    "NVIDIA A100 80GB PCIe": "a100_pcie",
    "NVIDIA A100-SXM4-40GB": "a100_sxm_40gb",
    "NVIDIA A100-SXM4-80GB": "a100_sxm",
    "NVIDIA H100 PCIe": "h100_pcie",
    "NVIDIA H100 80GB HBM3": "h100_sxm",
    "NVIDIA H200": "h200_sxm",
}
NOT_IN_CATALOGUE = "gpu_not_in_catalogue"
# held out for one last check: no choice may be made by their data
SEALED = ("b300_sxm", "gb300")
