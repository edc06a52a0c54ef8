"""Compile only to PTX: the emulator executes PTX, so machine code would be unused.

The CuTe DSL has one pass pipeline, `cute-to-nvvm`, whose last steps produce the binary:

    ... | gpu.module(cuda-compute-target{representation=sass ...}) | ... | cuda-to-binary | cuda-to-llvm | ...

With `representation=ptx` the same steps embed the PTX in the host object and do not run ptxas, which saves a
quarter of a compile. `cute-to-nvvm` has no option for the representation, but one to stop before `cuda-to-binary`.
So it stops there, the target is set again, and the remaining steps follow. The PTX is identical.
"""

import contextlib
import re
import threading

from cute_fa4.system import forks

_TARGET = re.compile(r"gpu\.module\(cuda-compute-target\{[^{}]*\brepresentation=sass\b[^{}]*\}\)")
# One thread at a time: two threads that restore in a different order would leave a change in place.
_patching = forks.Lock()
_ASKS_FOR_MACHINE_CODE = re.compile(r"\bdump-(cubin|fatbin)-path='[^']")


def pipeline_to_ptx(pipeline, expanded):
    """The pipeline that stops at PTX; `pipeline` itself if machine code is requested, or for another compiler.

    pipeline  from the DSL to its compiler: builtin.module(cute-to-nvvm{OPTIONS})
    expanded  function: a pipeline -> the same with every pass written out
    """
    until_llvm = re.sub(r"\}\)$", " llvm-only=true})", pipeline)
    if until_llvm == pipeline or _ASKS_FOR_MACHINE_CODE.search(pipeline):
        return pipeline
    try:
        every, first = expanded(pipeline), expanded(until_llvm)
    except Exception:  # another version of the DSL, with different pass names
        return pipeline
    target = _TARGET.search(every)
    begin = first.removesuffix(")") + ","
    if target is None or not every.startswith(begin):
        return pipeline
    to_ptx = target[0].replace("representation=sass", "representation=ptx")
    return f"{until_llvm[:-1]},{to_ptx},{every[len(begin) :]}"


@contextlib.contextmanager
def ptx_only():
    """Inside, compilations of this thread with the DSL stop at PTX."""
    from cutlass.base_dsl import compiler

    with _patching.held:
        with _patched(compiler.Compiler):
            yield


@contextlib.contextmanager
def _patched(cls):
    here, original = threading.get_ident(), cls.compile

    def compile_to_ptx(self, module, pipeline, *args, **kwargs):
        """Replaces cutlass.base_dsl.compiler.Compiler.compile; other threads still compile to machine code."""
        if threading.get_ident() == here:
            parse = self.passmanager.PassManager.parse
            pipeline = pipeline_to_ptx(pipeline, lambda text: str(parse(text)))
        return original(self, module, pipeline, *args, **kwargs)

    try:
        cls.compile = compile_to_ptx
        yield
    finally:
        cls.compile = original
