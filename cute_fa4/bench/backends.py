"""The packages to compare. A backend is a function (problem, inputs) -> launch. launch() returns out, (batch, seqlen_q,
heads_q, head_dim), on the inputs' device and current stream. It raises Unsupported for problems that it cannot run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module

import torch

from cute_fa4.bench.problems import Inputs, Problem

Backend = Callable[[Problem, Inputs], Callable[[], torch.Tensor]]


class Unsupported(Exception):
    """The backend cannot run the problem; the message gives the reason."""


def cute_fa4(problem: Problem, inputs: Inputs):
    """In decode it chooses the key split, like the published package below."""
    from cute_fa4 import flash_attn_func, flash_attn_varlen_func

    options = {
        "causal": problem.causal,
        "window_size": problem.window_size,
        "num_splits": 0 if problem.is_decode else 1,
    }
    out = torch.empty_like(inputs.q)
    if problem.page_size:
        return partial(
            flash_attn_varlen_func,
            *(inputs.q, inputs.k_pages, inputs.v_pages),
            page_table=inputs.page_table,
            seqused_k=inputs.lengths,
            out=out,
            **options,
        )
    return partial(flash_attn_func, inputs.q, inputs.k, inputs.v, out=out, **options)


def gradients(problem: Problem, inputs: Inputs, dout: torch.Tensor):
    """The backward pass alone -> (launch, what tells its kernels apart under the tuning table of the moment).

    launch() returns (dq, dk, dv). The forward pass has run before.
    """
    from cute_fa4 import flash_attn_func, masks
    from cute_fa4.calls import backward
    from cute_fa4.system.devices import target_of

    mask = masks.window(problem.window, 0 if problem.hides_the_future else None)
    q, k, v = inputs.q, inputs.k, inputs.v
    out, lse = flash_attn_func(q, k, v, mask=mask, return_lse=True)
    scores = backward.Scores(problem.head_dim**-0.5, mask)
    attended = backward.Attended(q, k, v, out, lse)
    written = tuple(map(torch.empty_like, (q, k, v)))

    def launch():
        return backward.gradients(attended, dout, None, scores, written)[:3]

    return launch, lambda: backward.config_of(attended, scores, False, target_of(q.device).arch)


def flash_attn_4(problem: Problem, inputs: Inputs):
    """The published package. In decode it chooses the number of key splits (num_splits=0)."""
    try:
        package = import_module("flash_attn.cute")
    except ImportError as error:
        raise Unsupported(f"not installed: {error}") from None
    options = {
        "causal": problem.causal,
        "window_size": problem.window_size,
        "num_splits": 0 if problem.is_decode else 1,
    }
    if problem.page_size:
        call = partial(
            package.flash_attn_varlen_func,
            *(inputs.q, inputs.k_pages, inputs.v_pages),
            page_table=inputs.page_table,
            seqused_k=inputs.lengths,
            **options,
        )
    else:
        call = partial(package.flash_attn_func, inputs.q, inputs.k, inputs.v, **options)

    def launch():
        result = call()
        return result[0] if isinstance(result, tuple) else result

    return launch


def frost(problem: Problem, inputs: Inputs):
    """cuDNN's open kernels for prefill, by the adapter of cudnn-frontend: it also writes the LSE."""
    if problem.is_decode or problem.page_size or problem.window is not None:
        raise Unsupported("its adapter is called for prefill without pages and window only")
    try:
        package = import_module("cudnn.sdpa.fwd.api_dsl")
    except ImportError as error:
        raise Unsupported(f"not installed: {error}") from None
    q, k, v = (x.transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v))
    causal = problem.causal
    call = partial(
        package.sdpa_fwd_wrapper_dsl_sm100, q, k, v, is_causal=causal, causal_bottom_right=causal
    )
    return lambda: call()["o_tensor"].transpose(1, 2)


def _sdpa(kind: str, problem: Problem, inputs: Inputs):
    """torch.nn.functional.scaled_dot_product_attention, restricted to one of its implementations."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if problem.page_size:
        raise Unsupported("torch's function takes no pages")
    if problem.window is not None:
        raise Unsupported("torch's function takes no window")
    # One query sees every key under either alignment.
    causal = problem.causal and problem.seqlen_q > 1
    if causal and problem.seqlen_q != problem.seqlen_k:
        raise Unsupported("torch aligns its causal mask to the top left: another problem")
    backend = getattr(SDPBackend, kind)
    q, k, v = (x.transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v))

    def launch():
        with sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=problem.group > 1
            )
        return out.transpose(1, 2)

    return launch


OURS = "cute_fa4"
BACKENDS: dict[str, Backend] = {
    OURS: cute_fa4,
    "flash-attn-4": flash_attn_4,
    "frost": frost,
    "cudnn": partial(_sdpa, "CUDNN_ATTENTION"),
    "torch-flash": partial(_sdpa, "FLASH_ATTENTION"),
}
