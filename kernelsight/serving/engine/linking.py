"""One LLVM module an entry point: the rules that it calls are linked into it and optimised together, once.

By default numba optimises every function together with all that it calls and generates machine code for it, although
Python calls none of the rules: a rule far down was optimised ten times over, which was three quarters of the time of a
first compilation. Here a rule is only lowered to LLVM IR. The entry point links the IR of all rules and keeps them
internal to its module, so that LLVM may inline a rule that has one caller.

Written against numba's code generation in the versions of ``TESTED``; with any other one the rules are compiled by
numba's own pipeline: the same results, a longer first compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, update_wrapper
from typing import Any

import numba
from llvmlite import binding as llvm
from numba import _dynfunc, types
from numba.core.codegen import CodeLibrary, JITCodeLibrary
from numba.core.compiler import Compiler, CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering

from kernelsight.serving.engine.machine_code import EntryCache, announce_compiling

TESTED = ((0, 61), (0, 68))


class RuleLibrary(JITCodeLibrary):
    """The LLVM IR of one rule, and ``needed``: the libraries of all that it calls, callees before callers."""

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)
        self.needed: dict[CodeLibrary, None] = {}

    def add_linking_library(self, library: CodeLibrary) -> None:
        """Note a library, and those that it needs, for the entry point."""
        library._ensure_finalized()
        self.needed |= {**getattr(library, "needed", {}), library: None}

    def finalize(self) -> None:
        """Keep the IR as it is: nothing is linked, optimised or compiled here."""
        self._finalize_dynamic_globals()
        self._finalized = True


class EntryLibrary(RuleLibrary):
    """The machine code of an entry point with all its rules."""

    own: frozenset[str] = frozenset()

    def finalize(self) -> None:
        """Link callers before callees (LLVM drops what nothing refers to yet), then optimise and compile."""
        self.own = frozenset(one.name for one in self._final_module.functions if not one.is_declaration)
        self._linking_libraries = list(reversed(self.needed))
        JITCodeLibrary.finalize(self)

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            if not function.is_declaration and function.name not in self.own:
                function.linkage = "internal"
        self._drop_unused_words()
        super()._optimize_final_module()

    def _drop_unused_words(self) -> None:
        """Let calls hand over only the words of a tuple that are used: LLVM inlines by the number of arguments."""
        passes, builder = llvm.create_new_module_pass_manager(), self._codegen._pass_builder()
        passes.add_sroa_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.add_dead_arg_elimination_pass()
        passes.run(self._final_module, builder)


@register_pass(mutates_CFG=True, analysis_only=False)
class RuleLowering(NativeLowering):
    """Lower a rule to LLVM IR in a library of its own, without machine code."""

    _name = "rule_lowering"

    def run_pass(self, state: Any) -> bool:
        """Lower the typed IR of ``state``."""
        state.library = RuleLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        state.library._ensure_finalized()
        lowered, name = state["cr"], state.func_id.func_name
        # numba finds a callee by this object; without an address Python cannot call it
        handle = _dynfunc.make_function(lowered.fndesc.lookup_module(), name, "", 0, lowered.env, (state.library,))
        state.targetctx.insert_user_function(handle, lowered.fndesc, [state.library])
        state["cr"] = lowered._replace(cfunc=handle)
        return True


class RuleCompiler(CompilerBase):
    """Compiles a rule that only other rules and entry points call."""

    def define_pipelines(self) -> list[PassManager]:
        """Return numba's passes, with the lowering of rules."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [(RuleLowering if one is NativeLowering else one, why) for one, why in passes.passes]
        passes.finalize()
        return [passes]


class EntryCompiler(CompilerBase):
    """Compiles an entry point, which Python calls."""

    def define_pipelines(self) -> list[PassManager]:
        """Return numba's passes, with a library that links all rules."""
        self.state.library = EntryLibrary(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        self.state.library.enable_object_caching()
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.finalize()
        return [passes]


class RuleDispatcher(CPUDispatcher):
    """A rule: entry points and other rules may call it, Python may not."""

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Compile for the types of the arguments, not once more for each constant that is handed over."""
        return super().get_call_template(
            tuple(map(types.unliteral, args)), {name: types.unliteral(kind) for name, kind in kws.items()}
        )

    def add_overload(self, cres: Any) -> None:
        """Note what was compiled, out of reach of calls from Python: there is no address to call."""
        self.overloads[tuple(cres.signature.args)] = cres


class Rule:
    """A rule that numba knows once an entry point that needs it is compiled: to make all of them known takes longer
    than to read what was compiled.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.py_func, self._options = function, options

    @cached_property
    def dispatcher(self) -> RuleDispatcher:
        """The rule as numba knows it."""
        return RuleDispatcher(self.py_func, targetoptions=self._options, pipeline_class=_compilers()[0])

    @property
    def _numba_type_(self) -> types.Type:
        """What numba takes the rule for, where other code names it."""
        return self.dispatcher._numba_type_

    def __reduce__(self) -> tuple[Any, ...]:
        return Rule, (self.py_func, self._options)

    def __call__(self, *args: Any, **kws: Any) -> Any:
        raise TypeError(f"{self.__name__} is a rule of the scheduler; call it through entry({self.__name__}.py_func)")


class EntryDispatcher(CPUDispatcher):
    """An entry point: Python calls its machine code, rules and other entry points call it as a rule.

    ``notice``: logged when it is compiled rather than found in the cache.
    """

    def __init__(self, rule: Rule, options: dict[str, Any], notice: str = "") -> None:
        class Announced(_compilers()[1]):
            def compile_extra(self, func: Any) -> Any:
                if notice:
                    announce_compiling(notice)
                return super().compile_extra(func)

        super().__init__(rule.py_func, targetoptions=options, pipeline_class=Announced)
        self._rule = rule
        self._cache = EntryCache(self.py_func, lean=_is_tested())

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return how rules and other entry points call it: as a rule."""
        return self._rule.dispatcher.get_call_template(args, kws)

    def get_overload(self, sig: Any) -> Any:
        """Return what was compiled of the rule for a signature."""
        return self._rule.dispatcher.get_overload(sig)


def _compilers() -> tuple[type[CompilerBase], type[CompilerBase]]:
    """Return the compilers of rules and of entry points: numba's own where its version is none of ``TESTED``."""
    return (RuleCompiler, EntryCompiler) if _is_tested() else (Compiler, Compiler)


def _is_tested() -> bool:
    return TESTED[0] <= numba.version_info.short <= TESTED[1]
