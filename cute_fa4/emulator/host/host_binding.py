"""cute.compile with the host function linked against the emulator instead of the CUDA runtime.

The DSL makes a TVM-FFI function callable in ``_create_tvm_ffi_function``: it exports the host module as an object
file and loads it with its runtime library. During one compilation this step is replaced by one that links the same
object with runtime_library.c. Everything else is unchanged.
"""

import contextlib

from cute_fa4.emulator.host import driver_api, traced_names
from cute_fa4.emulator.host.runtime_library import link_host_function, scratch_directory
from cute_fa4.emulator.ptx_only import ptx_only

_machine_code = None  # PTX -> cubin of what is compiled in keeping_machine_code()


@contextlib.contextmanager
def keeping_machine_code():
    """Context in which functions are compiled to the end: yields PTX -> cubin of each, by the compiler's own ptxas."""
    global _machine_code
    outside, _machine_code = _machine_code, {}
    try:
        yield _machine_code
    finally:
        _machine_code = outside


def keep_machine_code(ptx, cubin):
    """Within keeping_machine_code(): the machine code that another compiler made of a PTX text."""
    if _machine_code is not None:
        _machine_code[ptx] = cubin


def compile_for_emulator(compiler, function, args, kwargs, options, arch, labels):
    """compiler(function, *args) with TVM-FFI, kept PTX and line information, for the emulator: without ptxas.

    Within keeping_machine_code() ptxas runs, and what it made is kept.
    """
    own = [
        "--enable-tvm-ffi",
        "--keep-ptx",
        "--generate-line-info",
        f"--dump-dir={scratch_directory()}",
    ]
    if "gpu-arch" not in (options or ""):
        own.append(f"--gpu-arch {arch}")
    kept = _machine_code
    if kept is not None:
        own.append("--keep-cubin")
    until_ptx = ptx_only() if kept is None else contextlib.nullcontext()
    with (
        until_ptx, _running_on(arch), _bound_to_emulator() as numbers, traced_names.recording() as found
    ):  # fmt: skip
        compiled = compiler(
            function, *args, options=f"{options or ''} {' '.join(own)}".strip(), **kwargs
        )
    for number in numbers:
        driver_api.register(number, compiled.__ptx__, labels, found)
    if kept is not None and compiled.__cubin__:
        keep_machine_code(compiled.__ptx__, compiled.__cubin__)
    return compiled


@contextlib.contextmanager
def _running_on(arch):
    """Inside, the DSL assumes that this machine has a GPU of `arch`."""
    from cutlass.cutlass_dsl import CuTeDSL

    environment = CuTeDSL._get_dsl().envar
    before = environment.arch
    try:
        environment.arch = arch
        yield
    finally:
        environment.arch = before


@contextlib.contextmanager
def _bound_to_emulator():
    """Inside, TVM-FFI functions use the emulator's runtime; yields the numbers of the new functions."""
    from cutlass.cutlass_dsl import tvm_ffi_provider

    base = tvm_ffi_provider.TVMFFIJitCompiledFunctionBase
    original = base._create_tvm_ffi_function
    numbers = []

    def create(self):
        """Replaces TVMFFIJitCompiledFunctionBase._create_tvm_ffi_function."""
        import tvm_ffi

        if self.engine is None:
            return None
        host_object = tvm_ffi_provider._aot_support.export_module_to_bytes(
            self.ir_module, format="o", opt_level=0, enable_pic=True
        )
        address, library, number = link_host_function(
            host_object, "__tvm_ffi_" + self.function_name
        )
        numbers.append(number)
        self.engine = library  # keeps the library loaded while the function exists
        return tvm_ffi.Function.__from_extern_c__(address, keep_alive_object=library)

    try:
        base._create_tvm_ffi_function = create
        yield numbers
    finally:
        base._create_tvm_ffi_function = original
