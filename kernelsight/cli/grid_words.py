"""Words of `kernelsight sweep` that are flags of `simulate`, of one value or several: they are a grid."""

from __future__ import annotations

import json
from collections.abc import Sequence

from kernelsight.cli.command_line import flags_of_verb
from kernelsight.errors import InvalidInput
from kernelsight.scenario.flag_values import checked_value
from kernelsight.scenario.flags import FLAGS

# kinds whose one value has commas
WITH_COMMAS = ("tiers", "shares", "weights", "words")


def with_grid(words: Sequence[str]) -> list[str]:
    """Return the words of a sweep, flags of `simulate` beside no grid as the JSON of axes that they are.

    >>> with_grid(["sweep", "--model", "qwen3-8b", "--gpu=l4,h100", "-tp", "1,2", "--find-rate"])
    ['sweep', '{"model": ["qwen3-8b"], "gpu": ["l4", "h100"], "tensor_parallel_size": [1, 2]}', '--find-rate']
    """
    own = {option for _, flag in flags_of_verb("sweep") for option in flag.options}
    axes_of = {
        option: flag
        for _, flag in flags_of_verb("simulate")
        for option in flag.options
        if option not in own and flag.name in FLAGS
    }
    axes, rest, waiting = {}, [], list(words[1:])
    while waiting:
        option, equals, value = (word := waiting.pop(0)).partition("=")
        is_off = option.startswith("--no-") and f"--{option[5:]}" in axes_of
        flag = axes_of.get(f"--{option[5:]}" if is_off else option)
        if flag is None:
            rest.append(word)
            continue
        if flag.kind in ("yes", "switch"):
            axes[flag.name] = [not is_off]
            continue
        if not equals and not waiting:
            raise InvalidInput(f"{option} has no value; give one, or several with commas.")
        value = value if equals else waiting.pop(0)
        values = [value] if flag.kind in WITH_COMMAS else value.split(",")
        axes[flag.name] = [checked_value(flag, item.strip(), option) for item in values]
    if not axes:
        return list(words)
    if rest and not rest[0].startswith("-"):
        raise InvalidInput(
            f"{next(iter(axes))} stands beside a grid; make it a column of the grid, or give flags alone."
        )
    return ["sweep", json.dumps(axes), *rest]
