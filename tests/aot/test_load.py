"""Loaded kernels: they compute what compiled ones do, without the compiler; what is not as written is refused."""

import json
import shutil
import warnings

import pytest
import torch

from cute_fa4 import (
    BlockSparseTensors,
    EmulatorWarning,
    aot,
    compile_cache,
    emulator,
    flash_attn_func,
)
from cute_fa4.aot import LoadError, entry, manifest
from cute_fa4.calls import append as appending
from cute_fa4.calls import launch
from cute_fa4.commands import trials
from cute_fa4.compiler import functions
from cute_fa4.emulator.host.driver_api import DEFAULT
from cute_fa4.operands import CallTensors
from cute_fa4.reference import allowed_gradient_errors, gradients_float64, max_error
from cute_fa4.sm100.backward.config import BackwardConfig
from tests.launch_arguments import AFTER_SCALE

from .conftest import EXPORTED, PLAIN, python

# A finder that refuses the compiler stands for an environment without it; after torch, which may look for triton,
# another one shows whether anything imports triton.
WITHOUT_COMPILER = """
import sys, warnings
class NoCompiler:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cutlass", "cuda", "nvidia_cutlass_dsl", "triton"):
            raise ModuleNotFoundError(f"{name} is not part of a deployment", name=name)
sys.meta_path.insert(0, NoCompiler())
import torch
class NoTriton:
    def find_spec(self, name, path=None, target=None):
        assert name.partition(".")[0] != "triton", "triton is imported"
sys.meta_path.insert(0, NoTriton())
warnings.simplefilter("ignore")
"""

CALLS = """
import os
os.environ["CUTE_FA4_SWAP"] = "off"  # three queries would ask for a tile of few rows
import torch
from cute_fa4 import aot, compile_cache, flash_attn_func, flash_attn_varlen_func, score_mods
from cute_fa4.reference import attention_float64
aot.load(sys.argv[1])
torch.manual_seed(0)
# one tile and a ragged edge: 40 keys of the 128 of a tile
q, k, v = (torch.randn(1, 40, 2, 64, dtype=torch.bfloat16) for _ in range(3))
exact, _ = attention_float64(q, k, v, causal=True)
error = (flash_attn_func(q, k, v, causal=True).double() - exact).abs().max()
assert error < 0.02, error      # bf16 output of values around 1: 2^-8, and P in bf16
# every kind of parameter: packed queries on pages, window, sink, soft cap, bias; one key is seen and the sink takes 0
q = torch.randn(3, 1, 64, dtype=torch.float16)
cache = torch.randn(2, 16, 1, 64, dtype=torch.float16)
out, lse = flash_attn_varlen_func(
    q, cache, cache, cu_seqlens_q=torch.tensor([0, 3], dtype=torch.int32), max_seqlen_q=3,
    page_table=torch.tensor([[0, 1]], dtype=torch.int32)[:, 1:],   # rows aligned to 4 bytes, as exported
    seqused_k=torch.tensor([3], dtype=torch.int32), window_size=(0, None),
    learnable_sink=torch.full((1,), -1e4), softcap=30.0, score_mod=score_mods.additive_bias(True),
    aux_tensors=[torch.zeros(1, 1, 3, 3)], return_lse=True)
for i in range(3):
    keys = cache[1, i:3, 0].double()
    s = 30 * torch.tanh(q[i, 0].double() @ keys.T / 8 / 30)
    assert (out[i, 0].double() - s.softmax(0) @ keys).abs().max() < 0.01
assert compile_cache.statistics().compiles == 0
assert not {"cutlass", "cuda"} & set(sys.modules)
"""


def test_loaded_kernels_agree_with_float64_in_a_process_without_the_compiler(exported):
    python(WITHOUT_COMPILER + CALLS, exported, CUTE_FA4_JIT="error")


@pytest.fixture
def nothing_loaded(monkeypatch):
    monkeypatch.setattr(functions, "_functions", {})
    monkeypatch.setattr(functions, "_registered", {})


def test_a_loaded_kernel_gives_the_bits_of_a_compiled_one(exported, nothing_loaded):
    from cute_fa4.emulator import use

    q, k, v = (torch.randn(1, 40, 2, 64, dtype=torch.bfloat16) for _ in range(3))
    outs = []
    for prepare in (lambda: aot.load(exported), lambda: compile_cache.clear()):
        prepare()
        function = compile_cache.function_for(PLAIN, "emulator")
        out = torch.empty_like(q)
        with use():
            function(q, k, v, out, None, 0.125, *AFTER_SCALE)
        outs.append(out)
    assert torch.equal(*outs)


def test_load_returns_the_configurations_and_registers_both_executors(exported, nothing_loaded):
    assert set(aot.load(exported)) == set(EXPORTED)
    assert all(functions.has(c, e) for c in EXPORTED for e in ("cuda", "emulator"))


def test_policy_for_a_kernel_that_is_not_there(exported):
    code = """
import os, sys, warnings
warnings.simplefilter("ignore")
import torch
from cute_fa4 import JitError, JitWarning, aot, compile_cache, flash_attn_func
from cute_fa4.compiler import compiler
aot.load(sys.argv[1])
compiler.compile_function = lambda config, executor: lambda *arguments: None
q = torch.zeros(1, 40, 2, 64, dtype=torch.bfloat16)
for policy in ("error", "warn", "allow"):
    os.environ["CUTE_FA4_JIT"] = policy
    compile_cache.clear()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            flash_attn_func(q, q, q)          # not causal: not exported
            print(policy, "computes")
        except JitError as error:
            print(policy, "raises", error)
    for w in seen:
        if w.category is JitWarning:
            print(policy, "warns", w.message)
"""
    said = python(code, exported).stdout.splitlines()
    assert said[0].startswith("error raises kernel mha1q_bf16_d64_g1_sm_100a")
    assert any(line.strip().startswith("nearest  none") for line in said)  # clear() forgot them
    assert [line.split()[:2] for line in said if line.startswith(("warn", "allow"))] == [
        ["warn", "computes"],
        ["warn", "warns"],
        ["allow", "computes"],
    ]


def test_an_unknown_policy_is_refused(monkeypatch):
    from cute_fa4.compiler import policy

    monkeypatch.setenv("CUTE_FA4_JIT", "never")
    with pytest.raises(ValueError, match="CUTE_FA4_JIT='never'; accepted: allow, warn, error"):
        policy.policy()


# --- what is refused


def edit(change):
    def apply(directory):
        path = directory / "manifest.json"
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return apply


def truncate(suffix):
    def apply(directory):
        path = directory / f"{PLAIN.name}{suffix}"
        path.write_bytes(path.read_bytes()[:-100])

    return apply


def flip_a_bit(directory):
    path = directory / f"{PLAIN.name}.so"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def of_another_machine(directory):
    # e_machine of an ELF header, with the manifest made to agree: Arm
    path = directory / f"{PLAIN.name}.so"
    data = bytearray(path.read_bytes())
    data[18:20] = (183).to_bytes(2, "little")
    path.write_bytes(data)
    edit(lambda m: m["kernels"][0]["files"].update(library=manifest.file_record(path)))(directory)


def no_library_at_all(directory):
    path = directory / f"{PLAIN.name}.so"
    path.write_text("#!/bin/sh\n")
    edit(lambda m: m["kernels"][0]["files"].update(library=manifest.file_record(path)))(directory)


def kernel(m):
    return m["kernels"][0]


REFUSED = {
    "truncated cubin": (truncate(".cubin"), r"cubin: \d+ bytes, the manifest says \d+: truncated"),
    "truncated library": (truncate(".so"), r"\.so: \d+ bytes"),
    "a bit of the library": (flip_a_bit, r"\.so: SHA-256 .*damaged or replaced"),
    "wrong hash": (
        edit(lambda m: kernel(m)["files"]["ptx"].update(sha256="0" * 64)),
        "ptx: SHA-256",
    ),
    "missing file": (lambda d: (d / f"{PLAIN.name}.ptx").unlink(), "ptx: named by the manifest"),
    "no manifest": (lambda d: (d / "manifest.json").unlink(), "no manifest.json"),
    "not JSON": (lambda d: (d / "manifest.json").write_text("{"), "damaged, not JSON"),
    "a pickle": (lambda d: (d / "manifest.json").write_bytes(b"\x80\x04]\x94."), "cannot be read"),
    "another format": (
        edit(lambda m: m.update(format=1)),
        f"format 1; accepted: {manifest.FORMAT}",
    ),
    "another package": (
        edit(lambda m: m["versions"].update(cute_fa4="0.0")),
        "made by cute_fa4 '0.0'",
    ),
    "other sources": (
        edit(lambda m: m["versions"].update(source="0")),
        "made by the kernel sources",
    ),
    "another TVM-FFI": (
        edit(lambda m: m["versions"].update({"apache-tvm-ffi": "0.9.1"})),
        "the same series 0.9",
    ),
    "outside": (
        edit(lambda m: kernel(m)["files"]["ptx"].update(path="../x")),
        "points out of the directory",
    ),
    "edited config": (
        edit(lambda m: kernel(m)["config"].update(group=4)),
        "was edited; export again",
    ),
    "unknown class": (
        edit(lambda m: kernel(m)["config"].update(kind="os.system")),
        "kind 'os.system'",
    ),
    "another symbol": (edit(lambda m: kernel(m).update(symbol="system")), "symbol system"),
    "another machine": (of_another_machine, "host code for aarch64"),
    "no library": (no_library_at_all, "no ELF file"),
    "empty records": (edit(lambda m: m.update(kernels=[{}])), "without name, symbol"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_damaged_and_foreign_directories_are_refused_and_nothing_is_registered(
    case, exported, tmp_path, nothing_loaded
):
    spoil, message = REFUSED[case]
    directory = shutil.copytree(exported, tmp_path / "copy")
    spoil(directory)
    with pytest.raises(LoadError, match=message):
        aot.load(directory)
    assert not functions._registered


def test_a_file_that_changes_after_load_is_refused_at_the_first_call(
    exported, tmp_path, nothing_loaded
):
    directory = shutil.copytree(exported, tmp_path / "copy")
    aot.load(directory)
    flip_a_bit(directory)
    with pytest.raises(LoadError, match="SHA-256"):
        compile_cache.function_for(PLAIN, "cuda")


def test_unknown_executor_is_refused(exported):
    with pytest.raises(
        ValueError, match="executors: .*tpu.*accepted: a tuple of 'cuda', 'emulator'"
    ):
        aot.load(exported, executors=("tpu",))


def without(opcode):
    """A transform that takes every instruction of an opcode out of the PTX."""
    return lambda name, ptx: ptx.replace(f"\t{opcode}", f"\t// {opcode}")


def attention_of_loaded_kernel(**execution):
    """-> the Run of one call that finds an exported kernel, on CPU tensors."""
    q = torch.randn(1, 40, 2, 64, dtype=torch.bfloat16)
    with emulator.use(**execution) as run, warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        flash_attn_func(q, q, q, causal=True)
    return run


def test_a_loaded_kernel_is_checked_as_strictly_as_a_compiled_one(exported, nothing_loaded):
    """The level belongs to the execution: what opens a kernel from a file says it, too."""
    aot.load(exported, executors=("emulator",))
    for opcode, error in (
        ("fence.proxy.async", emulator.ProxyError),
        ("tcgen05.wait::ld", emulator.RegisterHazard),  # only level "ptx" asks for it
    ):
        with pytest.raises(error):
            attention_of_loaded_kernel(transform=without(opcode))
    assert attention_of_loaded_kernel().level == "ptx"
    run = attention_of_loaded_kernel(checks=None, transform=without("fence.proxy.async"))
    assert run.level == "none"


def test_a_page_shared_by_sequences_that_append_is_a_race(exported, nothing_loaded):
    """Three sequences write row 5 of the same page; which one stays, nothing says."""
    aot.load(exported, executors=("emulator",))
    q, k, v = (torch.randn(3, 1, 1, 64, dtype=torch.bfloat16) for _ in "qkv")
    k_cache, v_cache = torch.zeros(2, 4, 16, 1, 64, dtype=torch.bfloat16)
    lengths, table = torch.full((3,), 5, dtype=torch.int32), torch.zeros(3, 1, dtype=torch.int32)
    caches = CallTensors(None, k_cache, v_cache, seqused_k=lengths, page_table=table)
    tensors = caches._replace(new_k=k, new_v=v)
    append = appending.prepare_append(tensors, 3)
    with warnings.catch_warnings(), pytest.raises(emulator.RaceError):
        warnings.simplefilter("ignore", EmulatorWarning)
        append(tensors)


def test_the_warning_and_the_report_of_a_run_say_the_level(exported, nothing_loaded, monkeypatch):
    aot.load(exported, executors=("emulator",))
    q = torch.randn(1, 40, 2, 64, dtype=torch.bfloat16)
    for checks, level in ((DEFAULT, "ptx"), ("hardware", "hardware"), (None, "none")):
        monkeypatch.setattr(launch, "_warned", False)
        with (
            emulator.use(checks=checks) as run,
            pytest.warns(EmulatorWarning, match=f"ordering checks at level '{level}'"),
        ):
            flash_attn_func(q, q, q, causal=True)
        assert run.levels == {level: 1} and run.level == level


def test_a_function_for_the_emulator_says_what_it_is_checked_with():
    with pytest.raises(TypeError, match="checks"):
        emulator.EmulatedFunction(lambda: None)
    with pytest.raises(ValueError, match="strict"):
        emulator.EmulatedFunction(lambda: None, "strict")


def test_lists_of_small_blocks_need_no_compiler(nothing_loaded, tmp_path, monkeypatch):
    """Under CUTE_FA4_JIT=error: an export has the kernels that convert lists, for the forward and the backward pass."""
    said = dict(qkv_dtype="bf16", head_dim=64, q_block=64, kv_block=48, write_lse=True)
    forward = [c for c in entry.configs_of("config", said, "") if c.schedule.family == "mha1q"]
    (config,) = forward
    of_tiles = dict(mask_mod=config.mask_mod, aux=config.aux, listed=True)
    aot.load(aot.export([config, BackwardConfig("bf16", 64, 64, **of_tiles)], tmp_path))
    monkeypatch.setenv("CUTE_FA4_JIT", "error")
    q, k, v = (torch.randn(1, 100, 1, 64).bfloat16().requires_grad_() for _ in "qkv")
    kinds = torch.tensor([[1, 0, 1], [0, 1, 0]])
    index = torch.argsort(kinds, dim=-1, descending=True, stable=True).int()[None, None]
    counts = kinds.sum(-1).int()[None, None]
    lists = BlockSparseTensors.from_indices(index, counts, (64, 48))
    out = flash_attn_func(q, k, v, block_sparse_tensors=lists)
    dout = torch.randn(1, 100, 1, 64).bfloat16()
    found = torch.autograd.grad(out, (q, k, v), dout)
    visible = (
        kinds.bool().repeat_interleave(64, 0)[:100].repeat_interleave(48, 1)[None, None, :, :100]
    )
    given = *(x.detach() for x in (q, k, v)), dout
    exact, allowed = (
        f(*given, visible=visible) for f in (gradients_float64, allowed_gradient_errors)
    )
    assert all(max_error(a, b) <= most for a, b, most in zip(found, exact, allowed, strict=True))


def test_an_exported_kernel_of_all_gradients_needs_no_compiler(
    nothing_loaded, tmp_path, monkeypatch
):
    """The default: the sum and the counters reach the loaded kernel. An entry says where it has two owners instead."""
    for joint in (True, False):
        asked = dict(head_dim=128, dtype="bf16", joint=joint)
        (config,) = entry.configs_of("backward", asked, "")
        kind, said = entry.entry_of(config)
        assert config.joint is joint and said.get("joint", True) is joint
        assert entry.configs_of(kind, said, "") == [config]
    (config,) = entry.configs_of("backward", dict(head_dim=128, dtype="bf16"), "")
    assert config.joint
    aot.load(aot.export([config], tmp_path))
    monkeypatch.setenv("CUTE_FA4_JIT", "error")
    assert trials.verdict(config, "cpu", "emulator").good


def test_training_needs_no_compiler_with_an_exported_backward_pass(
    nothing_loaded, tmp_path, monkeypatch
):
    """Under CUTE_FA4_JIT=error: forward and backward of 40 rows, one ragged tile; what `aot check` says of both."""
    listed = aot.configs_for_model(
        head_dim=64, heads_q=2, heads_kv=1, calls=("dense",), training=True, splits=False
    )
    forward = [c for c in listed if getattr(getattr(c, "schedule", None), "family", "") == "mha1q"]
    backward = [c for c in listed if isinstance(c, BackwardConfig)]
    aot.load(aot.export([*forward, *backward], tmp_path))
    monkeypatch.setenv("CUTE_FA4_JIT", "error")
    monkeypatch.setenv("CUTE_FA4_SWAP", "off")
    q, k, v = (
        torch.randn(1, 40, heads, 64, dtype=torch.bfloat16, requires_grad=True)
        for heads in (2, 1, 1)
    )
    dout = torch.randn(1, 40, 2, 64, dtype=torch.bfloat16)
    found = torch.autograd.grad(flash_attn_func(q, k, v, causal=True), (q, k, v), dout)
    given = *(x.detach() for x in (q, k, v)), dout
    exact = gradients_float64(*given, causal=True)
    allowed = allowed_gradient_errors(*given, causal=True)
    assert all(max_error(a, b) <= most for a, b, most in zip(found, exact, allowed, strict=True))
    assert all(trials.verdict(config, "cpu", "emulator").good for config in backward)
