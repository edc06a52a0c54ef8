"""Rotary columns of 8 bits under K of 16: against the definition, of which they are numbers like any others."""

import pytest
import torch

from cute_fa4 import capabilities
from cute_fa4.calls import repeat
from cute_fa4.sm100.blueprint.barriers import reuse_text
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.two_tiles.schedule import TwoTiles
from cute_fa4.sm100.wide.dequantized_rope import barriers
from cute_fa4.sm100.wide.dequantized_rope.schedule import RopeTile
from cute_fa4.sm100.wide.warp_roles import DequantizingWarpRoles, WideWarpRoles
from cute_fa4.system import devices
from tests.serving.batches import Batch, assert_agrees, packed_q, run
from tests.serving.test_k_rope import causal, draw, stored

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
OF_192 = dict(qk_depth=192, ov_depth=128, rope_depth=64, rope_dtype="e4m3")


def narrow(own: int, dtype, batch: Batch) -> Batch:
    """Shared columns as that dtype holds them."""
    for k in batch.k:
        k[..., own:] = k[..., own:].to(dtype).to(k.dtype)
    return batch


def with_scales(batch: Batch, own: int, apart: dict, scales) -> dict:
    """Scales as they are stored, NaN where there is no key; what they mean goes into the batch.

    scales: "tokens", one number, or None
    """
    if scales is None:
        return {}
    generator = torch.Generator().manual_seed(5)
    if scales != "tokens":
        each = [torch.full((n,), scales) for n in batch.keys]
    else:
        each = [torch.exp(torch.randn(n, generator=generator)) for n in batch.keys]
    for k, s in zip(batch.k, each, strict=True):
        k[..., own:] = (k[..., own:].float() * s[:, None, None]).to(k.dtype)
    if scales != "tokens":
        return {"k_rope_descale": torch.tensor(scales)}
    rope, table = apart["k_rope"], apart.get("k_rope_page_table")
    stored = torch.full(rope.shape[:-1], float("nan"))
    for b, s in enumerate(each):
        if table is None:
            first = sum(batch.keys[:b])
            (stored[b] if rope.dim() == 3 else stored[first:])[: len(s)] = s
            continue
        for i, value in enumerate(s):
            stored[table[b, i // rope.shape[1]], i % rope.shape[1]] = value
    return {"k_rope_descale": stored}


# queries and keys of the sequences, depths, layout of K, rows of a page of k_rope, dtype, that of k_rope, and scales
CASES = {
    "packed, pages of 48": ([300, 1], [310, 129], (128, 64, 128), "packed", 48, torch.bfloat16, E4M3, None),
    "fp16, rows": ([140, 70], [200, 131], (128, 64, 128), "packed", 0, torch.float16, E4M3, 0.37),
    "pages of three rows": ([33], [150], (64, 32, 64), "packed", 3, torch.bfloat16, E5M2, "tokens"),
    "lengths on the device": ([130, 9], [260, 40], (64, 64, 96), "dense", 0, torch.bfloat16, E4M3, "tokens"),
    "V of 256": ([200], [300], (192, 64, 256), "packed", 0, torch.bfloat16, E4M3, "tokens"),
    "both in pages": ([40, 5], [130, 33], (128, 64, 128), "paged", 64, torch.float16, E5M2, None),
    "packed, pages of 48, scales": ([300, 1], [310, 129], (128, 64, 128), "packed", 48, torch.bfloat16, E4M3, "tokens"),
}  # fmt: skip
KEPT = ("packed, pages of 48, scales",)


def found(name, **options):
    queries, keys, depths, layout, rope_page, dtype, of_rope, scales = CASES[name]
    batch = narrow(depths[0], of_rope, draw(queries, keys, depths=depths, dtype=dtype))
    apart, _ = stored(batch, depths[0], layout, rope_page)
    apart["k_rope"] = apart["k_rope"].to(of_rope)
    apart |= with_scales(batch, depths[0], apart, scales)
    return batch, run(packed_q(batch), apart, causal=True, **options)


@pytest.mark.parametrize(
    "name", [n if n in KEPT else pytest.param(n, marks=pytest.mark.sweep) for n in CASES]
)
def test_a_call_agrees_with_the_definition(name):
    batch, results = found(name)
    assert_agrees(batch, *results, visible=causal)


@pytest.mark.sweep
@pytest.mark.parametrize("arch", ["sm_100a", "sm_103a"])
@pytest.mark.parametrize("mode, seed", [("hostile", 1), ("hostile", 2), ("random", 3)])
def test_the_order_of_warps_does_not_matter(arch, mode, seed, monkeypatch):
    monkeypatch.setattr(devices, "EMULATED_ARCH", arch)
    repeat.clear()
    batch, results = found("packed, pages of 48, scales", mode=mode, seed=seed)
    assert_agrees(batch, *results, visible=causal)
    repeat.clear()


def test_the_tables_in_the_docstring_are_those_in_the_code():
    table = FA4Config(**OF_192, schedule=RopeTile()).barriers
    assert table.text() in barriers.__doc__
    assert reuse_text(table.rows) in barriers.__doc__


def test_two_warps_dequantize_that_are_idle_elsewhere():
    """So the registers of the launch are as many, and setmaxnreg has the same warpgroups."""
    roles, wide = DequantizingWarpRoles(), WideWarpRoles()
    assert (roles.threads, roles.registers) == (wide.threads, wide.registers)
    assert [roles.role_of(warp) for warp in wide.idle] == ["dequantize", "dequantize"]


def test_it_is_chosen_by_the_dtype_and_refuses_others():
    asked = dict(
        head_dim=192, head_dim_v=128, causal=True, return_lse=False, arch="sm_100a", dtype="bf16"
    )
    rope = torch.empty(1, 4096, 64, dtype=E4M3, device="meta")
    for more in (dict(), dict(k_rope_descale=torch.empty(1, 4096, device="meta"))):
        [row] = capabilities(**asked, k_rope=rope, **more)
        assert row.runs and row.families == ("mharope",)
    for more in (dict(), dict(scale_dtype="f32")):
        assert FA4Config(**OF_192, **more, schedule=RopeTile()).refusals() == []
    for changes, schedule, remedy in (
        (dict(rope_dtype=None), RopeTile(), "schedule=TwoTiles()"),
        ({}, TwoTiles(), "schedule=RopeTile()"),
        (dict(rope_depth=40), RopeTile(), "after a multiple of 64"),
        (
            dict(scale_dtype="bf16"),
            RopeTile(),
            "or 'f32' with rope_dtype e4m3 or e5m2 and schedule=RopeTile()",
        ),
        (
            dict(scale_dtype="f32", rope_dtype=None),
            TwoTiles(),
            "use None, or 'f32' with rope_dtype",
        ),
    ):
        why = FA4Config(**OF_192 | changes, schedule=schedule).refusals()
        assert any(remedy in reason for reason in why), why
