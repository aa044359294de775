"""Typed reads of config.json fields: each checks type and range, and raises InvalidInput with the field's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kernelsight import errors

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
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
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
