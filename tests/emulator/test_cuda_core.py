"""cuda.core on the emulator: what programs call of it is answered from C; the rest is refused by name."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from cute_fa4.emulator.as_if_cuda import as_if_cuda
from cute_fa4.emulator.host import device as emulated
from cute_fa4.emulator.host import driver_library

pytest.importorskip("cuda.core", reason="cuda.core is not installed")
pytest.importorskip(driver_library._BINDINGS, reason="cuda-bindings is older than 13.4")

import cuda.core as core
from cuda.core.utils import StridedMemoryView

SCALE = (Path(__file__).parents[2] / "examples" / "programs" / "scale.ptx").read_text()


@pytest.fixture
def stream():
    with as_if_cuda():
        device = core.Device()
        device.set_current()
        yield device.create_stream()


def scale():
    return core.ObjectCode.from_ptx(SCALE.encode()).get_kernel("scale")


def launched(stream, kernel, grid=2, **options):
    """Does a launch compute 3 x + 7 on tensors of torch?"""
    x = torch.arange(100.0, device="cuda")
    y = torch.empty_like(x)
    numbers = np.float32(3), np.float32(7), np.uint32(100)
    config = core.LaunchConfig(grid=grid, block=64, **options)
    core.launch(stream, config, kernel, y.data_ptr(), x.data_ptr(), *numbers)
    stream.sync()
    return torch.equal(y, 3 * x + 7)


# A call of a program -> what it returns.
ANSWERS = {
    "name": (lambda s: s.device.name, emulated.NAME),
    "capability": (lambda s: tuple(s.device.compute_capability), (10, 0)),
    "attribute": (lambda s: s.device.properties.multiprocessor_count, 148),
    "arch": (lambda s: s.device.arch, "100"),
    "synchronization": (lambda s: s.device.sync(), None),
    "events": (lambda s: s.wait(s.record()), None),
    "nothing is timed": (lambda s: str(s.record() - s.record()), "nan"),
    "default stream": (lambda s: s.device.default_stream.sync(), None),
    "stream of torch": (
        lambda s: int(core.Stream.from_handle(torch.cuda.current_stream().cuda_stream).handle),
        0,
    ),
    "parameters": (lambda s: scale().num_arguments, 5),
    "places of parameters": (
        lambda s: [(p.offset, p.size) for p in scale().arguments_info],
        [(0, 8), (8, 8), (16, 4), (20, 4), (24, 4)],
    ),
    "view": (
        lambda s: StridedMemoryView.from_any_interface(np.zeros(3), stream_ptr=-1).shape,
        (3,),
    ),
    "launch": (lambda s: launched(s, scale()), True),
    "shared memory": (lambda s: launched(s, scale(), shmem_size=1024), True),
    "cluster": (lambda s: launched(s, scale(), cluster=2), True),
}


@pytest.mark.parametrize("call, expected", ANSWERS.values(), ids=ANSWERS)
def test_what_programs_ask_for(stream, call, expected):
    assert call(stream) == expected


def test_a_program_of_ptx_is_linked_to_itself(stream):
    """compile("cubin") of a PTX program by the driver is the text, which the emulator executes."""
    program = core.Program(SCALE, "ptx", core.ProgramOptions(arch="sm_100a"))
    if program.backend != "driver":
        pytest.skip("nvJitLink is installed: it makes machine code, which the emulator refuses")
    assert launched(stream, program.compile("cubin").get_kernel("scale"))


def test_buffers_are_filled_and_copied(stream):
    device = stream.device
    memory = core.DeviceMemoryResource(device)
    first, second = memory.allocate(256, stream=stream), device.allocate(256, stream=stream)
    on_host = core.LegacyPinnedMemoryResource().allocate(256)
    assert int(first.handle) % emulated.ALIGNMENT == 0
    first.fill(b"\x01\x02", stream=stream)
    second.copy_from(first, stream=stream)
    second.copy_to(on_host, stream=stream)
    assert np.from_dlpack(on_host).view(np.uint8).tolist() == [1, 2] * 128
    assert first.is_device_accessible and on_host.is_host_accessible
    for buffer in (first, second, on_host):
        buffer.close()


# A call that is not answered, or that is wrong -> what its exception says.
REFUSALS = {
    "uuid": (lambda s: s.device.uuid, "the program calls the driver's cuDeviceGetUuid, which the emulator does not"),
    "attribute": (lambda s: s.device.properties.clock_rate, "device attribute 13"),
    "pool": (
        lambda s: core.PinnedMemoryResource(core.PinnedMemoryResourceOptions()),
        "the driver's cuMemPoolCreate",
    ),
    "registers": (lambda s: scale().attributes.num_regs(), "the driver's cuKernelGetAttribute"),
    "machine code": (
        lambda s: core.ObjectCode.from_cubin(b"\x7fELF" + bytes(99)).get_kernel("scale"),
        "machine code",
    ),
    "kernel": (lambda s: core.ObjectCode.from_ptx(SCALE.encode()).get_kernel("sca"), "no kernel sca; it has scale"),
    "access": (lambda s: launched_too_far(s), r"IllegalAccess: read of 4 bytes(.|\n)*PTX line \d+: ld.global.f32"),
}  # fmt: skip


def launched_too_far(stream):
    x = torch.zeros(100, device="cuda")
    config = core.LaunchConfig(grid=8, block=64)
    numbers = np.float32(3), np.float32(7), np.uint32(500)
    core.launch(stream, config, scale(), x.data_ptr(), x.data_ptr(), *numbers)


@pytest.mark.parametrize("call, message", REFUSALS.values(), ids=REFUSALS)
def test_refusals_have_the_name_and_errors_the_place(stream, call, message):
    with pytest.raises(Exception, match=message):
        call(stream)
    assert launched(stream, scale()), "the next launch works"


def test_other_bindings_refuse_cuda_core_alone(monkeypatch):
    """Versions before 13 have no such module; the rest of the emulator does not need it."""
    monkeypatch.setitem(sys.modules, driver_library._BINDINGS, None)
    with as_if_cuda():
        assert torch.cuda.get_device_name() == emulated.NAME
        with pytest.raises(Exception, match=r"no cuda\.bindings.* accepted: cuda-bindings 13"):
            core.Device()


def test_a_process_that_has_loaded_a_driver_is_refused(monkeypatch):
    """cuda.bindings keeps the addresses of the driver that it loaded first; the emulator's cannot replace them."""
    monkeypatch.setattr(driver_library._Library, "address", lambda *_: 1)
    with (
        as_if_cuda(),
        pytest.raises(Exception, match="calls the driver that this process has loaded before"),
    ):
        core.Device()
    monkeypatch.undo()
    with as_if_cuda():
        assert core.Device().name == emulated.NAME
