"""Whole kernels through profile: this package's, and flash-attn-4's as it is published."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cute_fa4.emulator.__main__ import main
from cute_fa4.emulator.model import nvdisasm
from tests import pairwise

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True, scope="module")
def need_nvdisasm():
    try:
        nvdisasm.find()
    except nvdisasm.NvdisasmError as missing:
        pytest.skip(str(missing))


def read(path):
    found = json.loads(path.read_text())
    assert not found["failed"]
    return found["kernels"]


def test_the_attention_kernel_is_explained_in_its_own_names(tmp_path):
    """Four key tiles: the fewest whose loops have a steady state."""
    path = tmp_path / "profile.json"
    sizes = ["--head-dim", "64", "--seqlen", "256", "--seqlen-k", "512"]
    assert main(["profile", "--json", str(path), *sizes]) == 0
    (one,) = read(path)
    assert {"softmax 0", "softmax 1", "correction", "mma", "load"} <= {
        role["name"] for role in one["roles"]
    }
    ended = {(wait["role"], wait["barrier"]): wait["ended_by"] for wait in one["waits"]}
    # As docs/barriers.md has them: who raises what the others wait for.
    raised_by = {
        "s_ready": {"tensor core"},
        "p_ready": {"softmax 0", "softmax 1"},
        "kv_full": {"copies"},
    }
    checked = [barrier for _, barrier in ended if barrier in raised_by]
    assert "p_ready" in checked and len(set(checked)) > 1
    for (_, barrier), who in ended.items():
        assert set(who) <= raised_by.get(barrier, set(who))
    assert one["loop"].startswith("mma, ") and one["launch"]["limited_by"] == "shared memory"
    for role in one["roles"]:
        assert sum(role["cycles"].values()) == pytest.approx(one["turn"])


@pytest.mark.skipif(
    importlib.util.find_spec("flash_attn") is None, reason="no flash-attn-4: pip install it"
)
@pairwise.sweep_only("kernels of others", seconds=90)
def test_a_published_kernel_is_explained_by_its_source_lines(tmp_path):
    """flash-attn-4 has no labels: warps are known by number, mbarriers by the line that waits for them."""
    script, path = tmp_path / "script.py", tmp_path / "profile.json"
    script.write_text(
        "from tests.emulator.foreign_calls import attention; attention(head_dim=128, length=512)"
    )
    command = [
        sys.executable,
        "-m",
        "cute_fa4.emulator",
        "profile",
        "--as-if-cuda",
        "--json",
        str(path),
        str(script),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUTE_DSL_ARCH": "sm_100a"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    (one,) = read(path)
    assert "FlashAttentionForwardSm100" in one["kernel"] and one["turns"] > 1
    assert all(".py:" in wait["at"] for wait in one["waits"])
    assert any("flash_fwd_sm100.py:" in wait["at"] for wait in one["waits"])
