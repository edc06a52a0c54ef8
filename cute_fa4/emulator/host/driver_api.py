"""The driver calls of compiled host code: load a cubin, get a kernel, set attributes, launch.

    emulator.compile    register(number, ptx, labels)        number of the host function -> PTX text
    host code, once     load(number)          -> library     the PTX of the function
                        get_kernel(library, entry) -> kernel
    host code, a call   launch(config, kernel, args)         parse and decode once, then execute

An exception in a callback cannot cross the C code. It is stored for ``take_error``, and the callback returns an
error status, so that the host code stops. The caller of the compiled function then raises it.
"""

import contextlib
import ctypes
import time
from collections import Counter
from dataclasses import dataclass, field

from cute_fa4.emulator.host import device, tensor_maps
from cute_fa4.emulator.machine.memory import GlobalMemory
from cute_fa4.emulator.ptx.errors import EmulatorError
from cute_fa4.emulator.ptx.labels import NO_LABELS

# As in runtime_library.c. Success is a number that memory does not contain by chance: ctypes drops an exception
# that is raised as a callback begins (Ctrl-C while C code ran), and the C code then reads the old memory.
SUCCESS, FAILURE = 0x600D, 1

CLUSTER_DIMENSION = 4  # cudaLaunchAttributeClusterDimension
PREFERRED_CLUSTER_DIMENSION = 11
PROGRAMMATIC_STREAM_SERIALIZATION = (
    6  # programmatic dependent launch: the grid may overlap the previous one
)
SUPPORTED_LAUNCH_ATTRIBUTES = {
    0: "ignore", 2: "cooperative", 4: "cluster dimension", 5: "cluster scheduling policy", 6: "programmatic stream",
    8: "priority", 14: "preferred shared memory carveout",
    # Clusters have the size of attribute 4, which a launch may always get.
    11: "preferred cluster dimension",
}  # fmt: skip


class LaunchAttribute(ctypes.Structure):
    """cudaLaunchAttribute: an id and a 64-byte union."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint32 * 16))


class _LaunchConfig(ctypes.Structure):
    """cudaLaunchConfig_t."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_shared_bytes", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint32),
    )


@dataclass
class Run:
    """Counts of executed work: since the start of use(), or of one call outside it.

    instructions  warp instructions     opcodes  the same by opcode     launches  kernel launches
    seconds       time in launches      notes    remarks that are not errors
    counters      named counters of instruction functions
    levels        launches, finished or not, by the level of their ordering checks: "ptx", "hardware", "none"
    """

    instructions: int = 0
    opcodes: Counter = field(default_factory=Counter)
    launches: int = 0
    seconds: float = 0.0
    notes: list = field(default_factory=list)
    counters: Counter = field(default_factory=Counter)
    levels: Counter = field(default_factory=Counter)

    @property
    def level(self) -> str:
        """The levels of the launches, for reports: "ptx"; "ptx, none" if they differ; "" without launches."""
        return ", ".join(self.levels)


DEFAULT = "default"
"""The checks of the function that is called (EmulatedFunction)."""


@dataclass(frozen=True)
class Settings:
    """How launches execute (see emulator.use)."""

    mode: str = "in_order"
    seed: int = 0
    checks: object = DEFAULT
    transform: object = None
    labels: object = None
    instruction_budget: int | None = None
    claims: int | None = None
    cores: int = 1


global_memory = GlobalMemory()
"""Every tensor handed out by as_cuda, and what memory.register added."""


@dataclass(eq=False)
class _Library:
    """The kernels of one host function: PTX, labels that were given, labels that were found (kernel -> labels)."""

    ptx: str
    labels: object
    found: dict = field(default_factory=dict)


_libraries: dict[int, _Library] = {}  # number of the host function -> _Library
_kernels: dict[int, tuple] = {}  # handle -> (_Library, entry name)
# (_Library, entry name, edited PTX or None, helper files) -> Program; most recently used last.
_programs: dict = {}
MAX_PROGRAMS = 32
"""Number of cached programs: some megabytes each, decoded again in a tenth of a second."""
_settings = [Settings()]
_call_checks = "ptx"  # of the compiled function that is being called
_error = None
_run = Run()
_written = ()  # regions of the latest launch with ordering checks: a dependent launch may overtake its writes
# Writes of earlier launches that may still be running after the previous one has ended, because no thread of a
# dependent launch waited. PTX ISA: griddepcontrol.wait waits for the prerequisite grids, that is the previous one,
# not for those before it.
_unwaited = ()


# --- what emulator/__init__.py uses ---------------------------------------------------------------------


def register(number, ptx, labels=None, found=None):
    """Register the kernels of a host function (number: from runtime_library.link_host_function).

    labels  KernelLabels that were given: they take precedence over
    found   those that the trace of a kernel gave, by the name of its entry
    """
    _libraries[number] = _Library(ptx, NO_LABELS if labels is None else labels, found or {})


@contextlib.contextmanager
def settings(new):
    """Launch with these Settings inside the context; yields the Run that counts its launches."""
    global _run
    outside, before, mine = list(_settings), _run, Run()
    try:
        _settings.append(new)
        _run = mine
        yield mine
    finally:
        _settings[:] = outside
        if len(outside) > 1:
            _run = before


def plain_settings():
    """The arguments of emulator.use() in force that another process can have: without transform and labels."""
    now = _settings[-1]
    names = ("mode", "seed", "checks", "instruction_budget", "claims", "cores")
    return {name: getattr(now, name) for name in names}


def checks_in_force(checks):
    """The effective checks of a function with these checks: use(checks=...) takes precedence."""
    current = _settings[-1].checks
    return checks if current is DEFAULT else current


def level_in_force(checks):
    """The level of these checks, for reports: "ptx", "hardware" or "none"."""
    from cute_fa4.emulator.run.launch import level_name

    return level_name(checks_in_force(checks))


def begin_call(checks):
    """A compiled function with these checks is about to be called: outside use() every call has its own Run."""
    global _run, _error, _call_checks
    _error, _call_checks = None, checks
    if len(_settings) == 1:
        _run = Run()


def take_error():
    """The exception stored by a callback since begin_call, or None."""
    global _error
    error, _error = _error, None
    return error


def last_run():
    """The Run of the latest launch."""
    return _run


# --- callbacks of runtime_library.c ----------------------------------------------------------------------


def _guarded(function):
    """A callback: SUCCESS, or FAILURE with the exception stored."""

    def callback(*args):
        global _error
        try:
            function(*args)
        except BaseException as error:
            if _error is None:
                _error = error
            return FAILURE
        return SUCCESS

    callback.__doc__ = function.__doc__
    return callback


@_guarded
def load(library, number):
    """The library of a host function; the embedded cubin is ignored."""
    if number not in _libraries:
        raise EmulatorError("a host function was called before its PTX was registered")
    library[0] = number


@_guarded
def get_kernel(kernel, library, name):
    """A kernel by entry name."""
    handle = len(_kernels) + 1
    _kernels[handle] = (_libraries[library], name.decode())
    kernel[0] = handle


@_guarded
def device_attribute(value, attribute):
    """cudaDeviceGetAttribute of a B200."""
    value[0] = device.attribute(attribute)


@_guarded
def kernel_attribute(value, attribute, kernel):
    """cuKernelGetAttribute: nothing is reserved."""
    value[0] = 0


@_guarded
def set_kernel_attribute(kernel, attribute, value):
    """Dynamic shared memory and cluster permissions: the launch checks the limits."""


@_guarded
def encode_tensor_map(target, *parameters):
    """cuTensorMapEncodeTiled: its 128 bytes at an address."""
    ctypes.memmove(target, tensor_maps.encode_as_driver(*parameters), tensor_maps.TENSOR_MAP_BYTES)


def unsupported(name):
    """Host code called a runtime function without a meaning here."""
    global _error
    if _error is None:
        _error = EmulatorError(
            f"the compiled host code calls {name.decode()}, which the emulator does not provide"
        )


@_guarded
def launch(config, kernel, args):
    """Execute a grid."""
    config = _LaunchConfig.from_address(config)
    library, name = _kernels[kernel]
    program = program_of(library, name)
    execute(
        program,
        params=_read_params(program.kernel, args),
        grid=tuple(config.grid),
        block=tuple(config.block),
        dynamic_shared_bytes=config.dynamic_shared_bytes,
        labels=library.labels,
        **launch_options(
            {each.id: each.value for each in config.attributes[: config.attribute_count]},
            program.kernel,
            tuple(config.grid),
        ),
    )


def library(ptx, labels=None):
    """Kernels of a PTX text without a host function."""
    return _Library(ptx, NO_LABELS if labels is None else labels)


def program_of(library, name):
    """The decoded kernel of a library, edited by use(transform=...)."""
    current = _settings[-1]
    return _program(library, name, current.labels or library.labels, current.transform)


def execute(program, *, labels, dependent=False, **launched):
    """Execute a grid with the settings of use(), and count it.

    dependent  it may overlap the launch before        launched  arguments of execute_grid
    """
    global _written, _unwaited
    from cute_fa4.emulator.run.launch import execute_grid

    start = time.perf_counter()
    current = _settings[-1]
    checks = checks_in_force(_call_checks)
    _run.levels[level_in_force(_call_checks)] += 1
    try:
        result = execute_grid(
            program,
            memory=global_memory,
            labels=_joined(current.labels or labels, program, launched["dynamic_shared_bytes"]),
            mode=current.mode,
            seed=current.seed,
            budget=current.instruction_budget,
            checks=checks,
            claims=current.claims,
            cores=current.cores,
            written_before=_written if dependent else (),
            unwaited=_unwaited if dependent else (),
            **launched,
        )
    except BaseException:  # as an error on a GPU: nothing of the launches before is still running
        _written = _unwaited = ()
        raise
    if not dependent:
        _unwaited = ()
    elif not result.opcodes.get("griddepcontrol.wait"):
        _unwaited = (*_unwaited, *_written)
    _written = result.regions
    _run.launches += 1
    _run.instructions += result.instructions
    _run.opcodes.update(result.opcodes)
    _run.counters.update(result.counters)
    _run.notes.extend(result.notes)
    _run.seconds += time.perf_counter() - start


def _joined(labels, program, dynamic_bytes):
    """The labels that were given, and for what they do not name those that were found."""
    for found in program.found:
        labels = labels.or_else(found.at(dynamic_bytes))
    return labels


def _program(library, name, labels, transform):
    """The decoded kernel, edited by transform if there is one."""
    from cute_fa4.emulator.ptx.parser import parse
    from cute_fa4.emulator.ptx.source_names import kernel_names
    from cute_fa4.emulator.run.program import Program

    edited = None if transform is None else transform(name, library.ptx)
    key = (library, name, edited, labels.helper_files)
    program = _programs.pop(key, None)
    if program is None:
        module = parse(library.ptx if edited is None else edited, labels.helper_files)
        if name not in module.kernels:
            raise EmulatorError(
                f"the PTX has no kernel {name}; it has {', '.join(module.kernels) or 'none'}"
            )
        program = Program(module.kernels[name], module)
        program.found = (library.found.get(name, NO_LABELS), kernel_names(program.kernel, module))
    _programs[key] = program
    while len(_programs) > MAX_PROGRAMS:
        del _programs[next(iter(_programs))]
    return program


def _read_params(kernel, args):
    block = bytearray(kernel.param_bytes)
    for i, param in enumerate(kernel.params):
        block[param.offset : param.offset + param.nbytes] = ctypes.string_at(args[i], param.nbytes)
    return bytes(block)


def launch_options(attributes: dict, kernel, grid: tuple) -> dict:
    """Arguments of execute from the attributes of a launch.

    attributes  id -> the 32-bit words of its value
    """
    for number in sorted(attributes.keys() - SUPPORTED_LAUNCH_ATTRIBUTES.keys()):
        known = ", ".join(f"{i} ({what})" for i, what in SUPPORTED_LAUNCH_ATTRIBUTES.items())
        raise EmulatorError(
            f"launch attribute {number} is not known to the emulator; accepted: {known}; launch without it"
        )
    required = kernel.directives.get(".reqnctapercluster", ())
    dims = (*attributes.get(CLUSTER_DIMENSION, required)[:3], 1, 1, 1)[:3]
    if PREFERRED_CLUSTER_DIMENSION in attributes:
        _check_preferred(tuple(attributes[PREFERRED_CLUSTER_DIMENSION][:3]), dims, grid)
    overlaps = attributes.get(PROGRAMMATIC_STREAM_SERIALIZATION, (0,))[0]
    return {"cluster": dims, "dependent": bool(overlaps)}


def _check_preferred(preferred, dims, grid):
    """CUDA Runtime API, preferredClusterDim: multiples of the cluster, divisors of the grid, the same z."""
    fits = all(
        p and p % d == 0 and g % p == 0 for p, d, g in zip(preferred, dims, grid, strict=True)
    )
    if not fits or preferred[2] != dims[2]:
        raise EmulatorError(
            f"preferred clusters of {preferred} with clusters of {dims} in a grid of {grid}; accepted: multiples of "
            "the cluster that divide the grid, with the same z"
        )
