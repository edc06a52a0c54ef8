"""Compile to PTX and stop: the emulator executes PTX, so machine code for it would be thrown away unread.

The pipeline of the CuTe DSL is one pass pipeline, `cute-to-nvvm`, whose last steps make the binary:

    ... | gpu.module(cuda-compute-target{representation=sass ...}) | ... | cuda-to-binary | cuda-to-llvm | ...

With `representation=ptx` the same steps put the PTX into the host object and do not run ptxas, which is a quarter of
a compile. `cute-to-nvvm` has no option for the representation, but it has one to stop before `cuda-to-binary`. So it
stops there, the target is set again, and the remaining steps follow. The PTX is the same to the byte.
"""

import contextlib
import re
import threading

from cute_fa4.system import forks

_TARGET = re.compile(r"gpu\.module\(cuda-compute-target\{[^{}]*\brepresentation=sass\b[^{}]*\}\)")
# One thread at a time: two that undo their changes in another order would leave one of them in place.
_patching = forks.Lock()
_ASKS_FOR_MACHINE_CODE = re.compile(r"\bdump-(cubin|fatbin)-path='[^']")


def pipeline_to_ptx(pipeline, expanded):
    """The pipeline that stops at PTX; `pipeline` itself where machine code is asked for, or the compiler is another.

    pipeline  as the DSL hands it to its compiler: builtin.module(cute-to-nvvm{OPTIONS})
    expanded  function: a pipeline -> the same with every pass written out
    """
    until_llvm = re.sub(r"\}\)$", " llvm-only=true})", pipeline)
    if until_llvm == pipeline or _ASKS_FOR_MACHINE_CODE.search(pipeline):
        return pipeline
    try:
        every, first = expanded(pipeline), expanded(until_llvm)
    except Exception:  # another version of the DSL, whose passes have other names
        return pipeline
    target = _TARGET.search(every)
    begin = first.removesuffix(")") + ","
    if target is None or not every.startswith(begin):
        return pipeline
    to_ptx = target[0].replace("representation=sass", "representation=ptx")
    return f"{until_llvm[:-1]},{to_ptx},{every[len(begin) :]}"


@contextlib.contextmanager
def ptx_only():
    """What this thread compiles with the DSL inside of the context stops at PTX."""
    from cutlass.base_dsl import compiler

    with _patching.held:
        with _patched(compiler.Compiler):
            yield


@contextlib.contextmanager
def _patched(cls):
    here, original = threading.get_ident(), cls.compile

    def compile_to_ptx(self, module, pipeline, *args, **kwargs):
        """Stands in for cutlass.base_dsl.compiler.Compiler.compile; other threads go on to the machine code."""
        if threading.get_ident() == here:
            parse = self.passmanager.PassManager.parse
            pipeline = pipeline_to_ptx(pipeline, lambda text: str(parse(text)))
        return original(self, module, pipeline, *args, **kwargs)

    try:
        cls.compile = compile_to_ptx
        yield
    finally:
        cls.compile = original
