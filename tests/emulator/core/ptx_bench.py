"""Run a few lines of PTX as a whole kernel on NumPy arrays: the harness of the core's tests.

out = np.zeros(32, np.uint32)
run_ptx("mov.u32 %r1, %laneid;" + store("%r1"), out)     # a kernel with one pointer parameter, p0
"""

import numpy as np

from cute_fa4.emulator.machine.memory import GlobalMemory
from cute_fa4.emulator.ptx.parser import parse
from cute_fa4.emulator.run.launch import execute_grid
from cute_fa4.emulator.run.program import Program

MODULE = """.version 8.8
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 dyn[];
{globals}
.visible .entry bench({params})
{directives}
{{
    .reg .pred %p<16>;
    .reg .b16 %rs<16>;
    .reg .b32 %r<32>;
    .reg .f32 %f<8>;
    .reg .b64 %rd<32>;
    {body}
    ret;
}}
"""


def module_text(body, pointers=0, directives="", module_variables=""):
    """PTX of a kernel ``bench`` with parameters p0, p1, ...; registers %p %rs %r %f %rd are declared."""
    params = ", ".join(f".param .u64 p{i}" for i in range(pointers))
    return MODULE.format(params=params, body=body, directives=directives, globals=module_variables)


def program_of(body, pointers=0, directives="", module_variables=""):
    """The decoded kernel of module_text."""
    module = parse(module_text(body, pointers, directives, module_variables))
    return Program(module.kernels["bench"], module)


def run_ptx(body, *arrays, threads=32, shared=0, directives="", module_variables="", **launch):
    """Execute the kernel; parameter pi points at arrays[i]. Returns launch.GridResult."""
    program = program_of(body, len(arrays), directives, module_variables)
    memory = GlobalMemory()
    for i, array in enumerate(arrays):
        memory.register(array.ctypes.data, array.nbytes, f"array {i}", keep=array)
    params = np.array([a.ctypes.data for a in arrays], np.uint64).tobytes()
    return execute_grid(
        program,
        params=params,
        block=(threads, 1, 1),
        dynamic_shared_bytes=shared,
        memory=memory,
        **launch,
    )


def store(register, parameter="p0", index="%tid.x"):
    """PTX that stores a 32-bit register to element [index] of the array of a parameter."""
    return f"""
    ld.param.b64 %rd30, [{parameter}];
    mov.u32 %r31, {index};
    mul.wide.u32 %rd31, %r31, 4;
    add.s64 %rd30, %rd30, %rd31;
    st.global.b32 [%rd30], {register};
    """


def run_lanes(body, result="%r1", **options):
    """uint32[32]: the value of a register in the 32 lanes of one warp at the end of body."""
    out = np.full(32, 0xDEADBEEF, np.uint32)
    run_ptx(body + store(result), out, **options)
    return out
