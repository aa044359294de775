"""What readers of published sweeps say of GPUs."""

from __future__ import annotations

NOT_IN_CATALOGUE = "gpu_not_in_catalogue"
# held out for one last check: no choice may be made by their data
SEALED = ("b300_sxm", "gb300")
