"""Rules of the scheduler: functions that numba compiles when an entry point needs them.

Nothing here imports numba before that: its import alone takes as long as the rest of a short simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, update_wrapper
from typing import Any


class Rule:
    """A function that entry points and other rules call; Python cannot."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.py_func, self.options = function, options

    @cached_property
    def dispatcher(self) -> Any:
        """Numba's dispatcher of the rule."""
        from kernelsight.serving.compilation.linking import rule_dispatcher

        return rule_dispatcher(self.py_func, self.options)

    @property
    def _numba_type_(self) -> Any:
        """The numba type of the rule, for code that refers to it."""
        return self.dispatcher._numba_type_

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.py_func, self.options)

    def __call__(self, *args: Any, **kws: Any) -> Any:
        raise TypeError(f"{self.__name__} is a rule of the scheduler; call it through entry({self.__name__}.py_func)")


class WrittenOut:
    """A function whose body numba inlines into the rules that call it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        # attributes that numba's inlining reads
        self.py_func, self.targetoptions = function, {"inline": "always"}

    @cached_property
    def dispatcher(self) -> Any:
        """Numba's dispatcher of the function."""
        import numba

        return numba.njit(**self.targetoptions)(self.py_func)

    @property
    def _numba_type_(self) -> Any:
        """The numba type of the function, for code that refers to it."""
        return self.dispatcher._numba_type_
