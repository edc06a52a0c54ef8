"""Compilation for the emulator stops at PTX: the same PTX, and no machine code."""

import threading

import cutlass.cute as cute
import pytest
import torch
from cutlass.base_dsl import compiler

from cute_fa4.emulator import compile as compile_for_emulator
from cute_fa4.emulator.ptx_only import pipeline_to_ptx, ptx_only

PIPELINE = "builtin.module(cute-to-nvvm{check-inline-asm=false cubin-chip=sm_100a enable-cuda-dialect=true})"


@cute.kernel
def _double(x: cute.Tensor):
    lane, _, _ = cute.arch.thread_idx()
    x[lane] = x[lane] * 2.0


@cute.jit
def double(x: cute.Tensor):
    _double(x).launch(grid=[1, 1, 1], block=[32, 1, 1])


def fake():
    return cute.runtime.make_fake_compact_tensor(cute.Float32, (32,))


def modules_of(compile_it):
    """-> (what compile_it() returns, the compiled host modules as text)."""
    found, original = [], compiler.Compiler.compile

    def compile_and_keep(self, module, *args, **kwargs):
        done = original(self, module, *args, **kwargs)
        found.append(str(done))
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler.Compiler, "compile", compile_and_keep)
        return compile_it(), found


def compile_whole(folder):
    options = (
        f"--enable-tvm-ffi --keep-ptx --generate-line-info --gpu-arch sm_100a --dump-dir={folder}"
    )
    return cute.compile(double, fake(), options=options, no_jit_engine=True)


def test_the_ptx_is_the_same_and_there_is_no_machine_code(tmp_path):
    """A cubin is an ELF file: the host module of the whole compile has one, that for the emulator has none."""
    whole, [host] = modules_of(lambda: compile_whole(tmp_path))
    function, [host_to_ptx] = modules_of(lambda: compile_for_emulator(double, fake()))
    assert function.__ptx__ == whole.__ptx__
    assert r"\7FELF" in host and r"\7FELF" not in host_to_ptx
    x = torch.arange(32.0)
    function(x)
    assert torch.equal(x, torch.arange(32.0) * 2)


def test_another_thread_compiles_machine_code_meanwhile(tmp_path):
    found = []

    def compile_here():
        found.extend(modules_of(lambda: compile_whole(tmp_path))[1])

    with ptx_only():
        thread = threading.Thread(target=compile_here)
        thread.start()
        thread.join()
    assert r"\7FELF" in found[0]


@pytest.mark.parametrize(
    "pipeline, expanded",
    {
        "machine code is asked for": (
            PIPELINE.replace("cubin-chip", "dump-cubin-path='x' cubin-chip"),
            lambda text: "builtin.module(a,gpu.module(cuda-compute-target{representation=sass}),b)",
        ),
        "no such target": (PIPELINE, lambda text: "builtin.module(a,b)"),
        "passes in another order": (
            PIPELINE,
            lambda text: (
                "builtin.module(b)"
                if "llvm-only" in text
                else "builtin.module(gpu.module(cuda-compute-target{representation=sass}),a,b)"
            ),
        ),
        "unknown passes": (PIPELINE, lambda text: [][0]),
        "another form": ("builtin.module(x)", lambda text: text),
    }.values(),
    ids=["machine-code", "target", "order", "unknown", "form"],
)
def test_a_pipeline_that_is_not_understood_stays_as_it_is(pipeline, expanded):
    assert pipeline_to_ptx(pipeline, expanded) is pipeline


def test_the_rest_follows_the_new_target():
    def expanded(text):
        rest = "" if "llvm-only" in text else ",cuda-to-binary{toolkit=},cuda-to-llvm"
        return f"builtin.module(a,gpu.module(cuda-compute-target{{chip=c representation=sass}}),b{rest})"

    assert pipeline_to_ptx(PIPELINE, expanded) == (
        f"{PIPELINE[:-2]} llvm-only=true}},gpu.module(cuda-compute-target{{chip=c representation=ptx}}),"
        "cuda-to-binary{toolkit=},cuda-to-llvm)"
    )
