"""Typed reads of config.json fields: each checks type and range, and raises InvalidInput with the field's name.

Windows, heads, RoPE scalings and totals that no model has are refused too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kernelsight import errors
from kernelsight.files.numbers import is_number
from kernelsight.number_format import number

# a thousand times the largest published model; below it bytes, FLOP of a step and their sums fit 64 bits
MOST_PARAMETERS = 10**15
# fields of rope_scaling and rope_parameters that multiply or divide
FACTORS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "rope_theta")


def check_heads(fields: ConfigFields, columns: Mapping[str, Any]) -> None:
    """Raise InvalidInput for head_dim or rotary_dim that RoPE cannot rotate: odd, or more of a head than it has."""
    for name in ("head_dim", "rotary_dim"):
        if columns[name] % 2:
            expected = "an even number: positions rotate pairs of values"
            raise errors.config_field_wrong(fields.label, name, columns[name], expected)
    if columns["rotary_dim"] > columns["head_dim"]:
        expected = f"at most head_dim ({columns['head_dim']})"
        raise errors.config_field_wrong(fields.label, "rotary_dim", columns["rotary_dim"], expected)


def check_total(fields: ConfigFields, columns: Mapping[str, Any]) -> None:
    """Raise InvalidInput where the sizes make more than MOST_PARAMETERS parameters; ``columns``: of ``models``."""

    def size(name: str) -> int:
        return columns.get(name) or 0

    heads = (size("heads") + size("kv_heads")) * size("head_dim")
    linear = (size("linear_key_heads") + size("linear_value_heads")) * (
        size("linear_key_head_dim") + size("linear_value_head_dim")
    )
    experts = size("experts") * size("expert_intermediate") + size("shared_intermediate")
    latent = size("q_lora_rank") + size("kv_lora_rank")
    layer = 3 * (heads + linear + size("intermediate") + experts + latent)
    total = size("hidden") * (2 * size("vocab") + size("layer_count") * layer)
    if total > MOST_PARAMETERS:
        raise errors.InvalidInput(
            f"config of {fields.label}: its sizes make about {number(total / 1e12, 3)} trillion parameters, more "
            f"than the {number(MOST_PARAMETERS / 1e12)} trillion that can be simulated; correct hidden_size, "
            "vocab_size or the sizes of its layers."
        )


def check_rope(fields: ConfigFields) -> None:
    """Raise InvalidInput for RoPE scaling that is no object, or with a factor that is no finite number above 0."""
    for name in ("rope_scaling", "rope_parameters"):
        scaling = fields.inside(name, default=None)
        if scaling is None:
            continue
        # newer configs have one object for each kind of layer
        nested = [scaling.inside(key) for key, value in scaling.values.items() if isinstance(value, Mapping)]
        for parameters in (scaling, *nested):
            for factor in FACTORS:
                value = parameters.values.get(factor)
                if value is not None and not _is_factor(value):
                    raise errors.config_field_wrong(parameters.label, factor, value, "a finite number above 0")


def longest_context(fields: ConfigFields, positions: int) -> int:
    """Return the longest context, tokens: with YaRN original positions times factor where that exceeds ``positions``.

    As engines do for a checkpoint whose max_position_embeddings is that of its training.

    >>> yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    >>> longest_context(ConfigFields({"rope_scaling": yarn}, "my-model"), 40960)
    131072
    """
    for name in ("rope_scaling", "rope_parameters"):
        scaling = fields.inside(name, default=None)
        if scaling is None or (scaling.values.get("rope_type") or scaling.values.get("type")) != "yarn":
            continue
        trained, factor = (scaling.values.get(field) for field in ("original_max_position_embeddings", "factor"))
        if not _is_factor(trained) or not _is_factor(factor):
            continue
        reached = trained * factor
        if reached > LARGEST:
            raise errors.config_field_wrong(
                scaling.label, "factor", factor, f"one that reaches at most {LARGEST} tokens"
            )
        return max(positions, int(reached))
    return positions


def _is_factor(value: Any) -> bool:
    return is_number(value) and value > 0


LARGEST = 2**40
"""Largest size of a field: far above any model's; sums of products of sizes fit 64 bits (``limits.check_total``)."""
REQUIRED: Any = object()
"""Default of a field that must be present: its absence is an error."""


class ConfigFields(NamedTuple):
    """The fields of one config, and the label (file or model) that errors name.

    >>> fields = ConfigFields({"hidden_size": 4096}, "my-model")
    >>> fields.size("hidden_size"), fields.size("head_dim", default=None)
    (4096, None)
    """

    values: Mapping[str, Any]
    label: str

    def _first(self, names: tuple[str, ...], default: Any) -> tuple[str, Any]:
        # null counts as missing: transformers writes null for unused fields
        for name in names:
            if self.values.get(name) is not None:
                return name, self.values[name]
        if default is REQUIRED:
            raise errors.config_field_missing(self.label, names[0])
        return names[0], default

    def size(self, *names: str, default: int | None = REQUIRED, least: int = 1, most: int = LARGEST) -> int | None:
        """Return the first present field of ``names``, a whole number from ``least`` to ``most``, or ``default``."""
        name, value = self._first(names, default)
        if value is default:
            return value
        if type(value) is not int or not least <= value <= most:
            expected = "a whole number above 0" if least == 1 else f"a whole number of at least {least}"
            if type(value) is int and value > most:
                expected = f"a whole number of at most {most}"
            raise errors.config_field_wrong(self.label, name, value, expected)
        return value

    def flag(self, *names: str, default: bool = REQUIRED) -> bool:
        """Return the first present field of ``names``, true or false, or ``default``."""
        name, value = self._first(names, default)
        if type(value) is not bool:
            raise errors.config_field_wrong(self.label, name, value, "true or false")
        return value

    def text(self, *names: str, default: str | None = REQUIRED) -> str | None:
        """Return the first present field of ``names``, a string, or ``default``."""
        name, value = self._first(names, default)
        if value is not default and not isinstance(value, str):
            raise errors.config_field_wrong(self.label, name, value, "a string")
        return value

    def choice(self, *names: str, among: Mapping[str, str], default: str | None = REQUIRED) -> str | None:
        """Return the first present field of ``names``, translated by ``among``; InvalidInput lists its strings."""
        name, value = self._first(names, default)
        if value is default:
            return value
        if not isinstance(value, str) or value not in among:
            raise errors.config_unsupported(self.label, name, value, sorted(among))
        return among[value]

    def fraction(self, *names: str, default: float) -> float:
        """Return the first present field of ``names``, a number above 0 and at most 1, or ``default``."""
        name, value = self._first(names, default)
        if not is_number(value) or not 0 < value <= 1:
            raise errors.config_field_wrong(self.label, name, value, "a number above 0 and at most 1")
        return float(value)

    def items(self, name: str, default: list | None = REQUIRED) -> list | None:
        """Return a field, a list, or ``default``."""
        name, value = self._first((name,), default)
        if value is not default and not isinstance(value, list):
            raise errors.config_field_wrong(self.label, name, value, "a list")
        return value

    def inside(self, name: str, default: Mapping[str, Any] | None = REQUIRED) -> ConfigFields | None:
        """Return the fields of a nested object, with "label, name" as their label; None where the field is absent."""
        name, value = self._first((name,), default)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise errors.config_field_wrong(self.label, name, value, "an object")
        return ConfigFields(value, f"{self.label}, {name}")


class Field(NamedTuple):
    """A field of a config as an architecture file declares it.

    ``names``: its spellings in configs, the first present one is read; ``holder.name``: of a nested object. ``values``:
    what its words stand for. ``absent``: values that count as missing. ``default``: makes the value of a missing field;
    None: it must be there.
    """

    name: str
    kind: str = "size"
    names: tuple[str, ...] = ()
    least: int = 1
    most: int = LARGEST
    values: Mapping[str, Any] = {}
    absent: tuple[Any, ...] = ()
    default: Callable[[Mapping[str, Any]], Any] | None = None

    def place(self, config: ConfigFields) -> tuple[ConfigFields, str] | None:
        """Return where a config has the field: the object that holds it, and its name there; None: it is missing."""
        for path in self.names or (self.name,):
            listed, _, of_each = path.partition("[].")
            *holders, name = listed.split(".")
            held: ConfigFields | None = config
            for holder in holders:
                held = held and held.inside(holder, default=None)
            if held is not None and held.values.get(name) is not None and held.values[name] not in self.absent:
                return held, f"{name}[].{of_each}" if of_each else name
        return None

    def read(self, config: ConfigFields, scope: Mapping[str, Any]) -> Any:
        """Return the field's value in a config, checked by its kind; InvalidInput: missing, or another value."""
        place = self.place(config)
        if place is not None:
            return KINDS[self.kind](self, *place)
        if self.default is None:
            raise errors.config_field_missing(config.label, (self.names or (self.name,))[0])
        return self.default(scope)

    def label_name(self, config: ConfigFields) -> tuple[str, str]:
        """Return the label and the name by which an error refers to the field."""
        held, name = self.place(config) or (config, (self.names or (self.name,))[0])
        return held.label, name


def _size(field: Field, held: ConfigFields, name: str) -> int:
    return held.size(name, least=field.least, most=field.most)


def _uniform(field: Field, held: ConfigFields, name: str) -> int:
    """Return a size that is one number, or a list of equal numbers, one per layer."""
    value = held.values[name]
    if isinstance(value, list) and value and all(item == value[0] for item in value):
        held = ConfigFields({name: value[0]}, held.label)
    return held.size(name, least=field.least, most=field.most)


def _choice(field: Field, held: ConfigFields, name: str) -> Any:
    return held.choice(name, among=field.values)


def _kinds(field: Field, held: ConfigFields, name: str) -> list[Any]:
    """Return a list with an entry a layer, or a text with a letter a layer, translated by ``values``."""
    listed = list(held.values[name]) if isinstance(held.values[name], str) else held.items(name)
    known = {str(key): value for key, value in field.values.items()}
    for entry in listed:
        if isinstance(entry, bool) or not isinstance(entry, (str, int)) or str(entry) not in known:
            raise errors.config_unsupported(held.label, f"{name} entry", entry, sorted(known))
    return [known[str(entry)] for entry in listed]


def _list(field: Field, held: ConfigFields, name: str) -> list[int]:
    """Return a list of whole numbers from ``least`` on; ``numbers``: of layers, of which that is the first."""
    listed = held.items(name)
    for entry in listed:
        if type(entry) is not int or not field.least <= entry <= field.most:
            of_layers = "numbers of layers" if field.kind == "numbers" else "whole numbers"
            raise errors.config_field_wrong(held.label, name, entry, f"{of_layers}, from {field.least}")
    return listed


def _each(field: Field, held: ConfigFields, name: str) -> list[Any]:
    """Return a number, true, false or null of each object in a list; ``name``: "list[].holder.name"."""
    listed, path = name.split("[].", 1)
    return [_inner(entry, path, ConfigFields(held.values, held.label), listed) for entry in held.items(listed)]


def _inner(entry: Any, path: str, config: ConfigFields, listed: str) -> Any:
    for part in path.split("."):
        entry = entry.get(part) if isinstance(entry, Mapping) else entry
    if entry is not None and (not isinstance(entry, (bool, int, float)) or abs(entry) > LARGEST):
        raise errors.config_field_wrong(config.label, f"{listed}[].{path}", entry, "a number, true, false or null")
    return entry


def _block(field: Field, held: ConfigFields, name: str) -> list[int]:
    """Return the sides of a block of weights."""
    block = held.items(name)
    if len(block) != 2 or not all(type(size) is int and size > 0 for size in block):
        raise errors.config_field_wrong(held.label, name, block, "two whole numbers above 0")
    return block


KINDS: dict[str, Callable[[Field, ConfigFields, str], Any]] = {
    "size": _size,
    "uniform": _uniform,
    "flag": lambda field, held, name: held.flag(name),
    "text": lambda field, held, name: held.text(name),
    "fraction": lambda field, held, name: held.fraction(name, default=1.0),
    "choice": _choice,
    "kinds": _kinds,
    "numbers": _list,
    "list": _list,
    "each": _each,
    "block": _block,
    "dynamic": lambda field, held, name: held.values[name] == "local" or held.flag(name),
    "any": lambda field, held, name: held.values[name],
}
"""Readers of a field by its kind; ``uniform``: a size, or a list of equal sizes; ``any``: only whether it is there;
``dynamic``: whether scales are computed at run time (true, or "local", a scale per block)."""
