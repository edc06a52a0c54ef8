"""Programmatic dependent launch: a grid that may start early touches nothing of the one before until it has waited.

One kernel writes x, the next, a dependent one, adds 1 to it. Where the wait stands decides; who has not waited, but
comes after one that has, is in order. Likewise, reads of the previous grid are protected until the wait. A grid
without a wait may end before the previous one: then the wait of a third one does not wait for the first.
"""

import warnings

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import make_fake_compact_tensor

from cute_fa4 import configs_for_model, emulator, flash_attn_func, flash_attn_with_kvcache
from cute_fa4.aot.catalogue import read_catalogue
from cute_fa4.calls import attention, repeat
from cute_fa4.compiler import policy
from cute_fa4.emulator.host import driver_api
from cute_fa4.interface import EmulatorWarning
from cute_fa4.sm100.append.config import AppendConfig
from cute_fa4.sm100.choose.choose_config import FAMILIES, choose_config
from cute_fa4.sm100.choose.launches import PARTS, launches

THREADS, WARP = 64, 32


@cute.kernel
def write_kernel(x: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    cute.arch.griddepcontrol_launch_dependents()
    x[thread] = cutlass.Int32(41)


@cute.jit
def write(x: cute.Tensor):
    write_kernel(x).launch(grid=[1, 1, 1], block=[THREADS, 1, 1])


@cute.kernel
def add_kernel(x: cute.Tensor, y: cute.Tensor, waits: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    early = x[thread] if cutlass.const_expr(waits == "late") else cutlass.Int32(0)
    if cutlass.const_expr(waits in ("early", "late")):
        cute.arch.griddepcontrol_wait()
    if cutlass.const_expr(waits in ("one warp", "one warp, no barrier")):
        if thread < WARP:
            cute.arch.griddepcontrol_wait()
    if cutlass.const_expr(waits == "one warp"):
        cute.arch.sync_threads()
    late = x[thread] if cutlass.const_expr(waits != "late") else cutlass.Int32(0)
    y[thread] = early + late + 1


@cute.jit
def add(x: cute.Tensor, y: cute.Tensor, waits: cutlass.Constexpr, dependent: cutlass.Constexpr):
    add_kernel(x, y, waits).launch(grid=[1, 1, 1], block=[THREADS, 1, 1], use_pdl=dependent)


def run(waits: str, dependent: bool, checks="ptx") -> torch.Tensor:
    fake = [make_fake_compact_tensor(cutlass.Int32, (THREADS,)) for _ in range(2)]
    first = emulator.compile(write, fake[0], checks=checks)
    second = emulator.compile(add, *fake, waits, dependent, checks=checks)
    x, y = torch.zeros(2, THREADS, dtype=torch.int32)
    first(x)
    second(x, y)
    return y


@pytest.mark.parametrize("waits", ["early", "one warp"])
def test_who_waits_first_is_in_order(waits):
    assert (run(waits, dependent=True) == 42).all()


@pytest.mark.parametrize("waits", ["never", "late", "one warp, no barrier"])
def test_who_reads_before_the_wait_races_with_the_grid_before(waits):
    with pytest.raises(emulator.RaceError) as error:
        run(waits, dependent=True)
    for word in ("the grid before", "which wrote it", "griddepcontrol.wait must come first"):
        assert word in str(error.value)


@pytest.mark.parametrize("dependent, checks", [(False, "ptx"), (True, None)])
def test_an_ordinary_launch_follows_the_end_of_the_one_before(dependent, checks):
    assert (run("never", dependent, checks) == 42).all()


@cute.kernel
def nothing_kernel(waits: cutlass.Constexpr):
    if cutlass.const_expr(waits):
        cute.arch.griddepcontrol_wait()


@cute.jit
def nothing(waits: cutlass.Constexpr):
    nothing_kernel(waits).launch(grid=[1, 1, 1], block=[THREADS, 1, 1], use_pdl=True)


@pytest.mark.parametrize("waits", [True, False])
def test_a_launch_in_between_that_does_not_wait_lets_the_first_one_run_on(waits):
    """x is written; a dependent launch touches nothing; the third one waits, and reads x."""
    fake = [make_fake_compact_tensor(cutlass.Int32, (THREADS,)) for _ in range(2)]
    between = emulator.compile(nothing, waits, checks="ptx")
    first = emulator.compile(write, fake[0], checks="ptx")
    third = emulator.compile(add, *fake, "early", True, checks="ptx")
    x, y = torch.zeros(2, THREADS, dtype=torch.int32)
    first(x)
    between()
    if waits:
        third(x, y)
        assert (y == 42).all()
        return
    with pytest.raises(
        emulator.RaceError, match="in a dependent launch after it, so that whoever waits"
    ):
        third(x, y)
    # A launch that fails ends everything that ran: what a later test launches does not overlap it.
    third(x, y)
    assert (y == 42).all()


def test_what_the_grid_before_reads_is_not_overwritten_before_the_wait():
    """The add kernel reads x; the next kernel, dependent and without a wait, writes x."""

    @cute.jit
    def write_early(x: cute.Tensor):
        write_kernel(x).launch(grid=[1, 1, 1], block=[THREADS, 1, 1], use_pdl=True)

    fake = [make_fake_compact_tensor(cutlass.Int32, (THREADS,)) for _ in range(2)]
    first = emulator.compile(add, *fake, "never", False, checks="ptx")
    second = emulator.compile(write_early, fake[0], checks="ptx")
    x, y = torch.zeros(2, THREADS, dtype=torch.int32)
    first(x, y)
    with pytest.raises(emulator.RaceError, match="which read it; it may still run"):
        second(x)


def steps_in_one_workspace(transform=None):
    """Two decode steps with shared keys, whose partial results lie in the same memory: four launches."""
    torch.manual_seed(0)
    # 36 rows of a group: beyond what merges in a cluster
    q, (k, v) = torch.randn(2, 9, 4, 64).bfloat16(), torch.randn(2, 2, 1100, 1, 64).bfloat16()
    own, used = torch.empty(1 << 20, dtype=torch.uint8), torch.tensor([1100, 40], dtype=torch.int32)
    with warnings.catch_warnings(), emulator.use(checks="ptx", transform=transform) as counted:
        warnings.simplefilter("ignore", EmulatorWarning)
        for _ in range(2):
            out = flash_attn_with_kvcache(q, k, v, cache_seqlens=used, num_splits=0, workspace=own)
    return counted, out


@pytest.mark.parametrize("kernel, verb", [("", ""), ("combine", "wrote"), ("mha", "read")])
def test_each_kernel_of_shared_keys_waits_for_the_other(kernel, verb):
    """The combine kernel reads what attention wrote; the next attention overwrites what the combine kernel reads."""

    def without_wait(name, ptx):
        wanted = kernel and f"fa4_{kernel}" in name
        return ptx.replace("griddepcontrol.wait;", "") if wanted else ptx

    if not kernel:
        counted, _ = steps_in_one_workspace()
        assert counted.launches == 4 and counted.opcodes["griddepcontrol.launch_dependents"]
        return
    with pytest.raises(emulator.RaceError, match=f"which {verb} it; it may still run"):
        steps_in_one_workspace(without_wait)


def test_the_environment_turns_dependent_launches_off(monkeypatch):
    """Neither the attribute of the launch nor the instructions; the bits are the same."""
    seen, execute = [], driver_api.execute

    def watched(program, *, dependent=False, **launched):
        seen.append(dependent)
        return execute(program, dependent=dependent, **launched)

    monkeypatch.setattr(driver_api, "execute", watched)
    found = {}
    for word in ("auto", "off"):
        monkeypatch.setenv(policy.PDL_VARIABLE, word)
        repeat.clear()
        counted, found[word] = steps_in_one_workspace()
        assert seen == [word == "auto"] * 4
        assert any("griddepcontrol" in opcode for opcode in counted.opcodes) == (word == "auto")
        seen.clear()
    assert torch.equal(found["auto"], found["off"])
    monkeypatch.setenv(policy.PDL_VARIABLE, "on")
    with pytest.raises(ValueError, match="CUTE_FA4_PDL='on'; accepted: auto, off"):
        policy.of_schedules()


def test_no_kernel_of_any_call_is_a_dependent_launch_where_that_is_off(monkeypatch):
    """Configurations of the serving catalogue, and of a model whose ranks share sequences."""

    def kinds() -> set:
        configs = read_catalogue("serving")
        configs += configs_for_model(head_dim=128, heads_q=8, heads_kv=2, calls=("ranks",))
        found = {getattr(c, "schedule", c) for c in configs if not isinstance(c, AppendConfig)}
        return {(type(kind).__name__, kind.dependent_launch) for kind in found}

    auto = kinds()
    dependent = {name for name, early in auto if early}
    assert dependent >= {"TwoTiles", "OneTile", "SwappedTile", "LatentPair", "CombineConfig"}
    monkeypatch.setenv(policy.PDL_VARIABLE, "off")
    assert kinds() == {(name, False) for name, _ in auto}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_dependent_launches_by_choice(family):
    assert FAMILIES[family]().dependent_launch is None
    for early in (False, True):
        config = choose_config(qkv_dtype="bf16", head_dim=64, family=family, dependent_launch=early)
        assert config.schedule.dependent_launch is early


@pytest.mark.parametrize("asked", [None, False])
def test_what_merges_and_what_is_merged_start_early_together(asked):
    """Also of a call whose own kernel does not, because a launch follows immediately (docs/decisions/0007)."""
    whole = choose_config(qkv_dtype="bf16", head_dim=64, dependent_launch=asked)
    assert not whole.schedule.dependent_launch
    both = launches(whole, PARTS, dependent_launch=asked)
    early = both.attention.schedule.dependent_launch, both.combine.dependent_launch
    assert early == (asked is None,) * 2


def decode(transform=None, checks="ptx"):
    """Four query heads a key/value head; the launch before appends the key: 130 keys are two tiles."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 1, 4, 64, generator=generator).bfloat16()
    new, cache = torch.randn(1, 1, 1, 64).bfloat16(), torch.randn(1, 192, 1, 64).bfloat16()
    with warnings.catch_warnings(), emulator.use(checks=checks, transform=transform) as counted:
        warnings.simplefilter("ignore", EmulatorWarning)
        cache_v = cache.clone()
        lengths = torch.tensor([129], dtype=torch.int32)
        flash_attn_with_kvcache(q, cache, cache_v, new, new, cache_seqlens=lengths, causal=True)
    return counted


def test_a_decode_step_is_a_dependent_launch_and_in_order():
    counted = decode()
    assert counted.opcodes["griddepcontrol.wait"] and counted.launches == 2


def test_the_wait_taken_out_of_the_kernel_is_missed():
    """The append kernel is the grid before: its row of K or V is what the first copy brings."""
    with pytest.raises(emulator.RaceError, match="griddepcontrol.wait must come first"):
        decode(lambda name, ptx: ptx.replace("griddepcontrol.wait;", ""))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_options_are_off_but_where_a_peer_measured_a_gain(head_dim):
    """docs/decisions/0007: decode gains by dependent launches, prefill does not; others were not measured."""
    prefill = choose_config(qkv_dtype="bf16", head_dim=head_dim, causal=True).schedule
    step = choose_config(qkv_dtype="bf16", head_dim=head_dim, group=4, pack_gqa=True).schedule
    assert (prefill.dependent_launch, step.dependent_launch) == (False, True)


def test_a_dependent_launch_changes_no_bit(monkeypatch):
    """Prefill, where it is off: 300 queries are two work tiles, the second one claimed."""
    q, k, v = torch.randn(3, 1, 300, 1, 64).bfloat16()

    def call():
        repeat.clear()
        with warnings.catch_warnings(), emulator.use(checks="ptx") as counted:
            warnings.simplefilter("ignore", EmulatorWarning)
            return flash_attn_func(q, k, v, causal=True, return_lse=True), counted

    (expected, expected_lse), plain = call()
    chosen = attention.config_for
    monkeypatch.setattr(
        attention, "config_for", lambda *a, **k: chosen(*a, **k | {"dependent_launch": True})
    )
    (out, lse), counted = call()
    repeat.clear()
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse)
    for opcode in ("griddepcontrol.wait", "griddepcontrol.launch_dependents"):
        assert counted.opcodes[opcode] > plain.opcodes[opcode] == 0
