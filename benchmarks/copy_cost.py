"""What a paged cache costs the load warp: TMA copies for a K and a V tile, and SASS instructions of its loop.

    python benchmarks/copy_cost.py [--head-dim 128] [--json]

Copies are counted where they happen: the kernel is executed by the emulator on sequences of whole tiles, once with
T and once with T + 1 key tiles; the difference is one K and one V tile. Instructions are all those of the loop over
key tiles, also the branch that clips the partial last page of V eight rows at a time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.sass.nvdisasm import disassemble
from benchmarks.sass.our_kernel import compile_artifacts
from benchmarks.sass.program import parse
from cute_fa4.sm100 import masks
from cute_fa4.sm100.choose_config import choose_config

PAGE_SIZES = (0, 8, 16, 32, 64, 128, 256, 512)


def config_of(head_dim: int, page_size: int):
    paged = dict(kv_layout="paged", page_size=page_size, seqused_k=True) if page_size else {}
    return choose_config(
        qkv_dtype="bf16", head_dim=head_dim, mask=masks.Causal(), arch="sm_100a", **paged
    )


def copies_per_tile(head_dim: int, page_size: int) -> int:
    """TMA loads for one K and one V tile in the middle of a sequence, counted on the emulator."""
    return _loads(head_dim, page_size, tiles=3) - _loads(head_dim, page_size, tiles=2)


def _loads(head_dim: int, page_size: int, tiles: int) -> int:
    import torch

    import cute_fa4
    from cute_fa4 import emulator

    keys = 128 * tiles
    q = torch.zeros(1, 256, 1, head_dim, dtype=torch.bfloat16)
    if page_size:
        pages = -(-keys // page_size)
        k = torch.zeros(pages, page_size, 1, head_dim, dtype=torch.bfloat16)
        cute_fa4.flash_attn_varlen_func(
            q,
            k,
            k.clone(),
            page_table=torch.arange(pages, dtype=torch.int32)[None],
            seqused_k=torch.tensor([keys], dtype=torch.int32),
            causal=True,
        )
    else:
        k = torch.zeros(1, keys, 1, head_dim, dtype=torch.bfloat16)
        cute_fa4.flash_attn_func(q, k, k.clone(), causal=True)
    opcodes = emulator.last_run().opcodes
    return sum(
        n
        for opcode, n in opcodes.items()
        if opcode.startswith("cp.async.bulk.tensor") and "mbarrier" in opcode
    )


def load_loop_instructions(head_dim: int, page_size: int) -> int:
    """SASS instructions of the loop over key tiles in the load warp, all branches counted."""
    cubin = compile_artifacts(config_of(head_dim, page_size)).cubin
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        text = disassemble(path)
    loops = []
    for function in parse(text):
        for loop in function.loops:
            code = list(function.instructions_of(loop))
            if any(ins.name.startswith("UTMALDG") for ins in code):
                loops.append(len(code))
    return min(loops)


def rows(head_dim: int) -> list[dict]:
    return [
        {
            "page_size": page_size,
            "copies_per_k_and_v_tile": copies_per_tile(head_dim, page_size),
            "load_loop_instructions": load_loop_instructions(head_dim, page_size),
        }
        for page_size in PAGE_SIZES
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    table = rows(options.head_dim)
    if options.json:
        print(json.dumps(table, indent=1))
        return
    print(f"head dim {options.head_dim}, tiles of 128 keys, bf16, causal, sm_100a")
    print("page size   TMA copies for a K and a V tile   SASS instructions of the load loop")
    for row in table:
        page = row["page_size"] or "contiguous"
        print(
            f"{page!s:>10}   {row['copies_per_k_and_v_tile']:>31}   {row['load_loop_instructions']:>34}"
        )


if __name__ == "__main__":
    main()
