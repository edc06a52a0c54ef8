"""The emulator accepts an instruction for a target if and only if ptxas does: sm_100a, sm_103a, sm_110a, families."""

import pytest

from cute_fa4.emulator.host import ptx_files
from cute_fa4.emulator.instructions import targets
from cute_fa4.emulator.model import ptxas
from cute_fa4.emulator.ptx.errors import UnknownInstruction
from tests.emulator import ptxas_lines
from tests.emulator.spellings import ALL_GPUS, INSTRUCTIONS

BLACKWELL = [opcode for one in INSTRUCTIONS for opcode in one.spellings]
OTHERS = [o for one in ALL_GPUS for o in one.spellings if o.startswith(("cvt.rs.", "redux."))]
"""Of the chapters of all GPUs, those that some target lacks, and their like."""
EVERY = BLACKWELL + OTHERS
TARGETS = (*targets.ARCHITECTURES, *targets.FAMILIES)
STEP = 7
"""Of the spellings that every target has, in the sample; those that some lack are all in it."""


@pytest.fixture(scope="module")
def newest_ptxas():
    program = ptxas_lines.newest()
    if program is None:
        pytest.skip(f"no ptxas of CUDA 13.2 or newer: {ptxas.REMEDY}")
    return program


@pytest.mark.parametrize(
    "step", [STEP, pytest.param(1, marks=pytest.mark.sweep)], ids=["sample", "all"]
)
def test_the_emulator_accepts_what_ptxas_accepts(step, newest_ptxas, tmp_path):
    """Spellings of the chapters of Blackwell and Hopper. red.async without .relaxed.cluster is accepted by no ptxas."""
    limited = [o for o in EVERY if any(targets.lacking(o, target) for target in TARGETS)]
    opcodes = list(dict.fromkeys([*limited, *EVERY[::step]]))
    written = ptxas_lines.with_operands(newest_ptxas, opcodes, targets.ARCHITECTURES, tmp_path)
    assert not [o for o in opcodes if o not in written and not o.startswith("red.async.")]
    for target in TARGETS:
        wrong = ptxas_lines.refused(newest_ptxas, list(written.values()), target, tmp_path)
        differ = {
            opcode: (wrong.get(at, "accepted"), targets.lacking(opcode, target))
            for at, opcode in enumerate(written)
            if (at in wrong) != (targets.lacking(opcode, target) is not None)
        }
        assert not differ, target


def test_each_row_limits_something():
    for row in targets.LIMITED:
        assert any(map(row.pattern.match, EVERY)) and set(row.targets) < set(TARGETS)


PROGRAM = """
.version 8.8
.target TARGET
.address_size 64
.visible .entry k() {
    .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<2>;
    bra DONE;
    tcgen05.shift.cta_group::1.down [%r1];
    DONE: ret;
}
"""


def test_a_program_whose_target_lacks_an_instruction_is_refused():
    """Also where it is not executed, as ptxas does. A target that the table does not know is not checked."""
    for target in ("sm_100a", "sm_110a", "sm_120a"):
        ptx_files.load(PROGRAM.replace("TARGET", target)).launch(grid=1, block=32)
    with pytest.raises(UnknownInstruction) as refusal:
        ptx_files.load(PROGRAM.replace("TARGET", "sm_103f")).launch(grid=1, block=32)
    assert "sm_103f does not have tcgen05.shift; sm_100a, sm_103a, sm_110a do" in str(refusal.value)
    assert "PTX line 8: tcgen05.shift.cta_group::1.down" in str(refusal.value)
