"""Files of data over the fields of a config: what architectures and methods of quantisation have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kernelsight import errors
from kernelsight.errors import InvalidInput
from kernelsight.files.forms import line_of
from kernelsight.models.config_fields import KINDS, ConfigFields, Field
from kernelsight.models.expressions import WORDS, Expression, Impossible, Malformed, read_expression

SCALAR = (str, int, float, bool, type(None))
FIELD = {
    **{"kind": str, "names": [str], "least": int, "most": int, "values": {"*": SCALAR}, "absent": [(*SCALAR, list)]},
    **{"default": SCALAR, "required": bool},
}
"""Form of a declared field; see :func:`~kernelsight.files.forms.misfit`."""


class FieldFile:
    """The reading of one file: compiles its entries, and names it and the line in errors."""

    def __init__(self, kind: str, origin: str, text: str) -> None:
        self.kind, self.origin, self.text, self.known = kind, origin, text, frozenset[str]()

    def wrong(self, name: str, problem: str) -> InvalidInput:
        """Return the error for an entry."""
        return InvalidInput(f"{self.kind} {self.origin}, line {line_of(self.text, name)}: {name}: {problem}.")

    def fields(self, declared: Mapping[str, Any], bound: Iterable[str] = ()) -> dict[str, Field]:
        """Return declared fields; from then on expressions may name them, and what is ``bound``."""
        fields = {name: self._field(name, value) for name, value in declared.items()}
        self.known = frozenset({*fields, *bound})
        for name, value in declared.items():
            if "default" in value:
                default = self.expression("default", value["default"])
                fields[name] = fields[name]._replace(default=default.evaluate)
        return fields

    def _field(self, name: str, declared: Any) -> Field:
        """Return a declared field without its default."""
        if declared.get("kind", "size") not in KINDS:
            raise self.wrong(name, f"a field has a kind: {', '.join(KINDS)}")
        lists = {key: tuple(declared[key]) for key in ("names", "absent") if key in declared}
        rest = {key: value for key, value in declared.items() if key != "default"}
        return Field(name, **rest | lists)

    def expression(self, name: str, value: Any) -> Expression:
        """Return the expression of an entry: a text, or a plain number, true, false or null."""
        if value is None or isinstance(value, (bool, int, float)):
            return Expression(str(value), value=value)
        try:
            expression = read_expression(str(value))
        except Malformed as problem:
            raise self.wrong(name, f"{value!r}: {problem}") from None
        unknown = [each for each in expression.names if each not in self.known]
        if unknown:
            near = " or ".join(errors.nearest(unknown[0], {*self.known, *WORDS}))
            raise self.wrong(
                name, f"{value!r}: there is no field {unknown[0]!r}" + (f"; did you mean {near}?" if near else "")
            )
        return expression


class FieldScope(dict):
    """The values that expressions refer to: fields of a config, read when they are needed, and functions."""

    def __init__(self, fields: Mapping[str, Field], config: ConfigFields) -> None:
        super().__init__(has=lambda name: fields[name].place(config) is not None, length=len, int=int, min=min, max=max)
        self.fields, self.config = fields, config

    def __missing__(self, name: str) -> Any:
        try:
            value = self.fields[name].read(self.config, self)
        except Impossible as problem:  # in the expression of its default
            raise Impossible(problem.name, problem.value, f"{problem.expected}, or {name} must be given") from None
        self[name] = value
        return value

    def value(self, expression: Expression) -> Any:
        """Return the value of an expression; InvalidInput blames a field for which it has none."""
        try:
            return expression.evaluate(self)
        except Impossible as problem:
            raise self.wrong(problem.name, problem.value, problem.expected) from None
        except (TypeError, ValueError, ArithmeticError, RecursionError) as problem:
            raise InvalidInput(
                f"config of {self.config.label}: {expression.text!r} has no value for it ({problem})."
            ) from None

    def spelling(self, name: str) -> str:
        """Return the name of a field in this config."""
        return self.fields[name].label_name(self.config)[1]

    def wrong(self, name: str, value: Any, expected: str) -> InvalidInput:
        """Return the error for a field with an unusable value; of a list of layers that is its number of entries."""
        field = self.fields.get(name)
        if field is not None and field.kind == "kinds" and isinstance(value, int):
            value, expected = f"{value} entries", f"a list of num_hidden_layers ({self['layer_count']}) entries"
        label, spelling = field.label_name(self.config) if field else (self.config.label, name)
        return errors.config_field_wrong(label, spelling, value, expected)
