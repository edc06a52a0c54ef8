"""Print the kernel's schedule from the code: configuration, memory, barriers, timeline.

python examples/02_read_the_schedule.py
python examples/02_read_the_schedule.py --head-dim 64 --arch sm_103a
"""

import argparse

from cute_fa4.sm100.choose_config import choose_config
from cute_fa4.sm100.mha2q import kernel, smem_map
from cute_fa4.sm100.sync import barriers


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--arch", default="sm_100a")
    arguments = parser.parse_args()
    cfg = choose_config(
        qkv_dtype="bf16", head_dim=arguments.head_dim, causal=True, arch=arguments.arch
    )
    if cfg.refusals():
        raise SystemExit("\n".join(cfg.refusals()))

    title("Configuration")
    print(f"{cfg.BM} query rows a CTA in {cfg.num_q} tiles, {cfg.BN} keys a tile")
    print(f"(M, N, K): S = Q K^T {cfg.qk_mma_shape}, O += P V {cfg.pv_mma_shape}")
    print(f"{cfg.kv_slots} slots of {cfg.kv_slot_bytes:,} bytes in the ring that K and V share")

    title("Warps")
    for warp in range(cfg.warps.threads // 32):
        print(f"{warp:>3}  {cfg.warps.role_of(warp)}")

    title(f"Shared memory: {cfg.smem_bytes:,} bytes")
    for region in smem_map.regions(cfg).values():
        print(f"{region.offset:>8,}  {region.nbytes:>8,}  {region.name}")

    title(f"Tensor memory: {cfg.tmem_columns_used} of {cfg.tmem_columns} columns")
    for name, columns in (("S", cfg.tmem_s), ("P", cfg.tmem_p), ("O", cfg.tmem_o)):
        for i, column in enumerate(columns):
            print(f"{column:>8}  {name}{i}")

    title(f"Barriers: {cfg.num_mbarriers} mbarriers")
    print(barriers.table(cfg))

    title("Timeline")
    print(kernel.__doc__)


def title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


if __name__ == "__main__":
    main()
