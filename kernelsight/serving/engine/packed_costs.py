"""Step costs packed into one flat array with offsets for the loop; and uses of that array as uses of knots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kernelsight.serving.engine.inputs import Surface
from kernelsight.serving.engine.records import LAYOUT
from kernelsight.serving.engine.served import Uses

# surfaces of attention
GRIDS = ("decode", "window", "prefill", "mixed")


class PackedCosts(NamedTuple):
    """A surface as the loop reads it, and the offsets of its parts.

    One flat array: times, us; then energies, J; then what of the times was measured, us.
    """

    values: np.ndarray
    layout: np.void
    surface: Surface


def pack(surface: Surface, energy: Surface | None = None, measured: Surface | None = None) -> PackedCosts:
    """Pack a surface into one array; token costs are those of the CUDA-graph size that pads the tokens.

    ``energy``: the same surface in joules; ``measured``: the part of it that was measured, us; None: all 0.
    """
    layout = np.zeros(1, LAYOUT)[0]
    most = dict.fromkeys(GRIDS, surface.sampled_us.size) | {"prefill": surface.token_us.size}
    between = {name: _between(getattr(surface, f"{name}_x"), size - 1) for name, size in most.items()}
    times = _placed(surface, layout, between)
    layout["energy_at"] = size = sum(values.size for values in times)
    others = [
        values
        for other in (energy, measured)
        for values in ([np.zeros(size)] if other is None else _placed(other, layout, between))
    ]
    return PackedCosts(np.concatenate([*times, *others]), layout, surface)


def layouts_by_adapters(layout: np.void, surface: Surface) -> np.ndarray:
    """Return a surface's layout for steps without adapters, and at each level of them."""
    layouts = np.repeat(layout, 1 + surface.adapter_levels.size)
    layouts["tokens_at"] += np.arange(layouts.size) * surface.priced_tokens.size
    return layouts


def _placed(surface: Surface, layout: np.void, between: dict[str, tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """Return the values of a surface, part by part, and set the offset of each part in its layout.

    ``between``: interpolation weights of each kind of attention, see ``_between``.
    """
    pieces: list[np.ndarray] = []
    used = 0

    def place(values: np.ndarray) -> int:
        nonlocal used
        pieces.append(np.ascontiguousarray(values, dtype=np.float64).ravel())
        used += values.size
        return used - values.size

    priced = surface.priced_tokens
    layout["tokens_at"] = place(surface.token_us[priced])
    for adapted_us in surface.adapted_us:
        place(adapted_us[priced])
    layout["prompts_at"] = surface.padded_tokens.size if surface.padded_prompt_tokens.size else 0
    layout["sampled_at"] = place(surface.sampled_us)
    if surface.embedding_us.size:
        layout["embedding_at"] = place(surface.embedding_us[priced])
        layout["transfer_at"] = place(surface.transfer_us[priced])
    if surface.moe_us.size:
        layout["moe_at"] = place(surface.moe_us[priced])
        layout["communication_at"] = place(surface.communication_us[priced])
        layout["sampled_communication_at"] = place(surface.sampled_communication_us)
    if surface.experts_us.size:
        layout["experts_at"] = place(surface.experts_us)
        layout["experts_communication_at"] = place(surface.experts_communication_us)
        layout["padded_at"] = place(surface.padded_tokens)
    for name, (below, share) in between.items():
        ys, grid = getattr(surface, f"{name}_y"), getattr(surface, f"{name}_us")
        layout[name] = (place(below), place(share), below.size, place(ys), ys.size, place(grid))
    return pieces


def _between(knots: np.ndarray, largest: int) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each whole number up to ``largest``, the index of the knot below and the weight of the one above."""
    if knots.size == 0:
        return np.zeros(0), np.zeros(0)
    values = np.arange(largest + 1)
    below = np.clip(np.searchsorted(knots, values, side="right") - 1, 0, max(knots.size - 2, 0))
    above = np.minimum(below + 1, knots.size - 1)
    gap = np.where(above > below, knots[above] - knots[below], 1.0)
    return below.astype(float), np.where(above > below, (values - knots[below]) / gap, 0.0)


def joined_costs(packed: Sequence[PackedCosts]) -> tuple[np.ndarray, np.ndarray]:
    """Return the costs of several pools in one array, and the LAYOUT of each, shape [pools]."""
    if len(packed) == 1:
        return packed[0].values, np.array([packed[0].layout])
    layouts = np.array([costs.layout for costs in packed])
    starts = np.concatenate([[0], np.cumsum([costs.values.size for costs in packed])])[:-1]
    for layout, start in zip(layouts, starts, strict=True):
        for name in ("tokens_at", "sampled_at", "embedding_at", "transfer_at", "moe_at", "communication_at"):
            layout[name] += start
        for name in ("sampled_communication_at", "experts_at", "experts_communication_at", "padded_at"):
            layout[name] += start
        for part in GRIDS:
            for name in ("x_at", "share_at", "y_at", "at"):
                layout[part][name] += start
    return np.concatenate([costs.values for costs in packed]), layouts


def unpack_uses(uses: np.ndarray, costs: PackedCosts, layout: np.void) -> Uses:
    """Return the uses by part, shape [3 phases, ...] each; tokens count at the CUDA-graph size that pads them."""
    surface = costs.surface
    priced = surface.priced_tokens
    levels = 1 + surface.adapter_levels.size
    counted = uses[:, layout["tokens_at"] :][:, : levels * priced.size].reshape(3, levels, priced.size)
    tokens = np.zeros((3, surface.token_us.size, levels))
    for phase, level, row in np.argwhere(counted):
        tokens[phase, priced[row], level] += counted[phase, level, row]
    grids = []
    for name in GRIDS:
        grid = getattr(surface, f"{name}_us")
        grids.append(uses[:, layout[name]["at"] :][:, : grid.size].reshape(3, *grid.shape))
    experts = uses[:, layout["experts_at"] :][:, : surface.experts_us.size]
    return Uses(tokens, uses[:, layout["sampled_at"] :][:, : surface.sampled_us.size], *grids, experts)
