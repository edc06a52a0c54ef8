"""Triton on the emulator: its active driver, which launches the PTX of its compiled kernels.

    import triton            inside as_if_cuda(): the driver below becomes active with this import
    kernel[grid](x, y, n)    Triton compiles for compute capability 10.0; the launch executes the PTX

The device of Triton's tensors is torch's CPU. Nothing is timed: do_bench returns NaN without calling its function, and
autotune takes the first configuration.
"""

import contextlib
import functools
import importlib.machinery
import sys

import numpy as np

from cute_fa4.emulator.host import device, host_binding, ptx_files, tensor_maps, triton_names
from cute_fa4.emulator.ptx.errors import EmulatorError

# CU_TENSOR_MAP_L2_PROMOTION_L2_128B, which Triton's own driver gives its tensor maps.
_PROMOTION = 2
_PROPERTIES = {
    "max_shared_mem": 97, "max_num_regs": 82, "multiprocessor_count": 16, "warpSize": 10,
}  # fmt: skip


@contextlib.contextmanager
def active(patches, checks):
    """Context in which Triton runs on the emulator, whether it is imported before or inside.

    checks  of launches outside emulator.use(checks=...)
    """
    install = functools.partial(_install, patches, checks)
    if "triton" in sys.modules:
        install()
        yield
        return
    finder = _AfterImport("triton", install)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _AfterImport:
    """Calls a function after a module was imported for the first time."""

    def __init__(self, name, function):
        self.name, self.function = name, function

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self.function()

        spec.loader.exec_module = exec_module
        return spec


def _install(patches, checks):
    import triton
    from triton.compiler.compiler import CompiledKernel

    config = triton.runtime.driver
    patches.set(config, "_active", _driver(checks))
    patches.set(triton.testing, "do_bench", not_timed)
    patches.set(triton.testing, "do_bench_cudagraph", not_timed)
    own = CompiledKernel.__init__

    def __init__(self, *args, **kwargs):
        """Replaces CompiledKernel.__init__: what is loaded is the PTX; registers and names come from the rest."""
        own(self, *args, **kwargs)
        self.kernel = (self.asm["ptx"], self.kernel, self)

    patches.set(CompiledKernel, "__init__", __init__)


def not_timed(_function, *_, quantiles=None, return_mode="mean", **__):
    """Replaces triton.testing.do_bench: NaN in the form of its result."""
    if quantiles is None:
        return [float("nan")] if return_mode == "all" else float("nan")
    return float("nan") if len(quantiles) == 1 else [float("nan")] * len(quantiles)


def _driver(checks):
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    class Driver(DriverBase):
        """Replaces Triton's CudaDriver."""

        def __init__(self):
            self.utils = _Utilities(checks)
            self.launcher_cls = _Launcher

        @classmethod
        def is_active(cls):
            return True

        def get_current_target(self):
            return GPUTarget("cuda", 10 * device.ATTRIBUTES[75] + device.ATTRIBUTES[76], 32)

        def get_current_device(self):
            return 0

        def set_current_device(self, _):
            """There is one."""

        def get_current_stream(self, _=None):
            return 0

        def get_device_capability(self, _=None):
            return device.ATTRIBUTES[75], device.ATTRIBUTES[76]

        def get_active_torch_device(self):
            import torch

            return torch.device("cpu")

        def get_device_interface(self):
            import torch

            return torch.cuda

        def get_benchmarker(self):
            return not_timed

        def map_python_to_cpp_type(self, ty):
            from triton.backends.nvidia.driver import ty_to_cpp

            return ty_to_cpp(ty)

        def allocate_default_profile_scratch(self, size, alignment, stream):
            raise EmulatorError("Triton's profiling of kernels is not answered")

    return Driver()


class _Properties(dict):
    def __missing__(self, name):
        raise EmulatorError(
            f"the program asks Triton's driver for the device's {name}, which the emulator does not know; known are "
            f"{', '.join(self)}"
        )


class _Utilities:
    """Replaces Triton's CudaUtils."""

    def __init__(self, checks):
        self.checks = checks

    def get_device_properties(self, _=0):
        return _Properties({name: device.ATTRIBUTES[at] for name, at in _PROPERTIES.items()})

    def load_binary(self, name, kernel, _shared, _device):
        """(module, function, registers of a thread, spilled registers, largest block)."""
        from cute_fa4.emulator.model import nvdisasm

        ptx, cubin, compiled = kernel
        host_binding.keep_machine_code(ptx, cubin)
        used = nvdisasm.resources(cubin, name)
        function = ptx_files.load(ptx, name, triton_names.found(compiled), self.checks)
        return function, function, used.registers, used.stack_bytes // 4, device.ATTRIBUTES[1]

    def unload_module(self, _):
        """Kernels are freed by Python."""

    def set_printf_fifo_size(self, _):
        """No buffer."""

    def fill_tma_descriptor_tiled(
        self, address, swizzle, itemsize, dtype, box, shape, strides, padding
    ):
        """The tensor map of a descriptor; sizes and strides in elements, from the slowest dimension on."""
        return tensor_maps.encode_as_driver(
            dtype,
            len(box),
            address,
            shape[::-1],
            [int(n) * itemsize for n in strides[:-1][::-1]],
            box[::-1],
            [1] * len(box),
            *(0, swizzle, _PROMOTION, padding),
        )

    def __getattr__(self, name):
        raise EmulatorError(
            f"Triton calls {name} of its driver, which the emulator does not answer"
        )


class _Launcher:
    """Replaces Triton's CudaLauncher: one per compiled kernel."""

    def __init__(self, source, metadata):
        self.signature = tuple(source.signature.values())
        self.metadata = metadata
        self.descriptors = list(getattr(metadata, "tensordesc_meta", None) or ())

    def __call__(self, x, y, z, _stream, function, _packed, launch_metadata, enter, leave, *args):
        """Triton's own arguments of a launcher, then those of the kernel."""
        if x * y * z == 0:
            return
        if enter is not None:
            enter(launch_metadata)
        metadata, ctas = self.metadata, getattr(self.metadata, "num_ctas", 1)
        bases = []  # tensors that only tensor maps refer to
        given = [*self._flat(self.signature, args, iter(self.descriptors), bases)]
        if getattr(metadata, "profile_scratch_size", 0):
            raise EmulatorError("a kernel with Triton's instrumentation is not answered")
        scratch = getattr(metadata, "global_scratch_size", 0) * ctas * x * y * z
        given += [np.zeros(scratch, np.uint8) if scratch else None, None]
        with ptx_files.reachable(*bases):
            function.launch(
                *given[: len(function.parameters)],
                grid=(x * ctas, y, z),
                block=metadata.num_warps * 32,
                cluster=(ctas, 1, 1) if ctas > 1 else None,
                shared=metadata.shared,
            )
        if leave is not None:
            leave(launch_metadata)

    def _flat(self, signature, args, descriptors, bases):
        """The parameters of the kernel: without constants, with the members of tuples and descriptors."""
        for kind, argument in zip(signature, args, strict=True):
            if isinstance(kind, tuple):
                yield from self._flat(kind, argument, descriptors, bases)
            elif kind == "constexpr":
                continue
            elif kind.startswith("tensordesc"):
                from triton.backends.nvidia.driver import make_tensordesc_arg

                bases.append(argument.base)
                yield from make_tensordesc_arg(argument, next(descriptors, None), None)
            else:
                yield _bits(kind, argument)


def _bits(kind, argument):
    """A number in the bytes of its type, where PTX alone does not tell the type: the others unchanged."""
    if kind == "bf16":
        return int(np.float32(argument).view(np.uint32) >> 16).to_bytes(2, "little")
    if kind in ("fp16", "fp32", "f32", "fp64"):
        code = {"fp16": np.float16, "fp64": np.float64}.get(kind, np.float32)
        return code(argument).tobytes()
    return argument
