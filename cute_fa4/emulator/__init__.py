"""Runs kernels compiled for sm_100a on the CPU: executes their PTX, instruction by instruction, without a GPU.

    from cute_fa4 import emulator

    attention = emulator.compile(jit_function, *fake_tensors)     # cute.compile, bound to the emulator
    with emulator.use(mode="hostile", seed=1) as run:             # optional: how launches are scheduled
        attention(q, k, v, out)                                   # CPU torch tensors
    print(run.instructions, run.opcodes.most_common(3), run.levels)

Any CuTe DSL program can be compiled like this. Kernels access CPU memory through the same TVM-FFI function that
would launch them on a GPU. Errors of a kernel raise an EmulatorError (see errors.py).
"""

import functools
import sys

from cute_fa4.emulator.host import ptx_files
from cute_fa4.emulator.host.dlpack import as_cuda
from cute_fa4.emulator.host.driver_api import Run, last_run
from cute_fa4.emulator.host.session import use
from cute_fa4.emulator.ptx.errors import (
    BarrierError,
    Deadlock,
    DivergenceError,
    EmulatorError,
    IllegalAccess,
    InFlightError,
    ProxyError,
    RaceError,
    RegisterHazard,
    TensorMapError,
    TensorMemoryError,
    TensorOrderError,
    UninitializedRead,
    UnknownInstruction,
)
from cute_fa4.emulator.ptx.labels import KernelLabels
from cute_fa4.emulator.reports.compare import Comparison, Finding, compare
from cute_fa4.emulator.run.launch import split_checks
from cute_fa4.system import forks
from cute_fa4.system.frames import with_room
from cute_fa4.system.moved_modules import MovedModules

__all__ = [
    "BarrierError", "Comparison", "Deadlock", "DivergenceError", "EmulatorError", "Finding", "IllegalAccess",
    "InFlightError", "KernelLabels", "ProxyError", "RaceError", "RegisterHazard", "Run", "TensorMapError",
    "TensorMemoryError", "TensorOrderError", "UninitializedRead", "UnknownInstruction", "as_cuda", "bind",
    "compare", "compile", "last_run", "profile", "ptx_files", "use",
]  # fmt: skip

MOVED = {
    "cute_fa4.emulator.coverage": "cute_fa4.emulator.reports.coverage",
    "cute_fa4.emulator.driver_api": "cute_fa4.emulator.host.driver_api",
    "cute_fa4.emulator.errors": "cute_fa4.emulator.ptx.errors",
    "cute_fa4.emulator.labels": "cute_fa4.emulator.ptx.labels",
    "cute_fa4.emulator.observer": "cute_fa4.emulator.machine.observer",
    "cute_fa4.emulator.trace": "cute_fa4.emulator.reports.trace",
}
sys.meta_path.append(MovedModules(MOVED))

_compile_lock = forks.Lock()


def compile(function, *args, options="", labels=None, arch="sm_100a", checks="hardware", **kwargs):
    """cute.compile for the emulator. Returns a callable that takes CPU torch tensors.

    function, args, kwargs  as for cute.compile: a @cute.jit function and fake (or real) arguments
    options  compiler options in addition to the emulator's own (TVM-FFI, kept PTX, line information)
    labels   KernelLabels for messages
    checks   the checks of launches outside use(checks=...), see there and EmulatedFunction
    Raises the errors of cute.compile, and cute_fa4.system.c_compiler.CCompilerError without a C compiler.
    """
    import cutlass.cute as cute

    return bind(
        cute.compile,
        function,
        *args,
        options=options,
        labels=labels,
        arch=arch,
        checks=checks,
        **kwargs,
    )


def profile(function, *args, cluster=0, **kwargs):
    """Call a function on the emulator and model the kernels that it launches: where the cycles of a CTA go.

    cluster  number of the CTA or cluster, in x, that is modelled
    Returns Profiles: print them, .write_json(path), .write_html(path), .against(earlier ones). Raises what the
    function raises, and NvdisasmError or PtxasError where one of these programs is missing.
    """
    from cute_fa4.emulator.model import report

    return report.profile(function, *args, cluster=cluster, **kwargs)


@with_room
def bind(
    compiler,
    function,
    *args,
    options="",
    labels=None,
    arch="sm_100a",
    checks="hardware",
    **kwargs,
):
    """compile with a different compile function, for programs that wrap cute.compile."""
    from cute_fa4.emulator.host import host_binding

    with _compile_lock.held:
        compiled = host_binding.compile_for_emulator(
            compiler, function, args, kwargs, options, arch, labels
        )
    return EmulatedFunction(compiled, checks)


class EmulatedFunction:
    """A compiled host function whose kernel launches execute on the emulator.

    Takes the arguments of the compiled function; CPU torch tensors are passed as CUDA tensors.

    compiled  the host function, linked against the emulator: from the compiler or from a file
    checks    the checks of its launches outside use(checks=...), see there. They belong to the execution, not to the
              compiled function, so the code that makes a function callable passes them
    Raises ValueError for unknown checks.
    """

    def __init__(self, compiled, checks):
        split_checks(checks)  # raises for unknown checks
        self.compiled, self.checks = compiled, checks
        functools.update_wrapper(self, compiled, assigned=("__name__", "__doc__"), updated=())

    def __getattr__(self, name):
        return getattr(self.compiled, name)

    def __call__(self, *args, **kwargs):
        """Call the function; raises the emulator's error, if any."""
        from cute_fa4.emulator.host import driver_api
        from cute_fa4.emulator.host.dlpack import claim_cuda

        args = [claim_cuda(arg) for arg in args]
        kwargs = {name: claim_cuda(arg) for name, arg in kwargs.items()}
        driver_api.begin_call(self.checks)
        try:
            result = self.compiled(*args, **kwargs)
        except Exception as error:
            kept = driver_api.take_error()
            if kept is None:
                raise
            raise kept from error
        kept = driver_api.take_error()
        if kept is not None:
            raise kept
        return result
