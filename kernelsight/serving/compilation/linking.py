"""Links all rules of an entry point into one LLVM module, which is optimised and compiled once.

By default numba optimises every function together with all that it calls and generates machine code for it, although
Python calls none of the rules: a rule deep in the call graph was optimised ten times, which was three quarters of the
time of a first compilation. Here a rule is only lowered to LLVM IR. The entry point links the IR of all rules and makes
them internal to its module, so that LLVM may inline a rule with one caller; its object file does not need numba.

Written against numba's code generation in the versions of ``TESTED``; with any other one the rules are compiled by
numba's own pipeline: the same results, a longer first compilation.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import binding as llvm
from numba import _dynfunc, types
from numba.core.codegen import CodeLibrary, JITCodeLibrary
from numba.core.compiler import Compiler, CompilerBase, CompileResult, DefaultPassBuilder
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering
from numba.np.numpy_support import from_dtype

from kernelsight.serving.compilation.arguments import is_array
from kernelsight.serving.compilation.machine_code import SYMBOL, Code

# thresholds of the garbage collector while rules are compiled
SELDOM = (100_000, 50, 100)
TESTED = ((0, 61), (0, 68))
SCALARS = {"?": types.boolean, "q": types.int64, "d": types.float64}
# words of a function's arguments, by LLVM's types; pointers to its result and its exception come first
WORDS = {"i64": "q", "double": "d", "i8": "?", "i1": "?"}
WITH_STAR = 0x04  # flag of a code object: its last argument is *args


class RuleLibrary(JITCodeLibrary):
    """The LLVM IR of one rule; ``needed``: the libraries of all rules that it calls, callees before callers."""

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)
        self.needed: dict[CodeLibrary, None] = {}

    def add_linking_library(self, library: CodeLibrary) -> None:
        """Record a library, and those that it needs, for the entry point."""
        library._ensure_finalized()
        self.needed |= {**getattr(library, "needed", {}), library: None}

    def finalize(self) -> None:
        """Keep the IR as it is: nothing is linked, optimised or compiled here."""
        self._finalize_dynamic_globals()
        self._finalized = True


class EntryLibrary(JITCodeLibrary):
    """A rule that Python calls, linked with all rules that it calls into an object file independent of numba."""

    def __init__(self, rule: CompileResult) -> None:
        library = rule.library
        super().__init__(library.codegen, f"entry {rule.fndesc.qualname}")
        self._entry = rule.fndesc.llvm_func_name
        self._final_module = library._final_module.clone()
        # callers before callees: LLVM drops what nothing refers to yet
        self._linking_libraries = list(reversed(getattr(library, "needed", {})))
        self.is_lasting = not any(one.has_dynamic_globals for one in (library, *self._linking_libraries))

    def object_code(self) -> Code:
        """Link, optimise and compile; the type of the result is not set yet."""
        self.finalize()
        function = self._final_module.get_function(SYMBOL)
        kinds = [str(one.type) for one in function.arguments]
        words = [WORDS.get(kind, "q" if kind.endswith(("*", "ptr")) else "other") for kind in kinds]
        return Code("".join(words[2:]), "", self._codegen._tm.emit_object(self._final_module))

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            if not function.is_declaration:
                function.linkage = "external" if function.name == self._entry else "internal"
        for value in self._final_module.global_variables:
            if not value.is_declaration:
                value.linkage = "internal"
        self._final_module.get_function(self._entry).name = SYMBOL
        self._drop_unused_words()
        super()._optimize_final_module()

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def _drop_unused_words(self) -> None:
        """Remove unused words of tuples from calls: LLVM decides on inlining by the number of arguments."""
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
        """Return numba's passes, with ``RuleLowering`` as the lowering."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [(RuleLowering if one is NativeLowering else one, why) for one, why in passes.passes]
        passes.finalize()
        return [passes]


class RuleDispatcher(CPUDispatcher):
    """A rule: entry points and other rules may call it, Python may not."""

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Compile for the types of the arguments, not again for each constant that is passed."""
        return super().get_call_template(
            tuple(map(types.unliteral, args)), {name: types.unliteral(kind) for name, kind in kws.items()}
        )

    def add_overload(self, cres: Any) -> None:
        """Record a compiled overload where Python cannot call it: it has no address."""
        self.overloads[tuple(cres.signature.args)] = cres


@global_compiler_lock
def compile_entry(rule: Any, kinds: tuple) -> tuple[Code, bool]:
    """Return the machine code of a rule for arguments of these kinds, and whether other processes may use it."""
    args = tuple(_type_of(kind) for kind in kinds)
    thresholds = gc.get_threshold()
    gc.set_threshold(*SELDOM)  # millions of objects are created, and nearly all live to the end
    try:
        return _compiled_entry(rule, args)
    finally:
        gc.set_threshold(*thresholds)


def _compiled_entry(rule: Any, args: tuple) -> tuple[Code, bool]:
    code = rule.py_func.__code__
    if code.co_flags & WITH_STAR:
        args = (*args[: code.co_argcount], types.BaseTuple.from_types(args[code.co_argcount :]))
    rule.dispatcher.compile(args)
    compiled = rule.dispatcher.overloads[args]
    library = EntryLibrary(compiled)
    return library.object_code()._replace(answer=str(compiled.fndesc.restype)), library.is_lasting


def _type_of(kind: Any) -> types.Type:
    """Return numba's type of a kind of arguments (``entries``)."""
    if is_array(kind):
        dtype, ndim, flags = kind
        layout, readonly = "C" if flags & 1 else "A", not flags & ~1
        return types.Array(from_dtype(dtype), ndim, layout, readonly=readonly)
    if isinstance(kind, tuple):
        return types.BaseTuple.from_types([_type_of(each) for each in kind])
    return from_dtype(kind) if isinstance(kind, np.dtype) else SCALARS[kind]


def rule_dispatcher(function: Callable[..., Any], options: dict[str, Any]) -> RuleDispatcher:
    """Return numba's dispatcher of a rule; with numba's own pipeline if its version is not in ``TESTED``."""
    return RuleDispatcher(function, targetoptions=options, pipeline_class=RuleCompiler if _is_tested() else Compiler)


def _is_tested() -> bool:
    return TESTED[0] <= numba.version_info.short <= TESTED[1]
