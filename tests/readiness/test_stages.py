"""The stages of the first run: on the emulator they pass, and what is wrong is found and named."""

import re
import subprocess
from pathlib import Path

import pytest
import torch

from cute_fa4 import emulator
from cute_fa4.readiness import (
    assumptions,
    basics,
    company,
    contracts,
    cycles,
    endurance,
    probes,
    training,
)
from cute_fa4.readiness.command import STAGES
from cute_fa4.readiness.stage import Context, Wrong, run

CPU = Context("cpu")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("stage", [s for s in STAGES if not s.needs_gpu], ids=lambda s: s.name)
def test_the_emulator_passes(stage, monkeypatch):
    for name, value in stage.environment.items():
        monkeypatch.setenv(name, value)
    with emulator.use() as counted:
        run(stage, CPU)
    for contract in contracts.CONTRACTS:
        if contract.stage == stage:  # its launch is about what it says
            executed = tuple(counted.opcodes)
            assert all(any(x.startswith(w) for x in executed) for w in contract.executes)


def test_the_page_lists_the_stages_in_their_order():
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.*?) \| (.*?) \|$", page, re.M)
    assert rows == [(str(n), stage.name, stage.asks) for n, stage in enumerate(STAGES, 1)]


# --- what must be found ---------------------------------------------------------------------------------------


def attention_that(change):
    """float64 attention in the place of the kernel; change(call number, out, lse) is what goes wrong."""
    from cute_fa4.reference import attention_float64

    calls = iter(range(1 << 30))

    def call(q, k, v, *, causal=False, return_lse=False, out=None, **_others):
        exact, lse = attention_float64(q, k, v, causal=causal)
        found, lse = exact.to(q.dtype), lse.float()
        change(next(calls), found, lse)
        if out is not None:
            found = out.copy_(torch.where(found.isnan(), out, found))
        return (found, lse) if return_lse else found

    return call


def off_by_one_bit(out):
    out.view(torch.int16).view(-1)[0] ^= 1


def test_one_wrong_bit_of_the_last_launch_is_found(monkeypatch):
    last = endurance.LAUNCHES_ON_CPU - 1
    wrong = attention_that(lambda n, out, lse: off_by_one_bit(out) if n == last else None)
    monkeypatch.setattr(endurance, "flash_attn_func", wrong)
    with pytest.raises(Wrong, match="1 of 3 launches differ from the first one"):
        endurance.identical_launches(CPU)


def test_a_claimed_block_with_other_bits_is_found(monkeypatch):
    wrong = attention_that(lambda n, out, lse: off_by_one_bit(out) if n == 1 else None)
    monkeypatch.setattr(endurance, "flash_attn_func", wrong)
    with pytest.raises(Wrong, match="launch 0 with claims differs"):
        endurance.claims(CPU)


def test_a_block_that_nobody_ran_is_found(monkeypatch):
    nothing = attention_that(lambda n, out, lse: out[:, 256:].fill_(float("nan")))
    monkeypatch.setattr(endurance, "flash_attn_func", nothing)
    with pytest.raises(Wrong, match="256 rows of the output were never written"):
        endurance.every_block_once(CPU)


def test_a_block_that_ran_twice_is_found(monkeypatch):
    def twice(q, k, v, *, out, aux_tensors, **_others):
        (counts,) = aux_tensors
        counts += 1
        counts[0, 0, 256:] += 1
        return attention_that(lambda *_: None)(q, k, v, out=out)

    monkeypatch.setattr(endurance, "flash_attn_func", twice)
    with pytest.raises(Wrong, match=r"1 blocks did not run exactly once.*\[\[0, 0, 1\]\]"):
        endurance.every_block_once(CPU)


def test_a_wrong_replay_is_found(monkeypatch):
    wrong = attention_that(lambda n, out, lse: out.mul_(1.1) if n == 1 else None)
    monkeypatch.setattr(company, "flash_attn_func", wrong)
    with pytest.raises(Wrong, match="replay 2: off by"):
        company.graph(CPU)


@pytest.mark.parametrize("wrong_call, text", [(3, "two threads: 1 calls"), (4, "graph 0 of two")])
def test_a_split_call_that_another_one_changed_is_found(wrong_call, text, monkeypatch):
    """Calls 0 and 1 are alone, 2 and 3 those of the threads, 4 and 5 the replays."""
    wrong = attention_that(lambda n, out, lse: off_by_one_bit(out) if n == wrong_call else None)
    monkeypatch.setattr(company, "flash_attn_func", wrong)
    with pytest.raises(Wrong, match=text):
        company.split_keys(CPU)


def gradients_that(change):
    """The first call's gradients in the place of each one's; change(call number, dq) is what goes wrong."""
    calls, known = iter(range(1 << 30)), []
    made = training.backward

    def call(*given, **options):
        if not known:
            known.extend(made(*given, **options))
        found = tuple(x.clone() for x in known)
        change(next(calls), found[0])
        return found

    return call


def test_gradients_with_other_bits_or_numbers_are_found(monkeypatch):
    last = training.LAUNCHES_ON_CPU - 1
    wrong = gradients_that(lambda n, dq: off_by_one_bit(dq) if n == last else None)
    monkeypatch.setattr(training, "backward", wrong)
    with pytest.raises(Wrong, match="1 of 2 backward passes differ from the first one"):
        training.identical_gradients(CPU)


@pytest.mark.parametrize("stage", [training.gradients, contracts.sums_in_turns])
def test_a_sum_without_one_of_its_parts_is_found(stage, monkeypatch):
    wrong = gradients_that(lambda n, dq: dq.mul_(0.5))
    monkeypatch.setattr(training, "backward", wrong)
    with pytest.raises(Wrong, match="dq is off by"):
        stage(CPU)


def test_a_contract_that_a_launch_breaks_is_found_with_its_documents(monkeypatch):
    """Columns of the neighbour, and attention that is off by its tenth."""
    monkeypatch.setattr(probes, "of_pairs", lambda *_: torch.arange(64).roll(1).float())
    with pytest.raises(Wrong, match="tensor memory of a pair holds other numbers"):
        contracts.pair_of_allocations(CPU)
    wrong = attention_that(lambda n, out, lse: out.mul_(1.1))
    monkeypatch.setattr(contracts, "flash_attn_func", wrong)
    for contract in (contracts.merge_in_a_cluster, contracts.odd_widths, contracts.dependent_merge):
        with pytest.raises(Wrong, match="off by"):
            contract(CPU)
    assert all("PTX ISA" in stage.suspect for stage in contracts.STAGES)


def test_a_value_that_is_not_the_only_key_is_found(monkeypatch):
    wrong = attention_that(lambda n, out, lse: off_by_one_bit(out))
    monkeypatch.setattr(basics, "flash_attn_func", wrong)
    with pytest.raises(Wrong, match="the output must be the value, bit for bit"):
        basics.smallest_launch(CPU)


def test_a_copy_of_other_rows_is_found(monkeypatch):
    """The box of the row before: what a shifted base would bring."""
    copied = probes.copied
    monkeypatch.setattr(
        probes, "copied", lambda k, first, valid, arch: copied(k, max(first - 1, 0), valid, arch)
    )
    with pytest.raises(Wrong, match="a box of 7 from row 2041: the copy brought other rows"):
        basics.keys_begin_an_allocation(CPU)


# --- the probes -----------------------------------------------------------------------------------------------


def test_the_compiler_leaves_in_what_the_probes_time(tmp_path):
    """In the machine code, in their order: a chain with an unused result would be removed."""
    import cutlass.cute as cute
    from cutlass import Int32
    from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

    from cute_fa4.emulator.model import nvdisasm

    try:
        nvdisasm.find()
    except nvdisasm.NvdisasmError as missing:
        pytest.skip(str(missing))
    out = make_fake_compact_tensor(Int32, (len(cycles.QUESTIONS),))
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    options = f"--enable-tvm-ffi --gpu-arch sm_100a --keep-cubin --dump-dir={tmp_path}"
    cubin = tmp_path / "probes.cubin"
    cubin.write_bytes(cute.compile(cycles.cycles, out, Int32(0), stream, options=options).__cubin__)
    listing = subprocess.run(
        [nvdisasm.find(), "-c", cubin], capture_output=True, text=True, check=True
    ).stdout
    clocks = re.split(r"CS2R(?:\.32)? R\d+, SR_CLOCKLO|S2UR UR\d+, SR_CLOCKLO", listing)
    assert len(clocks) == 1 + 2 * len(cycles.QUESTIONS)
    timed = [text for i, text in enumerate(clocks) if i % 2]
    expected = (
        "UGETNEXTWORKID",
        "LDTM",
        "UTCATOMSWS",
        "SYNCS.ARRIVE",
        "BAR.SYNC",
        "MUFU.EX2",
        "LDS",
    )
    order = (
        "claim",
        "lat_tmem_alloc",
        "lat_tmem",
        "mbarrier_round_trip",
        "bar_sync",
        "lat_mufu",
        "lat_shared",
    )
    opcode = dict(zip(cycles.QUESTIONS, expected, strict=True))
    for name, text in zip(order, timed, strict=True):
        least = 1 if name in ("claim", "lat_tmem_alloc") else cycles.REPEATS
        assert text.count(opcode[name]) >= least, name


# --- assumptions ----------------------------------------------------------------------------------------------


def test_every_constant_of_the_model_is_an_assumption_with_its_value():
    from cute_fa4.emulator.model.constants import fitted_b200

    model = {name: (c.value, c.unit) for name, c in fitted_b200().items()}
    assert {n: (c.value, c.unit) for n, c in assumptions.CONSTANTS.items()} == model


def test_what_the_stages_measure_is_what_has_a_tolerance():
    measured = {"sms", "launch_us", "hbm_tbs", "clock_ghz"}  # figures.machine
    measured |= set(cycles.QUESTIONS) - {"mbarrier_round_trip"} | {
        "mbarrier_arrive",
        "mbarrier_wake",
    }
    assert measured == {n for n, c in assumptions.CONSTANTS.items() if c.tolerance is not None}


@pytest.mark.parametrize("name", [n for n, c in assumptions.CONSTANTS.items() if c.tolerance])
def test_a_constant_is_confirmed_near_its_value_and_refuted_away_from_it(name):
    constant = assumptions.CONSTANTS[name]
    stage = ("instructions", "cycles") if name in cycles.QUESTIONS else ("machine", "constants")
    for factor, expected in ((1.0, "confirmed"), (1 + 1.1 * constant.tolerance, "refuted")):
        found = assumptions.verdicts({stage[0]: {stage[1]: {name: factor * constant.value}}})
        assert next(v.verdict for v in found if v.name == name) == expected


@pytest.mark.parametrize("default, speedup, expected", [
    (True, 1.1, "confirmed"), (True, 0.95, "refuted"), (False, 0.95, "confirmed"), (False, 1.1, "refuted"),
])  # fmt: skip
def test_a_default_of_claims_is_confirmed_by_the_faster_kernel(
    default, speedup, expected, monkeypatch
):
    monkeypatch.setattr(assumptions, "class_claims", lambda name: default)
    speeds = {"packed MHA 512": speedup, "packed MHA 4096": speedup, "other 512": 1.0}
    found = assumptions.verdicts({"claims by class": {"claims": speeds}})
    assert next(v.verdict for v in found if v.name == "claims: packed MHA") == expected
