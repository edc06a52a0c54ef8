"""CUTE_FA4_JIT: what happens when a call needs a kernel that is neither loaded nor cached.

    allow   compile it (default)
    warn    compile it, with a JitWarning that names the configuration
    error   raise JitError: a service that must not stall finds out at once, and which kernel to export

cute_fa4.warmup compiles whatever the policy: it is called when a service starts.

CUTE_FA4_CLAIMS: which kernels calls, catalogues and lists of a model's kernels ask for.

    auto    a rule decides for each problem (sm100/blueprint/claims.py; default)
    on      a CTA that has finished takes over a block that has not started (TwoTiles.claims)
    off     a CTA ends with its block, for comparison

CUTE_FA4_SWAP: which tiles calls of few queries ask for.

    auto    up to 32 query rows, counting heads of a packed group: swap-AB tiles (sm100/few_rows; default)
    off     tiles of 128 rows, for comparison

CUTE_FA4_PAIR: whether calls of more queries than one tile of 128 rows ask for pairs of CTAs that share their MMAs.

    auto    rules decide: wide heads on pairs, others alone unless a tuning table lets lengths choose
            (sm100/choose/which_kernel.py, choose/pays.py; default). Full and causal backward passes: pairs for wide
            heads, and on sm_100a for one kernel of all gradients of head dims 72 to 128
    on      pairs for 16-bit full or causal problems, for wide heads (sm100/two_tiles/pair, wide/pair), and for kernels
            of the backward pass that can (sm100/backward/pair.py, joint.py)
    off     every CTA alone (sm100/two_tiles, wide)

CUTE_FA4_MAXIMUM: which maximum the exponentials of a row subtract, in kernels of two query tiles.

    auto    as the problem allows: in bf16 up to head dim 128, of earlier key tiles (sm100/steps/lagged.py; default)
    exact   the running maximum of the row, for comparison, or if values of v exceed 2^60

CUTE_FA4_FP8_QUERIES: the treatment of 16-bit queries over an 8-bit cache in calls without q_quantize.

    auto       the kernel dequantizes keys and values (dequantized/ of sm100/few_rows and two_tiles); more than 32 rows
               of queries are quantised first, if the accuracy of a row depends on no other sequence
               (calls/queries.py; default)
    never      keys and values are dequantized, for any number of rows; over latent caches, too
    quantised  the queries are quantised first, however few; also with q_quantize="auto"; for comparison

CUTE_FA4_EXPONENTIAL: how kernels of two query tiles compute part of the exponentials of 8-bit tensors.

    auto    as the arch requires: on sm_100a in f16 (sm100/steps/half_powers.py; default)
    exact   in float32, for comparison

CUTE_FA4_PDL: whether kernels may start before the previous launch has ended (programmatic dependent launch).

    auto    kernels of few queries and those that split keys or merge the parts (docs/decisions/0007; default)
    off     none: each launch begins after the previous one has ended, and no kernel waits or signals

CUTE_FA4_BATCH_INVARIANT: whether the bits of a row may depend on anything but that row, its keys and values.

    auto    as the call requests with batch_invariant or tokens_per_split (default)
    on      they do not: every call without batch_invariant=False keeps the contract of docs/invariance.md

All are read when the kernel of a call is chosen, once for calls that are alike.
"""

from __future__ import annotations

import contextlib
import contextvars

from cute_fa4.system import environment

POLICIES = ("allow", "warn", "error")
VARIABLE = "CUTE_FA4_JIT"
CLAIMS_VARIABLE = "CUTE_FA4_CLAIMS"
SWAP_VARIABLE = "CUTE_FA4_SWAP"
PAIR_VARIABLE = "CUTE_FA4_PAIR"
MAXIMUM_VARIABLE = "CUTE_FA4_MAXIMUM"
QUERIES_VARIABLE = "CUTE_FA4_FP8_QUERIES"
EXPONENTIAL_VARIABLE = "CUTE_FA4_EXPONENTIAL"
PDL_VARIABLE = "CUTE_FA4_PDL"
INVARIANT_VARIABLE = "CUTE_FA4_BATCH_INVARIANT"

QUANTIZE = ("auto", "never")  # q_quantize of a call, besides None
BEFORE = "before"  # q_quantize of a list of a model's kernels, whose calls get q quantized already
QUANTIZE_IN_LISTS = (*QUANTIZE, BEFORE)

_warming_up = contextvars.ContextVar("warming_up", default=False)


class JitError(RuntimeError):
    """A call needs a kernel that is neither loaded nor cached, and CUTE_FA4_JIT=error."""


class JitWarning(UserWarning):
    """A call compiles a kernel, which takes seconds, and CUTE_FA4_JIT=warn."""


def policy() -> str:
    return environment.choice(VARIABLE, *POLICIES)


def claims() -> bool | None:
    """CUTE_FA4_CLAIMS, for the schedule's claims; None: the problem decides."""
    return {"auto": None, "on": True, "off": False}[
        environment.choice(CLAIMS_VARIABLE, "auto", "on", "off")
    ]


def swaps() -> bool:
    """Whether calls of few queries ask for tiles with swapped operands."""
    return environment.choice(SWAP_VARIABLE, "auto", "off") == "auto"


def dequantizes() -> bool:
    """Whether calls of few 16-bit queries request kernels that dequantize 8-bit keys."""
    return swaps() and queries() != "quantised"


def queries() -> str:
    """The treatment of 16-bit queries over 8-bit keys: "auto", "never" or "quantised"."""
    return environment.choice(QUERIES_VARIABLE, "auto", "never", "quantised")


def stays_over_latent(q_quantize) -> bool:
    """Whether 16-bit queries over a latent cache of 8-bit columns stay so: only if the call or the setting says it.

    Such a cache is faster where q is quantized: the tensor core multiplies it as it is stored.
    """
    return q_quantize == "never" or (q_quantize is None and queries() == "never")


def check_quantize(q_quantize, accepted: tuple = QUANTIZE) -> None:
    """Raise ValueError unless q_quantize has an accepted value. accepted: QUANTIZE or QUANTIZE_IN_LISTS."""
    if not (q_quantize is None or (isinstance(q_quantize, str) and q_quantize in accepted)):
        raise ValueError(
            f"q_quantize: {q_quantize!r}; accepted: {', '.join(map(repr, accepted))}, or None, which lengths decide "
            "(docs/serving/eight_bits.md)"
        )


def pairs() -> bool | None:
    """Whether calls of many queries request pairs of CTAs; None: a rule decides."""
    return {"auto": None, "on": True, "off": False}[
        environment.choice(PAIR_VARIABLE, "auto", "on", "off")
    ]


def of_kernels(mixed: bool = True, invariant: bool | None = None) -> dict:
    """The variables for the rule that names a call's kernel (sm100/choose/which_kernel.py).

    mixed: queries of 16 bits may meet keys of 8; invariant: the call's batch_invariant
    """
    few, invariant = swaps(), batch_invariant(invariant)
    return {
        "swaps": few,
        "dequantizes": mixed and dequantizes(),
        "pairs": False if invariant else pairs(),
        "invariant": invariant,
    }


def maximum() -> str | None:
    """CUTE_FA4_MAXIMUM, for the schedule's maximum; None: the problem decides."""
    return {"auto": None, "exact": "exact"}[environment.choice(MAXIMUM_VARIABLE, "auto", "exact")]


def exponential() -> str | None:
    """CUTE_FA4_EXPONENTIAL, for the schedule's exponential; None: problem and arch decide."""
    asked = environment.choice(EXPONENTIAL_VARIABLE, "auto", "exact")
    return {"auto": None, "exact": "exact"}[asked]


def dependent_launch() -> bool | None:
    """CUTE_FA4_PDL, for every kernel's launch; None: the problem decides."""
    return {"auto": None, "off": False}[environment.choice(PDL_VARIABLE, "auto", "off")]


def batch_invariant(said: bool | None = None) -> bool:
    """Whether a call keeps the contract of docs/invariance.md. said: its batch_invariant, if given."""
    if said is not None:
        return said
    return environment.choice(INVARIANT_VARIABLE, "auto", "on") == "on"


def check_batch_invariant(value) -> None:
    """Raise TypeError unless batch_invariant has an accepted value."""
    if not (value is None or value is True or value is False):
        raise TypeError(
            f"batch_invariant: {value!r}; accepted: True (the bits of a row depend on that row alone), False, or None: "
            f"as {INVARIANT_VARIABLE} says (docs/invariance.md)"
        )


def of_schedules(invariant: bool | None = None) -> dict:
    """The variables for every schedule's choices. invariant: the call's batch_invariant."""
    if batch_invariant(invariant):
        # No row affects another one, by its maximum or by how many there are, and an LSE that is returned affects none.
        return _of_schedules() | {"maximum": "exact", "lone_tiles": False, "row_sum": "exact"}
    return _of_schedules()


def _of_schedules() -> dict:
    return {
        "claims": claims(),
        "maximum": maximum(),
        "exponential": exponential(),
        "dependent_launch": dependent_launch(),
    }


def is_warming_up() -> bool:
    """Whether compilation was requested explicitly."""
    return _warming_up.get()


@contextlib.contextmanager
def warming_up():
    """Inside, compilation was requested explicitly."""
    token = _warming_up.set(True)
    try:
        yield
    finally:
        _warming_up.reset(token)
