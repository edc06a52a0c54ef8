"""Every tensor of scales that a schedule accepts is read by its kernel: ignored, it would give wrong numbers silently.

A tensor is a parameter of the kernel, and the compiler removes the load of an address that nothing uses. So the law
needs no numbers: the PTX loads the address of every tensor of scales.
"""

import re

import pytest

from cute_fa4.aot.build import build
from cute_fa4.scales import LETTERS
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.choose.config import SCHEDULES
from cute_fa4.sm100.work import scales
from tests.emulator.mutations.quick import quick_or_sweep

E4M3 = {"qkv_dtype": "e4m3", "o_dtype": "bf16"}
PAGES = {"kv_layout": "paged", "seqused_k": True, "pack_gqa": True}
DECODE = {**PAGES, "group": 8, "page_size": 16, "rows": 8, "family": "mhaswap"}
ROPE = {"head_dim": 192, "head_dim_v": 128, "rope_depth": 64}
LATENT = {**PAGES, "page_size": 64, "head_dim": 576, "head_dim_v": 512, "latent": True}
ROWS = {**LATENT, "kv_dtype": "e4m3", "rope_dtype": "bf16", "scale_dtype": "f32"}
ONE, PAIR = {"group": 16, "family": "mla_decode"}, {"group": 128, "family": "mla_pair"}

# schedule, and what tells its problems apart -> (the problem, letters that have a kernel together)
PROBLEMS = {
    "TwoTiles": ({"family": "mha2q"}, ("o",)),
    "TwoTiles of 8 bits": ({**E4M3, "family": "mha2q"}, ("qkvo", "QKVo")),
    "BlockScaled": ({**E4M3, "family": "mhamx"}, ("xyvo",)),
    "Pair": ({"family": "mhapair"}, ("o",)),
    "OneTile": ({"family": "mha1q"}, ("o",)),
    "OneTile of 8 bits": ({**E4M3, "family": "mha1q"}, ("qkvo", "QKVo")),
    "SwappedTile": (DECODE, ("o",)),
    "SwappedTile of 8 bits": ({**DECODE, **E4M3}, ("qkvo", "QKVo")),
    "DequantizedTile": ({**DECODE, "kv_dtype": "e4m3", "family": "mhawiden"}, ("kvo", "KVo")),
    "SlotTwoTiles": ({"kv_dtype": "e4m3", "family": "mhawiden2q"}, ("kvo",)),
    "SlotWideTile": (
        {**ROPE, "kv_dtype": "e4m3", "family": "mhawidewiden"},
        ("kvo",),
    ),
    "WideTile": ({"head_dim": 256, "family": "mhawide"}, ("o",)),
    "WidePair": ({"head_dim": 256, "family": "mhawidepair"}, ("o",)),
    "RopeTile": ({**ROPE, "rope_dtype": "e4m3", "family": "mharope"}, ("o",)),
    "LatentTile": ({**LATENT, **ONE}, ("o",)),
    "LatentTile of 8 bits": ({**LATENT, **ONE, **E4M3}, ("qkvo", "QKVo")),
    "LatentPair": ({**LATENT, **PAIR}, ("o",)),
    "LatentPair of 8 bits": ({**LATENT, **PAIR, **E4M3}, ("qkvo", "Q")),
    "LatentRows": ({**ROWS, "group": 16, "family": "mla_widen"}, ()),
    "LatentRows of 576 bytes": (
        {**LATENT, "kv_dtype": "e4m3", "group": 16, "family": "mla_widen"},
        ("kvo", "KVo"),
    ),
    "LatentRowsPair of 576 bytes": (
        {**LATENT, "kv_dtype": "e4m3", "group": 128, "family": "mla_widenpair"},
        ("kvo",),
    ),
    "LatentRowsPair": ({**ROWS, "group": 128, "family": "mla_widenpair"}, ()),
}
KERNELS = {
    f"{name}, {letters}": (problem, letters)
    for name, (problem, several) in PROBLEMS.items()
    for letters in several
}
QUICK = ("TwoTiles of 8 bits, QKVo", "WideTile, o", "LatentPair of 8 bits, qkvo")


def config_of(problem: dict, letters: str):
    return choose_config(**{"qkv_dtype": "bf16", "head_dim": 128} | problem | {"descales": letters})


def accepts(problem: dict, letter: str) -> bool:
    """Whether a problem can have the letter; x and y are only there together."""
    with_it = {letter} | set("xy" if letter in "xy" or problem["family"] == "mhamx" else "")
    letters = "".join(x for x in LETTERS if x in with_it)
    try:
        return not config_of(problem, letters).refusals()
    except ValueError:  # two kinds for a tensor
        return False


def test_every_schedule_is_here():
    for name, (problem, several) in PROBLEMS.items():
        for letters in (*several, ""):
            assert type(config_of(problem, letters).schedule).__name__ == name.split()[0]
    assert {name.split()[0] for name in PROBLEMS} == set(SCHEDULES)


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_letter_that_is_accepted_has_a_kernel_here(name):
    problem, several = PROBLEMS[name]
    assert {x for x in LETTERS if accepts(problem, x)} == set("".join(several))


def unread(ptx: str, tensors: int) -> list[str]:
    """The parameters that are tensors, of which there are at least so many, whose address is not loaded."""
    found = re.findall(r"\.param \.align 8 \.b8 (\w+_param_\d+)\[", ptx)
    assert len(found) >= tensors
    return [name for name in found if f"[{name}]" not in ptx]


@pytest.mark.parametrize("name", quick_or_sweep(KERNELS, QUICK))
def test_every_tensor_of_scales_is_read(name):
    problem, letters = KERNELS[name]
    assert not unread(build(config_of(problem, letters), "kernel", "native").ptx, len(letters))


@pytest.mark.sweep
def test_a_scale_that_is_ignored_is_noticed(own_kernels, monkeypatch):
    monkeypatch.setattr(scales, "of_output", lambda *_: None)
    problem, letters = KERNELS["WideTile, o"]
    assert len(unread(build(config_of(problem, letters), "kernel", "native").ptx, 1)) == 1
