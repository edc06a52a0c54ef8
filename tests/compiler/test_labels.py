"""Names for messages cover every warp, every byte that a role touches, every tensor-memory column."""

import pytest

pytest.importorskip("cute_fa4.emulator.ptx.labels", reason="labels belong to the emulator")

from cute_fa4.compiler.labels import kernel_labels
from cute_fa4.sm100.blueprint.warp_roles import WarpRoles
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.choose.config import SCHEDULES


@pytest.mark.parametrize("dtype, head_dim", [("bf16", 64), ("bf16", 128), ("e4m3", 128)])
def test_everything_has_a_name(dtype, head_dim):
    """The first and the last have row sums in tensor memory, after O."""
    cfg = choose_config(qkv_dtype=dtype, head_dim=head_dim)
    labels = kernel_labels(cfg)
    assert all(labels.role(warp) for warp in range(cfg.schedule.warps.threads // 32))
    barriers = {offset: name for offset, name, *_ in labels.barriers}
    for byte in range(0, cfg.smem.nbytes, 8):  # mbarriers are the finest things in shared memory
        assert labels.shared_name(byte) or byte in barriers, byte
    for column in range(cfg.tmem.used):
        assert labels.tmem_name(column), column


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=lambda cls: cls.__name__)
def test_every_warp_has_one_role_and_all_fit_into_the_registers(schedule):
    warps = schedule().warps
    ranges = [value for value in vars(warps).values() if isinstance(value, range)]
    assert sorted(w for each in ranges for w in each) == list(range(warps.threads // 32))
    assert all(warps.role_of(w) for w in range(warps.threads // 32))
    if isinstance(warps, WarpRoles):  # of the others setmaxnreg moves none
        assert warps.registers <= 65_536
