"""Who makes a GPU, by its name: kernels behave more alike on GPUs of one maker than of two."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

# how names of GPUs begin, after the maker's own name and brand
_PATTERNS = {
    "amd": re.compile(r"(amd|radeon|instinct|mi\d|gfx\d|rx\d|w[5-9]\d{3}|wx\d|vega|navi)"),
    "intel": re.compile(r"(intel|arc[ab]\d|gaudi|pontevecchio|max1\d{3})"),
    "nvidia": re.compile(
        r"(nvidia|geforce|quadro|tesla|titan|rtx|gtx|gt\d|gb\d|gh\d|[abhltvpkm]\d{1,4}|dgx|grid|jetson|orin|thor)"
    ),
}
OTHER_MAKER = 0.15


def maker(name: str) -> str | None:
    """Return the maker of a GPU as its name suggests, or None.

    >>> maker("MI250X"), maker("NVIDIA RTX A4000"), maker("W6600"), maker("a100_sxm"), maker("device 7")
    ('amd', 'nvidia', 'amd', 'nvidia', None)
    """
    key = re.sub(r"[^a-z0-9]", "", name.lower())
    return next((who for who, pattern in _PATTERNS.items() if pattern.match(key)), None)


def weights(gpu: str, sources: Sequence[str]) -> np.ndarray:
    """Return how much each source counts before anything was measured: less where its maker is another.

    >>> weights("A100", ["A4000", "MI250X"]).round(2).tolist()
    [0.87, 0.13]
    """
    its_maker = maker(gpu)
    weight = np.array(
        [1.0 if its_maker is None or maker(name) in (its_maker, None) else OTHER_MAKER for name in sources]
    )
    return weight / weight.sum() if len(weight) else weight
