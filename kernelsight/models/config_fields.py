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


def _scalings(fields: ConfigFields) -> list[ConfigFields]:
    """Return the objects that scale positions; newer configs have one more within for each kind of layer."""
    found = (fields.inside(name, default=None) for name in ("rope_scaling", "rope_parameters"))
    return [scaling for scaling in found if scaling is not None]


def check_rope(fields: ConfigFields) -> None:
    """Raise InvalidInput for RoPE scaling that is no object, or with a factor that is no finite number above 0."""
    for scaling in _scalings(fields):
        nested = [scaling.inside(key) for key, value in scaling.values.items() if isinstance(value, Mapping)]
        for parameters in (scaling, *nested):
            for factor in FACTORS:
                value = parameters.values.get(factor)
                if value is not None and not _is_factor(value):
                    raise parameters.wrong(factor, "a finite number above 0")


def longest_context(fields: ConfigFields, positions: int) -> int:
    """Return the longest context, tokens: with YaRN original positions times factor where that exceeds ``positions``.

    As engines do for a checkpoint whose max_position_embeddings is that of its training.
    """
    for scaling in _scalings(fields):
        trained, factor = (scaling.values.get(field) for field in ("original_max_position_embeddings", "factor"))
        is_yarn = (scaling.values.get("rope_type") or scaling.values.get("type")) == "yarn"
        if is_yarn and _is_factor(trained) and _is_factor(factor):
            if trained * factor > LARGEST:
                raise scaling.wrong("factor", f"one that reaches at most {LARGEST} tokens")
            return max(positions, int(trained * factor))
    return positions


def _is_factor(value: Any) -> bool:
    return is_number(value) and value > 0


LARGEST = 2**40
"""Largest size of a field: far above any model's; sums of products of sizes fit 64 bits (``limits.check_total``)."""
REQUIRED: Any = object()
"""Default of a field that must be present: its absence is an error."""


class ConfigFields(NamedTuple):
    """The fields of one config, and the label (file or model) that errors name; null counts as missing.

    >>> fields = ConfigFields({"hidden_size": 4096, "head_dim": None}, "my-model")
    >>> fields.read("hidden_size"), fields.read("head_dim", default=None)
    (4096, None)
    """

    values: Mapping[str, Any]
    label: str

    def read(self, *names: str, default: Any = REQUIRED, **rule: Any) -> Any:
        """Return the first present field of ``names``, checked as a ``Field`` of that rule, or ``default``."""
        name = next((name for name in names if self.values.get(name) is not None), None)
        if name is None and default is REQUIRED:
            raise errors.config_field_missing(self.label, names[0])
        field = Field(names[0], **rule)
        return default if name is None else KINDS[field.kind](field, self, name)

    def inside(self, name: str, default: None = REQUIRED) -> ConfigFields | None:
        """Return the fields of a nested object, with "label, name" as their label; None where the field is absent."""
        value = self.values.get(name)
        if value is None and default is REQUIRED:
            raise errors.config_field_missing(self.label, name)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(name, "an object")
        return None if value is None else ConfigFields(value, f"{self.label}, {name}")

    def wrong(self, name: str, expected: str) -> errors.InvalidInput:
        """Return the error for a field with an unusable value."""
        return errors.config_field_wrong(self.label, name, self.values[name], expected)


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
    value = held.values[name]
    if type(value) is int and field.least <= value <= field.most:
        return value
    if type(value) is int and value > field.most:
        raise held.wrong(name, f"a whole number of at most {field.most}")
    raise held.wrong(name, "a whole number " + ("above 0" if field.least == 1 else f"of at least {field.least}"))


def _uniform(field: Field, held: ConfigFields, name: str) -> int:
    """Return a size that is one number, or a list of equal numbers, one per layer."""
    value = held.values[name]
    if isinstance(value, list) and value and all(item == value[0] for item in value):
        held = ConfigFields({name: value[0]}, held.label)
    return _size(field, held, name)


def _such(holds: Callable[[Any], bool], expected: str) -> Callable[[Field, ConfigFields, str], Any]:
    """Return the reader of a field whose value must be such that ``holds``."""

    def read(field: Field, held: ConfigFields, name: str) -> Any:
        if not holds(held.values[name]):
            raise held.wrong(name, expected)
        return held.values[name]

    return read


_flag = _such(lambda value: type(value) is bool, "true or false")
_items = _such(lambda value: isinstance(value, list), "a list")


def _choice(field: Field, held: ConfigFields, name: str) -> Any:
    value = held.values[name]
    if not isinstance(value, str) or value not in field.values:
        raise errors.config_unsupported(held.label, name, value, sorted(field.values))
    return field.values[value]


def _kinds(field: Field, held: ConfigFields, name: str) -> list[Any]:
    """Return a list with an entry a layer, or a text with a letter a layer, translated by ``values``."""
    listed = list(held.values[name]) if isinstance(held.values[name], str) else _items(field, held, name)
    known = {str(key): value for key, value in field.values.items()}
    for entry in listed:
        if isinstance(entry, bool) or not isinstance(entry, (str, int)) or str(entry) not in known:
            raise errors.config_unsupported(held.label, f"{name} entry", entry, sorted(known))
    return [known[str(entry)] for entry in listed]


def _list(field: Field, held: ConfigFields, name: str) -> list[int]:
    """Return a list of whole numbers from ``least`` on; ``numbers``: of layers, of which that is the first."""
    for entry in _items(field, held, name):
        if type(entry) is not int or not field.least <= entry <= field.most:
            of_layers = "numbers of layers" if field.kind == "numbers" else "whole numbers"
            raise errors.config_field_wrong(held.label, name, entry, f"{of_layers}, from {field.least}")
    return held.values[name]


def _each(field: Field, held: ConfigFields, name: str) -> list[Any]:
    """Return a number, true, false or null of each object in a list; ``name``: "list[].holder.name"."""
    listed, path = name.split("[].", 1)
    return [_inner(entry, path, held, listed) for entry in _items(field, held, listed)]


def _inner(entry: Any, path: str, held: ConfigFields, listed: str) -> Any:
    for part in path.split("."):
        entry = entry.get(part) if isinstance(entry, Mapping) else entry
    if entry is not None and (not isinstance(entry, (bool, int, float)) or abs(entry) > LARGEST):
        raise errors.config_field_wrong(held.label, f"{listed}[].{path}", entry, "a number, true, false or null")
    return entry


def _is_block(value: Any) -> bool:
    """Return whether a value has the sides of a block of weights."""
    return isinstance(value, list) and len(value) == 2 and all(type(size) is int and size > 0 for size in value)


KINDS: dict[str, Callable[[Field, ConfigFields, str], Any]] = {
    "size": _size,
    "uniform": _uniform,
    "flag": _flag,
    "text": _such(lambda value: isinstance(value, str), "a string"),
    "fraction": _such(lambda value: is_number(value) and 0 < value <= 1, "a number above 0 and at most 1"),
    "choice": _choice,
    "kinds": _kinds,
    "numbers": _list,
    "list": _list,
    "items": _items,
    "each": _each,
    "block": _such(_is_block, "two whole numbers above 0"),
    "dynamic": lambda field, held, name: held.values[name] == "local" or _flag(field, held, name),
    "any": lambda field, held, name: held.values[name],
}
"""Readers of a field by its kind; ``uniform``: a size, or a list of equal sizes; ``any``: only whether it is there;
``dynamic``: whether scales are computed at run time (true, or "local", a scale per block); ``items``: any list."""
