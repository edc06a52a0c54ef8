"""The attention kernel as a subject of planted defects: two configurations, small enough for a second a run.

d128_full     256 queries x 640 keys: one CTA, ten K and V tiles in a ring of five slots, so every slot
              is written twice; scores wide enough that rows are rescaled in every tile
d64_causal    300 queries x 300 keys: two CTAs, clipped rows, masked tiles, one stage of depth less
"""

import warnings

import torch

from cute_fa4 import emulator, flash_attn_func
from tests.emulator.mutations.mutant import Subject

# Scores of normal q and k have the standard deviation 1; in units of log2, SPREAD times 1.44. A row's
# maximum then moves by more than the 8 that the kernel tolerates without a rescale in most rows.
SPREAD = 6.0


def tensors(seqlen_q, seqlen_k, head_dim):
    """q, k, v of one batch and head; the same bits every time."""
    generator = torch.Generator().manual_seed(1)
    draw = lambda n: torch.randn(1, n, 1, head_dim, generator=generator)
    return (
        (draw(seqlen_q) * SPREAD).bfloat16(),
        draw(seqlen_k).bfloat16(),
        draw(seqlen_k).bfloat16(),
    )


def run(seqlen_q, seqlen_k, head_dim, causal, level):
    """The run function of a Subject: results are the bits of the output and of the LSE."""
    q, k, v = tensors(seqlen_q, seqlen_k, head_dim)

    def execute(edit, mode, seed, budget):
        transform = None if edit is None else lambda name, ptx: edit(ptx)
        out = torch.full_like(q, float("nan"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first call warns that the emulator executes it
            with emulator.use(
                mode=mode, seed=seed, checks=level, transform=transform, instruction_budget=budget
            ) as result:
                _, lse = flash_attn_func(q, k, v, causal=causal, return_lse=True, out=out)
        # Through integers: a NaN equals itself.
        bits = out.view(torch.int16).numpy().tobytes() + lse.view(torch.int32).numpy().tobytes()
        return bits, result.instructions

    return execute


def subjects(level):
    """Subject by name."""
    return {
        "d128_full": Subject("d128_full", run(256, 640, 128, False, level)),
        "d64_causal": Subject("d64_causal", run(300, 300, 64, True, level)),
    }
