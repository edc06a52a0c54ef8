"""What 4-bit q and k could gain over 8 bits: the 8-bit kernels with fewer Q K^T products in the modeled tensor core.

    python -m benchmarks.cycle_model.four_bits        the table of docs/decisions/0054

A product of kind::mxf4nvf4 takes twice the columns of one of 8 bits in the same time, so S takes half as many products.
Here every second Q K^T product takes no time, or all of them, as an upper bound. Everything else is the 8-bit kernel:
no scales of blocks, and K has its 8-bit bytes. Cycles of a key tile in the steady state of the full mask, for the 256
query rows of a CTA.
"""

from __future__ import annotations

from benchmarks.cycle_model.evaluate import AlignedKernel, SteadyState, steady_state
from benchmarks.cycle_model.kernels import OURS, Variant, traced
from benchmarks.cycle_model.workloads import TILES, workload
from cute_fa4.emulator.model.constants import of_target
from cute_fa4.emulator.model.machine import Machine

BUSY = ("tensor", "mufu", "fma", "issue", "copies")
KERNELS = {
    "d=128, P V adds P up": Variant(OURS, 128, dtype="e4m3"),
    "d=128, with scales of blocks or LSE": Variant(
        OURS, 128, dtype="e4m3", choices=(("order", "p_crossed"),)
    ),
    "d=64": Variant(OURS, 64, dtype="e4m3"),
    "d=128, B300": Variant(OURS, 128, dtype="e4m3", arch="sm_103a"),
}
PRODUCTS = {"8 bits": 1, "4 bits": 2, "free": 0}  # of so many Q K^T products one takes time


class FewerProducts(Machine):
    """A chip on which only one of `of` Q K^T products takes time; 0: none does. P V has its A in tensor memory."""

    def __init__(self, constants: dict, of: int):
        super().__init__(constants)
        self.of = of

    def program(self, path, codes) -> list[tuple]:
        out, products = [], 0
        for *cost, event in super().program(path, codes):
            if event is not None and event.kind == "mma" and not event.data[2]:
                products += 1
                if not self.of or products % self.of:
                    event = None
            out.append((*cost, event))
        return out


def steady_states(variant: Variant) -> dict[str, SteadyState]:
    """By the names of PRODUCTS."""
    constants, _ = of_target(variant.arch)
    kernel = AlignedKernel.of(traced(variant, [workload(variant, n) for n in TILES[-2:]]))
    found = {}
    for name, of in PRODUCTS.items():
        runs = kernel.runs.items()
        found[name] = steady_state(
            {
                work: FewerProducts(constants, of).run(path, kernel.codes, trace)
                for work, (path, trace) in runs
            }
        )
    return found


def main() -> None:
    print("| kernel | Q K^T | cycles | " + " | ".join(BUSY) + " | gain |")
    print("|---|---|---:|" + "---:|" * len(BUSY) + "---:|")
    for name, variant in KERNELS.items():
        found = steady_states(variant)
        for products, state in found.items():
            busy = " | ".join(f"{state.busy[each] * state.cycles:.0f}" for each in BUSY)
            gain = found["8 bits"].cycles / state.cycles
            print(f"| {name} | {products} | {state.cycles:.0f} | {busy} | {gain:.2f} |", flush=True)


if __name__ == "__main__":
    main()
