"""Print the kernel's schedule from the code: configuration, memory, barriers, timeline.

python examples/02_read_the_schedule.py
python examples/02_read_the_schedule.py --head-dim 64 --arch sm_103a
"""

import argparse

from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.two_tiles import kernel
from cute_fa4.system import pipes


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
    print(f"{cfg.tiles.BM} query rows a CTA in {cfg.tiles.num_q} tiles, {cfg.tiles.BN} keys a tile")
    print(f"(M, N, K): S = Q K^T {cfg.tiles.qk_mma_shape}, O += P V {cfg.tiles.pv_mma_shape}")
    print(
        f"{cfg.barriers.kv_slots} slots of {cfg.tiles.kv_slot_bytes:,} bytes in the ring that K and V share"
    )

    title("Warps")
    for warp in range(cfg.schedule.warps.threads // 32):
        print(f"{warp:>3}  {cfg.schedule.warps.role_of(warp)}")

    title(f"Shared memory: {cfg.smem.nbytes:,} bytes")
    for region in cfg.smem.regions:
        print(f"{region.offset:>8,}  {region.nbytes:>8,}  {region.name}")

    title(f"Tensor memory: {cfg.tmem.used} of {cfg.tmem.columns} columns")
    for name, columns in (("S", cfg.tmem.s), ("P", cfg.tmem.p), ("O", cfg.tmem.o)):
        for i, column in enumerate(columns):
            print(f"{column:>8}  {name}{i}")

    title(f"Barriers: {cfg.barriers.total} mbarriers")
    print(cfg.barriers.text())

    title("Timeline")
    print(kernel.__doc__)


def title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


if __name__ == "__main__":
    raise SystemExit(pipes.run(main))  # without a traceback if `| head` closes the pipe
