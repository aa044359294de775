"""Architectures: files of data that turn the fields of a config.json into the shape of a model.

A file (YAML, one per family, in ``kernelsight/catalog/architectures`` or a user's own) states the classes that it
reads, the fields of their config with kinds, ranges and defaults, and expressions over these fields: for the columns of
``models``, and for the attention and feed-forward of each layer. ``docs/extending/architectures.md`` describes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight import errors
from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_files import read_text
from kernelsight.files.bounded_values import parse_yaml
from kernelsight.files.budget import ARCHITECTURE
from kernelsight.files.forms import line_of, misfit
from kernelsight.models.config_fields import ConfigFields, Field, longest_context
from kernelsight.models.expressions import Expression
from kernelsight.models.field_files import FIELD, SCALAR, FieldFile, FieldScope
from kernelsight.number_format import number

if TYPE_CHECKING:
    from kernelsight.dataflow.types import Column

FOLDER = Path(__file__).parent.parent / "catalog" / "architectures"
# far above any model: a typo must not make a list of a billion layers
MOST_LAYERS = 10_000
EXPRESSIONS = {"*": SCALAR}
SECTIONS = {
    **{"architectures": [str], "like": [str, [str]], "source": str},
    "fields": {"*": [SCALAR, FIELD]},
    **{"layers": EXPRESSIONS, "columns": EXPRESSIONS, "modules": {"*": [str]}},
    "products": {"*": {"for": [str], "format": str, "n": [SCALAR, EXPRESSIONS], "k": [SCALAR, EXPRESSIONS]}},
    "checks": [{"holds": SCALAR, "field": str, "expected": str}],
    "notes": [{"when": SCALAR, "note": str}],
}
"""Form of a file; see :func:`~kernelsight.files.forms.misfit`."""
KINDS_OF_LAYERS = ("count", "attention", "ffn")
# sizes of a layer that an architecture states where they differ from those of the model
SIZES = (
    *("heads", "kv_heads", "head_dim", "v_head_dim", "window", "intermediate", "experts", "top_k"),
    *("shared_intermediate", "index_heads", "expert_hidden", "compression", "shared_cache"),
    "value_projections",
)
# what the sides of a further product are multiples of: numbers of a layer on one GPU
UNITS = ("one", "heads", "kv_heads", "intermediate", "shared_intermediate")
TYPES = {"int64": (int, "a whole number"), "string": (str, "text"), "bool": (bool, "true or false")}
# names in expressions that are no fields
BOUND = ("layer", "layer_count")


class Shape(NamedTuple):
    """What an architecture makes of a config: columns of ``models``, and each layer's attention and feed-forward."""

    columns: dict[str, Any]
    attention: list[str]  # of each layer, as ``model_layers`` names them
    ffn: list[str]  # of each layer
    sizes: list[dict[str, Any]]  # of each layer: those that differ from the model's, and its further products
    notes: tuple[str, ...]  # sentences on what is not modelled
    modules: dict[str, list[str]]  # module names of matrices by class


class Check(NamedTuple):
    """A condition on a config: the field to blame where it does not hold, and what it must be."""

    holds: Expression
    field: str
    expected: str


class Product(NamedTuple):
    """A matrix product that some layers have beyond those of their kind: sides n and k, in multiples of units."""

    name: str
    kinds: tuple[str, ...]  # of attention or feed-forward
    format: str
    sides: tuple[tuple[Expression, str], tuple[Expression, str]]


class Architecture(NamedTuple):
    """A family of architectures, as its file and those that it is like declare it."""

    origin: str
    fields: dict[str, Field]
    layers: dict[str, Expression]
    columns: dict[str, Expression]
    products: tuple[Product, ...]
    modules: dict[str, list[str]]
    checks: tuple[Check, ...]
    notes: tuple[tuple[Expression, str], ...]


def architecture_of(name: object, label: str, own: Path | None = None) -> Architecture:
    """Return the architecture of a class named in a config, from the user's ``own`` file or the catalogue.

    InvalidInput: no file reads the class.
    """
    files = _files() if own is None else {**_files(), str(own): _content(own)}
    by_class = {each: stem for stem, content in files.items() for each in content.get("architectures", ())}
    if not isinstance(name, str) or name not in by_class:
        refused = errors.config_unsupported(label, "architecture", name, sorted(by_class))
        raise InvalidInput(f"{refused} State how another is read with --architecture FILE, or use --model-like M.")
    return _known(by_class[name]) if own is None else _architecture(by_class[name], files, str(own))


@cache
def _files() -> dict[str, dict[str, Any]]:
    """Return the content of every file of the catalogue by its stem."""
    from kernelsight.caches.disk_cache import cached_for_program
    from kernelsight.catalog.tables import program

    paths = sorted(FOLDER.glob("*.yaml"))
    return cached_for_program(program(), "architectures", lambda: {path.stem: _content(path) for path in paths})


def _content(path: Path) -> dict[str, Any]:
    """Return the sections of a file; InvalidInput: it is not YAML, or has other sections."""

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"architecture file {path} {problem}.")

    text = read_text(path, refuse, ARCHITECTURE)
    documents = parse_yaml(text, refuse, ARCHITECTURE)
    content = documents[0] if len(documents) == 1 else None
    if not isinstance(content, dict):
        raise refuse("is not one YAML mapping")
    if content and not SECTIONS.keys() & content.keys():
        raise refuse(f"has none of the sections {', '.join(SECTIONS)}")
    if found := misfit(content, SECTIONS):
        *place, expected = found
        line = max(line_of(text, name) for name in place)
        raise InvalidInput(f"architecture file {path}, line {line}: {'.'.join(place)} must be {expected}.")
    return content | {"text": text}


@cache
def _known(stem: str) -> Architecture:
    return _architecture(stem, _files())


def _architecture(stem: str, files: Mapping[str, dict[str, Any]], own: str = "") -> Architecture:
    """Return the compiled architecture of a file, merged with those that it is like; ``own``: the user's file."""
    merged = _merged(stem, files)
    reading = _ArchitectureFile(stem if stem == own else f"{stem}.yaml", merged["text"])
    fields = reading.fields(merged["fields"], BOUND)
    own_columns = _own_columns()
    for section, may, must in (
        ("layers", {*KINDS_OF_LAYERS, *SIZES}, KINDS_OF_LAYERS),
        ("columns", {each.name for each in own_columns}, [each.name for each in own_columns if not each.nullable]),
    ):
        if unknown := sorted(set(merged[section]) - may):
            near = " or ".join(errors.nearest(unknown[0], may)) or "another name"
            raise reading.wrong(unknown[0], f"there is none among {section}; did you mean {near}?")
        if missing := [name for name in must if name not in merged[section]]:
            raise reading.wrong(section, f"they lack {', '.join(missing)}; be like decoder, or state them")
    return Architecture(
        reading.origin,
        fields,
        {name: reading.expression(name, value) for name, value in merged["layers"].items()},
        {name: reading.expression(name, value) for name, value in merged["columns"].items()},
        tuple(reading.product(name, value) for name, value in merged["products"].items()),
        merged["modules"],
        tuple(reading.check(entry) for entry in merged["checks"]),
        tuple(
            (reading.expression("when", entry.get("when", True)), entry.get("note", "")) for entry in merged["notes"]
        ),
    )


@cache
def _own_columns() -> tuple[Column, ...]:
    """Return the columns of ``models`` that an architecture states: not its name, formats, or what is read beside."""
    from kernelsight.catalog.tables import contracts

    beside = """
        model huggingface_id architecture layer_count dtype notes source mtp_format
        attention_format ffn_format expert_format activation_scales kv_cache_format
    """.split()
    return tuple(column for column in contracts()["models"].columns if column.name not in beside)


@cache
def _kinds(name: str) -> tuple[str, ...]:
    """Return the kinds of attention, or of ``ffn``, that a layer may have, as ``model_layers`` declares them."""
    from kernelsight.catalog.tables import contracts

    return next(column.allowed for column in contracts()["model_layers"].columns if column.name == name)


def _merged(stem: str, files: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the sections of a file over those of the files that it is like; lists are joined, mappings updated."""
    merged: dict[str, Any] = {name: {} for name in ("fields", "layers", "columns", "products", "modules")}
    merged |= {"checks": [], "notes": []}
    for part in _lineage(stem, files, ()):
        for name, value in merged.items():
            added = files[part].get(name, type(value)())
            merged[name] = added + value if isinstance(value, list) else value | _declared(name, value, added)
    return merged | {"text": files[stem]["text"]}


def _lineage(stem: str, files: Mapping[str, dict[str, Any]], below: tuple[str, ...]) -> list[str]:
    """Return the files that a file is like, the most general first, each once, and itself."""
    if stem not in files or stem in below:
        reason = "is like itself" if stem in below else "is no architecture file"
        raise InvalidInput(f"architecture file {below[-1] if below else stem}: {stem!r} {reason}.")
    like = files[stem].get("like", [])
    above = [_lineage(name, files, (*below, stem)) for name in ([like] if isinstance(like, str) else like)]
    return [*dict.fromkeys(name for line in above for name in line), stem]


def _declared(section: str, known: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Return declarations over known ones; of fields, a plain value states a default, ``required`` takes it away."""
    if section != "fields":
        return dict(added)
    fields = {}
    for name, value in added.items():
        field = known.get(name, {}) | (value if isinstance(value, dict) else {"default": value})
        if field.pop("required", False):
            field.pop("default", None)
        fields[name] = field
    return fields


class _ArchitectureFile(FieldFile):
    """The reading of an architecture file: its products and checks."""

    kind = "architecture file"

    def product(self, name: str, declared: Any) -> Product:
        """Return a further product of layers."""
        declared = {"format": "ffn"} | declared
        kinds, known = declared.get("for"), {*_kinds("attention"), *_kinds("ffn")}
        if set(declared) != {"for", "format", "n", "k"} or not set(kinds) <= known:
            raise self.wrong(name, "a product states for (kinds of layers), n, k, and format")
        if declared["format"] not in ("attention", "ffn", "expert", "dtype"):
            raise self.wrong(name, "the format of a product is attention, ffn, expert or dtype")
        sides = []
        for side in ("n", "k"):
            value = declared[side] if isinstance(declared[side], dict) else {"one": declared[side]}
            if len(value) != 1 or not set(value) <= set(UNITS):
                raise self.wrong(name, f"{side} is an expression, or one for each of {', '.join(UNITS[1:])}")
            sides += [(self.expression(name, expression), unit) for unit, expression in value.items()]
        return Product(name, tuple(kinds), declared["format"], (sides[0], sides[1]))

    def check(self, entry: Any) -> Check:
        """Return a condition on a config."""
        if set(entry) != set(Check._fields) or entry["field"] not in self.known:
            raise self.wrong("checks", f"each has {', '.join(Check._fields)}, and its field is a declared one")
        return Check(self.expression("holds", entry["holds"]), str(entry["field"]), str(entry["expected"]))


class _Scope(FieldScope):
    """The values that expressions of an architecture refer to: also its layers, and functions over them."""

    def __init__(self, architecture: Architecture, config: ConfigFields) -> None:
        super().__init__(architecture.fields, config)
        self.architecture = architecture
        self.attention: list[str] = []
        self.ffn: list[str] = []
        self["count"] = lambda kind: self.attention.count(kind) + self.ffn.count(kind)
        self["yarn"] = lambda positions: longest_context(config, positions)

    def __missing__(self, name: str) -> Any:
        if name != "layer_count":
            return super().__missing__(name)
        count = self.architecture.layers["count"]
        layers = self.value(count)
        if type(layers) is not int or not 1 <= layers <= MOST_LAYERS:
            expected = f"of 1 to {number(MOST_LAYERS)} layers"
            raise FieldScope.wrong(self, (*count.names, "count")[0], f"{layers} layers", expected)
        self["layer_count"] = layers
        return layers

    def wrong(self, name: str, value: Any, expected: str) -> InvalidInput:
        """Return the error for a field with an unusable value."""
        field = self.fields.get(name)
        if field is not None and field.kind == "kinds" and isinstance(value, int):
            value, expected = f"{value} entries", f"a list of num_hidden_layers ({self['layer_count']}) entries"
        return super().wrong(name, value, expected)


def shape_of(architecture: Architecture, config: ConfigFields) -> Shape:
    """Return the shape that an architecture makes of a config; InvalidInput: a field is missing or has another value.

    A sliding window as long as the context sees everything, so that its layers are full.
    """
    scope = _Scope(architecture, config)
    scope.attention, scope.ffn = (
        list(_of_layers(scope, architecture.layers[name], name, known))
        for name, known in (("attention", _kinds("attention")), ("ffn", _kinds("ffn")))
    )
    sizes = [_sizes_of(scope, layer) for layer in range(scope["layer_count"])]
    for name, field in architecture.fields.items():
        # lists of layers are checked whether or not an expression reads them
        is_listed = field.kind in ("kinds", "numbers") and field.place(config) is not None
        value = scope[name] if is_listed else []
        if field.kind == "kinds" and len(value) not in (0, scope["layer_count"]):
            raise scope.wrong(name, len(value), "")
        if field.kind == "numbers" and value and max(value) >= field.least + scope["layer_count"]:
            last = field.least + scope["layer_count"] - 1
            raise scope.wrong(name, max(value), f"numbers of layers, {field.least} to {last}")
    evaluated = {name: each for name, each in architecture.columns.items() if name != "sliding_window"}
    columns = {"layer_count": scope["layer_count"], "sliding_window": None}
    columns["max_positions"] = _whole(scope, "max_positions", evaluated.pop("max_positions"))
    if "sliding" in scope.attention:
        window = _whole(scope, "sliding_window", architecture.columns["sliding_window"])
        if window >= columns["max_positions"]:
            scope.attention = ["full" if kind == "sliding" else kind for kind in scope.attention]
        else:
            columns["sliding_window"] = window
    columns |= {name: scope.value(each) for name, each in evaluated.items()}
    for column in _own_columns():
        value = columns.get(column.name)
        kind, words = TYPES[column.type]
        if type(value) is not kind and not (value is None and column.nullable):
            raise _wrong_value(scope, column.name, value, words)
    for check in architecture.checks:
        if not scope.value(check.holds):
            stated = architecture.fields[check.field].place(config)
            value = stated[0].values[stated[1]] if stated else scope[check.field]
            expected = _filled(check.expected, scope, lambda name: f"{scope.spelling(name)} ({scope[name]})")
            raise errors.config_field_wrong(*architecture.fields[check.field].label_name(config), value, expected)
    notes = tuple(
        _filled(note, scope, lambda name: number(scope[name])) for when, note in architecture.notes if scope.value(when)
    )
    return Shape(columns, scope.attention, scope.ffn, sizes, notes, architecture.modules)


def _whole(scope: _Scope, name: str, expression: Expression) -> int:
    """Return the value of an expression, a whole number of at least 0."""
    value = scope.value(expression)
    if type(value) is not int or value < 0:
        raise _wrong_value(scope, name, value, "a whole number of at least 0")
    return value


def _wrong_value(scope: _Scope, name: str, value: Any, expected: str) -> InvalidInput:
    origin = scope.architecture.origin
    return InvalidInput(f"architecture file {origin}: {name} is {value!r} for this config, but must be {expected}.")


def _sizes_of(scope: _Scope, layer: int) -> dict[str, Any]:
    """Return the sizes of a layer that the architecture states, and its further products where it has some."""
    scope["layer"] = layer
    kinds = (scope.attention[layer], scope.ffn[layer])
    layers = scope.architecture.layers
    sizes = {name: scope.value(layers[name]) for name in SIZES if name in layers}
    sizes = {name: _whole(scope, name, layers[name]) for name, value in sizes.items() if value is not None}
    products = [
        {"name": product.name, "format": product.format}
        | {
            f"{side}{of}": value
            for side, (size, unit) in zip("nk", product.sides, strict=True)
            for of, value in (("", _whole(scope, product.name, size)), ("_of", unit))
        }
        for product in scope.architecture.products
        if {*kinds} & {*product.kinds}
    ]
    products = [product for product in products if product["n"] and product["k"]]
    return sizes | ({"products": products} if products else {})


def _filled(text: str, scope: _Scope, written: Callable[[str], str]) -> str:
    """Return a text with what is written for the fields that it names in braces."""
    return re.sub(r"\{(\w+)\}", lambda found: written(found[1]) if found[1] in scope.fields else found[0], text)


def _of_layers(scope: _Scope, expression: Expression, name: str, known: Iterable[str]) -> Iterable[str]:
    """Yield the kind of each layer."""
    for layer in range(scope["layer_count"]):
        scope["layer"] = layer
        kind = scope.value(expression)
        if kind not in known:
            raise InvalidInput(
                f"architecture file {scope.architecture.origin}: {name} of layer {layer} is {kind!r}, but must be one "
                f"of {', '.join(known)}."
            )
        yield kind
