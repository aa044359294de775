"""The maker of a GPU by its name, and weights of source GPUs by maker: kernels behave similarly on GPUs of one."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

# beginnings of GPU names by maker: the maker's name, its brands, and its model numbers
_PATTERNS = {
    "amd": re.compile(r"(amd|radeon|instinct|mi\d|gfx\d|rx\d|w[5-9]\d{3}|wx\d|vega|navi)"),
    "intel": re.compile(r"(intel|arc[ab]\d|gaudi|pontevecchio|max1\d{3})"),
    "nvidia": re.compile(
        r"(nvidia|geforce|quadro|tesla|titan|rtx|gtx|gt\d|gb\d|gh\d|[abhltvpkm]\d{1,4}|dgx|grid|jetson|orin|thor)"
    ),
}
OTHER_MAKER = 0.15


def maker(name: str) -> str | None:
    """Guess the maker of a GPU by its name; None where it is not known.

    >>> maker("MI250X"), maker("NVIDIA RTX A4000"), maker("W6600"), maker("a100_sxm"), maker("device 7")
    ('amd', 'nvidia', 'amd', 'nvidia', None)
    """
    key = re.sub(r"[^a-z0-9]", "", name.lower())
    return next((name for name, pattern in _PATTERNS.items() if pattern.match(key)), None)


def weights(gpu: str, sources: Sequence[str]) -> np.ndarray:
    """Return the prior weights of source GPUs, which sum to 1: less for another maker's.

    >>> weights("A100", ["A4000", "MI250X"]).round(2).tolist()
    [0.87, 0.13]
    """
    gpu_maker = maker(gpu)
    weight = np.array(
        [1.0 if gpu_maker is None or maker(name) in (gpu_maker, None) else OTHER_MAKER for name in sources]
    )
    return weight / weight.sum() if len(weight) else weight
