"""Forms of parsed documents that a person wrote: the first part that has another form, and its line."""

from __future__ import annotations

import re
from typing import Any


def misfit(value: Any, form: Any) -> tuple[str, ...] | None:
    """Return the path to the first part of a value that has another form, with what it must be; None: it fits.

    A form is a type or several, a set of texts, ``[form]`` a list of it, ``{"*": form}`` a mapping to it, another
    mapping the entries that there may be, ``name!`` those that there must be, and a list of two or more forms any of
    them.

    >>> misfit({"names": ["a", 1]}, {"names": [str]}), misfit("full", [str, [str]])
    (('names', 'text'), None)
    >>> misfit({"a": {}}, {"*": {"when": str, "note!": str}}), misfit("b", {"a"})
    (('a', 'a mapping with note'), ('a',))
    """
    if isinstance(form, list) and len(form) > 1:
        found = [misfit(value, each) for each in form]
        return None if None in found else max((each for each in found if each), key=len)
    if isinstance(form, list):
        if not isinstance(value, list):
            return ("a list",)
        return next((found for item in value if (found := misfit(item, form[0]))), None)
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return ("a mapping",)
        known = {name.rstrip("!"): inner for name, inner in form.items()}
        if needed := [name[:-1] for name in form if name[-1] == "!" and name[:-1] not in value]:
            return (f"a mapping with {', '.join(needed)}",)
        for name, item in value.items():
            if name not in known and "*" not in known:
                return (str(name), f"one of the known names: {', '.join(known)}")
            if found := misfit(item, known.get("*", known.get(name))):
                return (str(name), *found)
        return None
    if isinstance(form, set):
        return None if isinstance(value, str) and value in form else (" or ".join(sorted(form)),)
    if isinstance(value, form) and not (isinstance(value, bool) and form is int):
        return None
    words = {str: "text", int: "a whole number", bool: "true or false"}
    return (words.get(form, "text, a number, true, false or null"),)


def line_of(text: str, name: str) -> int:
    """Return the number of the first line that begins with a name; 1 where there is none."""
    found = re.search(rf"^[ \-]*['\"]?{re.escape(name)}['\"]?:", text, re.M)
    return text.count("\n", 0, found.start()) + 1 if found else 1
