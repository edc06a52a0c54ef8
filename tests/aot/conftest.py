"""Exported kernels that the tests share, and a helper that runs code in a separate process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cute_fa4 import aot, masks
from cute_fa4.sm100.append.config import AppendConfig
from cute_fa4.sm100.blueprint import score_mods
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.system import c_compiler

ROOT = Path(__file__).resolve().parents[2]

# The least kernel, one with every kind of parameter (tuples of numbers and of tensors, sinks, pages), and
# the other kind of configuration. The calls of these tests have few queries.
PLAIN = choose_config(qkv_dtype="bf16", head_dim=64, causal=True, family="mha1q")
RICH = choose_config(
    family="mha1q",
    qkv_dtype="fp16",
    head_dim=64,
    mask=masks.Window(True, False),
    q_layout="packed",
    kv_layout="paged",
    page_size=16,
    seqused_k=True,
    sink=True,
    write_lse=True,
    score_mod=score_mods.composed(score_mods.soft_cap(30.0), score_mods.additive_bias(True)),
    aux=(("f32", 4),),
)
APPEND = AppendConfig("bf16", 64, 64, page_size=16)
EXPORTED = (PLAIN, RICH, APPEND)


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """Directory with EXPORTED; tests that change files copy it."""
    return aot.export(EXPORTED, tmp_path_factory.mktemp("exported"))


@pytest.fixture(scope="session")
def driver_directory(tmp_path_factory):
    """Directory with a libcuda.so.1 that records calls (examples/aot_cpp/recording_driver.c)."""
    directory = tmp_path_factory.mktemp("driver")
    source = ROOT / "examples" / "aot_cpp" / "recording_driver.c"
    command = [c_compiler.find_compiler(), "-shared", "-fPIC", str(source)]
    subprocess.run([*command, "-o", str(directory / "libcuda.so.1")], check=True)
    return directory


def python(code: str, *args, timeout=120, check=True, **environment):
    """Run code in a fresh process; environment: variables to set, None removes one. Returns the finished process."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CUTE_FA4_CACHE": "off"}
    env.pop("CUTE_FA4_JIT", None)
    for name, value in environment.items():
        env.pop(name, None)
        if value is not None:
            env[name] = str(value)
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd="/",
    )
    if check:
        assert done.returncode == 0, done.stderr[-3000:]
    return done
