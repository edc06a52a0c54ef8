"""Names for messages cover every warp, every byte that a role touches, every tensor-memory column."""

import pytest

pytest.importorskip("cute_fa4.emulator.labels", reason="labels belong to the emulator")

from cute_fa4.compiler.labels import kernel_labels
from cute_fa4.sm100.choose_config import choose_config


@pytest.mark.parametrize("head_dim", [64, 128])
def test_everything_has_a_name(head_dim):
    cfg = choose_config(qkv_dtype="bf16", head_dim=head_dim)
    labels = kernel_labels(cfg)
    assert all(labels.role(warp) for warp in range(cfg.schedule.warps.threads // 32))
    barriers = {offset: name for offset, name, *_ in labels.barriers}
    for byte in range(0, cfg.smem.nbytes, 8):  # mbarriers are the finest things in shared memory
        assert labels.shared_name(byte) or byte in barriers, byte
    for column in range(cfg.tmem.used):
        assert labels.tmem_name(column), column
