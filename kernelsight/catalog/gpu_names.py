"""Resolution of GPU names (nvidia-smi, cloud instances, short forms) to the catalogue, by the table ``gpu_aliases``."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from typing import NamedTuple

from kernelsight.catalog.tables import facts
from kernelsight.errors import InvalidInput, unknown


class GpuName(NamedTuple):
    """The catalogue GPU of a name; ``assumed``: the choice among several boards of this name, or None."""

    gpu: str
    assumed: str | None


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9*]", "", name.lower())


@cache
def _aliases() -> dict[str, GpuName]:
    catalogue_names = {_key(row["gpu"]): GpuName(row["gpu"], None) for row in facts("gpus").to_pylist()}
    aliases = {_key(row["alias"]): GpuName(row["gpu"], row["assumed"]) for row in facts("gpu_aliases").to_pylist()}
    return aliases | catalogue_names


def find_gpu(name: str) -> GpuName | None:
    """Return the catalogue GPU of a name, or None."""
    names, spelling = _aliases(), _key(name)
    if spelling in names:
        return names[spelling]
    prefixes = [key for key in names if key.endswith("*") and spelling.startswith(key[:-1])]
    return names[max(prefixes, key=len)] if prefixes else None


def gpu_named(name: str, known: Collection[str], advice: str) -> str:
    """Return the GPU of ``known`` names that a name means, in any spelling; UnknownName, with ``advice``: none.

    >>> gpu_named("NVIDIA H200", ["h200_sxm", "l4"], "Give another."), gpu_named("My-GPU", ["my_gpu"], "")
    ('h200_sxm', 'my_gpu')
    """
    found = find_gpu(name)
    spellings = (name, name.lower().replace("-", "_"), found.gpu if found else name)
    plain = next((spelling for spelling in spellings if spelling in known), None)
    if plain is None and "," in name and all(find_gpu(part) or part.strip() in known for part in name.split(",")):
        raise InvalidInput(f"{name} are several GPUs; here stands one. `kernelsight sweep` and what_if take several.")
    if plain is None:
        raise unknown("GPU", name, known, advice)
    return plain


def plain_gpus(names: str | Collection[str] | None) -> tuple[str, ...]:
    """Return GPU names as the catalogue has them; those that it does not know stay, for a later check.

    ``names``: also as one text, separated by commas.

    >>> plain_gpus("NVIDIA L4, own"), plain_gpus(None)
    (('l4', 'own'), ())
    """
    words = names.split(",") if isinstance(names, str) else names or ()
    stripped = dict.fromkeys(word.strip() for word in words if word.strip())
    return tuple(found.gpu if (found := find_gpu(name)) else name for name in stripped)
