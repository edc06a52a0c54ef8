"""The kernels that calls of a model choose between by their lengths, for configs_for_model()."""

from __future__ import annotations


def kernels_of_model(problem: dict, dtypes) -> list[tuple[dict, object]]:
    """-> (a problem, a kernel that calls ask for, which_kernel.Kernel). dtypes: model_dtypes.Dtypes.

    problem: of a configuration, which has no lengths. Of queries of 16 bits over a cache of 8 there are two: those that
    are taken as they are, few or by q_quantize, and others that have been quantised.
    """
    from cute_fa4.sm100.mhawiden.schedule import WidenedTile

    as_it_is, quantised = problem | dtypes.widened, problem | dtypes.quantised
    return [
        (as_it_is if kernel.family == WidenedTile.family else quantised, kernel)
        for kernel in dict.fromkeys((*kernels(as_it_is), *kernels(as_it_is, stays=True)))
    ]


def kernels(problem: dict, stays: bool = False, **lengths) -> tuple:
    """Of all calls of a problem; lengths: `queries` of the longest sequence, any if they are not given.

    stays: of those whose q of 16 bits is not quantised over keys of 8
    """
    from cute_fa4.compiler import policy
    from cute_fa4.sm100.which_kernel import Call, kernels_of

    asked = Call.of_choices(problem, stays=stays, **policy.of_kernels())
    lengths_differ = problem.get("q_layout") == "packed" or bool(problem.get("seqused_q"))
    return kernels_of(asked, **lengths, lengths_differ=lengths_differ)
