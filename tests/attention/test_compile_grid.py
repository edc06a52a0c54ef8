"""Every configuration compiles, for B200 and B300, to code that says what the tables say."""

import re
from dataclasses import dataclass

import pytest

from benchmarks.sass.our_kernel import compile_artifacts
from cute_fa4 import masks
from cute_fa4.emulator.model import nvdisasm
from cute_fa4.emulator.ptx import parser as ptx_parser
from cute_fa4.emulator.run.program import Program
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.choose.config import FA4Config
from tests import cases, pairwise
from tests.suite import turns

REGISTERS_OF_AN_SM = 65536


@dataclass(frozen=True)
class Compiled:
    """A configuration, by what pairs are made of."""

    config: FA4Config

    def __getattr__(self, name):
        return getattr(self.config, name)

    def __str__(self):
        return f"{self.config.arch}-{self.config.name}-g{self.config.group}"


# Of B200 and B300 each: every two of head dim, dtype, group, mask and LSE. Groups occur with one head dim only.
EVERY = [Compiled(config) for arch in cases.ARCHS for config in cases.configurations(arch)]
OF_PAIRS = ("arch", "qk_depth", "qkv_dtype", "group", "causal", "write_lse")
CHOSEN = pairwise.choose("compile grid", EVERY, by=OF_PAIRS, kernel=str, commits=turns.OF_CASES)


@pytest.mark.parametrize("compiled", CHOSEN)
def test_configuration_compiles(compiled):
    config = compiled.config
    ptx, cubin = compile_artifacts(config)
    module = ptx_parser.parse(ptx)
    (kernel,) = module.kernels.values()
    Program(kernel, module)  # decodes every instruction: an opcode without a meaning raises

    opcodes = [instruction.opcode for instruction in kernel.instructions]
    initialised = sum(opcode.startswith("mbarrier.init") for opcode in opcodes)
    assert initialised == -(-config.barriers.total // 32), "a lane of a warp each"

    # Local memory is spilled registers or an array indexed at run time; either is slower than the
    # loop it is in. PTX shows the arrays, the stack frame in the cubin also what ptxas spilled.
    assert not [opcode for opcode in opcodes if re.search(r"\.local\b", opcode)]
    assert not re.search(r"^\s*\.local\b", ptx, re.MULTILINE)
    resources = nvdisasm.resources(cubin)
    assert resources.stack_bytes == 0
    assert resources.registers * config.schedule.warps.threads <= REGISTERS_OF_AN_SM


def test_plain_pytest_compiles_lagged_references_of_depth_128():
    """Their loops hold P of a quarter, the sums and scores that are on their way: the most registers of softmax.

    Commits take turns: the law is of all that they compile together.
    """
    every = pairwise.choose("compile grid", EVERY, by=OF_PAIRS, kernel=str)
    kept = [c.values[0] for c in every if any(mark.kwargs.get("kept") for mark in c.marks)]
    lagging = [c for c in kept if c.qk_depth == 128 and c.schedule.lags and c.reads_by_quarter]
    assert {compiled.causal for compiled in lagging} == {False, True}


@pairwise.cases(
    "compile grid: pairs of CTAs",
    {
        "arch": cases.ARCHS,
        "depth": (64, 72, 96, 128),
        "mask": ("Full", "Causal"),
        "choices": ("", "fp16", "exact", "pages, sinks, packed groups"),
    },
    kernel=("arch", "depth", "mask", "choices"),
    quick={"arch": ("sm_100a",), "depth": (128,), "mask": ("Causal",), "choices": ("",)},
    seconds=8.0,
)
def test_pairs_do_not_spill(arch, depth, mask, choices):
    """The registers of a thread are those of the launch, and what setmaxnreg makes of them is enough for every role."""
    more = {
        "": {},
        "fp16": dict(qkv_dtype="fp16"),
        "exact": dict(maximum="exact"),
        "pages, sinks, packed groups": dict(
            kv_layout="paged", page_size=16, seqused_k=True, sink=True, group=4, pack_gqa=True
        ),
    }
    asked = dict(qkv_dtype="bf16", head_dim=depth, arch=arch, family="mhapair", write_lse=True)
    asked["mask"] = getattr(masks, mask)()
    config = choose_config(**asked | more[choices])
    assert config.refusals() == []
    resources = nvdisasm.resources(compile_artifacts(config).cubin)
    assert resources == nvdisasm.Resources(registers=128, stack_bytes=0)


@pytest.mark.parametrize("arch", cases.ARCHS)
def test_exp2_is_split_over_two_units_on_b200_alone(arch):
    """B300's hardware exp2 is twice as fast, so the polynomial on the FMA units would slow it down.

    A key tile of one row has BN exponentials. The softmax code has it twice, masked and unmasked.
    """
    config = cases.Case(seqlen_q=256, seqlen_k=256, causal=True).config(write_lse=False, arch=arch)
    config = config.with_(maximum="exact")  # a lagging one has both kinds of step
    ptx = compile_artifacts(config).ptx
    (kernel,) = ptx_parser.parse(ptx).kernels.values()
    exponentials = sum(i.opcode.startswith("ex2.approx") for i in kernel.instructions)
    on_fma_units = 2 * config.schedule.exp2_emulated
    assert (on_fma_units > 0) == (arch == "sm_100a")
    # One more in each copy: the factor by which a new maximum rescales.
    assert exponentials == 2 * (config.tiles.BN - on_fma_units + 1)
