"""The kernels that calls of a model choose between by their lengths, for configs_for_model()."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cute_fa4.sm100.choose.which_kernel import Kernel


def kernels_of_model(
    problem: dict, dtypes, q_quantize: str | None = None, invariant: bool | None = None
) -> list[tuple[dict, Kernel]]:
    """-> (a problem, a kernel that calls ask for, which_kernel.Kernel). dtypes: model_dtypes.Dtypes.

    problem: fields of a configuration, which has no lengths. 16-bit queries over an 8-bit cache have two problems: one
    takes q unchanged, the other takes quantised q; q_quantize: of the calls (calls/queries.py); invariant: their
    batch_invariant.
    """
    from cute_fa4.sm100.few_rows.dequantized.schedule import DequantizedTile
    from cute_fa4.sm100.two_tiles.dequantized.schedule import SlotTwoTiles
    from cute_fa4.sm100.wide.dequantized.schedule import SlotWideTile

    dequantizing = DequantizedTile.family, SlotTwoTiles.family, SlotWideTile.family
    as_it_is, quantised = problem | dtypes.dequantized, problem | dtypes.quantised
    found = kernels(as_it_is, stays=q_quantize != "auto", invariant=invariant)
    of_keys = dtypes.descales.of_keys
    if q_quantize is None and (of_keys or not lengths_differ(problem)):
        found = tuple(dict.fromkeys((*kernels(as_it_is, invariant=invariant), *found)))
    return [(as_it_is if kernel.family in dequantizing else quantised, kernel) for kernel in found]


def lengths_differ(problem: dict) -> bool:
    """Of queries."""
    return problem.get("q_layout") == "packed" or bool(problem.get("seqused_q"))


def kernels(problem: dict, stays: bool = False, invariant: bool | None = None, **lengths) -> tuple:
    """Of all calls of a problem; lengths: `queries` of the longest sequence, any if they are not given.

    stays: of those whose q of 16 bits is not quantised over keys of 8; invariant: their batch_invariant
    """
    from cute_fa4.compiler import policy
    from cute_fa4.sm100.choose.which_kernel import Call, kernels_of

    asked = Call.of_choices(problem, stays=stays, **policy.of_kernels(invariant=invariant))
    return kernels_of(asked, **lengths, lengths_differ=lengths_differ(problem))
