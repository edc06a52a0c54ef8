"""CUTE_FA4_JIT: what happens when a call needs a kernel that is neither loaded nor cached.

    allow   compile it (default)
    warn    compile it, with a JitWarning that names the configuration
    error   raise JitError: a service that must not stall finds out at once, and which kernel to export

cute_fa4.warmup compiles whatever the policy: it is called when a service starts.

CUTE_FA4_CLAIMS: which kernels calls, catalogues and lists of a model's kernels ask for.

    auto    as a rule says of each problem (sm100/blueprint/claims.py; default)
    on      a CTA that is done takes over a block that has not started (TwoTiles.claims)
    off     it ends, to compare with

CUTE_FA4_SWAP: which tiles calls of few queries ask for.

    auto    up to 32 query rows, heads of a packed group counted: tiles with swapped operands (sm100/few_rows; default)
    off     tiles of 128 rows, to compare with

CUTE_FA4_PAIR: whether calls of more queries than one tile of 128 rows ask for pairs of CTAs that share their MMAs.

    auto    as rules say of their lengths (sm100/choose/which_kernel.py, choose/pays.py; default)
    on      pairs, of 16 bits, full or causal, and of wide heads (sm100/two_tiles/pair, wide/pair)
    off     every CTA by itself (sm100/two_tiles, wide)

CUTE_FA4_MAXIMUM: what the exponentials of a row refer to, in kernels of two query tiles.

    auto    as the problem allows: in bf16 up to head dim 128 the key tiles before (sm100/steps/lagged.py; default)
    exact   the running maximum of the row, to compare with, or where values of v exceed 2^60

CUTE_FA4_FP8_QUERIES: what becomes of queries of 16 bits over a cache of 8 in calls without q_quantize.

    auto       the kernel dequantizes keys and values (dequantized/ of sm100/few_rows and two_tiles); more than 32 rows
               of queries are quantised before, where the accuracy of a row depends on no other sequence
               (calls/queries.py; default)
    never      keys and values are widened, however many rows there are
    quantised  the queries are quantised before, however few; also with q_quantize="auto"; to compare with

CUTE_FA4_EXPONENTIAL: how kernels of two query tiles compute part of the exponentials of 8-bit tensors.

    auto    as the arch asks: on sm_100a in f16 (sm100/steps/half_powers.py; default)
    exact   in float32, to compare with

CUTE_FA4_PDL: whether kernels may start before the launch in front of them has ended (programmatic dependent launch).

    auto    kernels of few queries and those that split keys or merge them (docs/decisions/0007; default)
    off     none: each launch begins when the one before it has ended, and no kernel waits or signals

CUTE_FA4_BATCH_INVARIANT: whether the bits of a row may depend on anything but that row, its keys and values.

    auto    as the call says with tokens_per_split (default)
    on      they do not: every call keeps the contract of docs/invariance.md

All are read when the kernel of a call is chosen, which is once for calls that are alike.
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

QUANTIZE = ("auto", "never")  # of q_quantize, besides None

_warming_up = contextvars.ContextVar("warming_up", default=False)


class JitError(RuntimeError):
    """A call needs a kernel that is not there, and CUTE_FA4_JIT=error."""


class JitWarning(UserWarning):
    """A call compiles a kernel, which takes seconds, and CUTE_FA4_JIT=warn."""


def policy() -> str:
    return environment.choice(VARIABLE, *POLICIES)


def claims() -> bool | None:
    """What CUTE_FA4_CLAIMS says of the schedule's claims; None: that the problem decides."""
    return {"auto": None, "on": True, "off": False}[
        environment.choice(CLAIMS_VARIABLE, "auto", "on", "off")
    ]


def swaps() -> bool:
    """Whether calls of few queries ask for tiles with swapped operands."""
    return environment.choice(SWAP_VARIABLE, "auto", "off") == "auto"


def widens() -> bool:
    """Whether calls of few queries of 16 bits ask for kernels that widen keys of 8."""
    return swaps() and queries() != "quantised"


def queries() -> str:
    """What becomes of queries of 16 bits over keys of 8: "auto", "never" or "quantised"."""
    return environment.choice(QUERIES_VARIABLE, "auto", "never", "quantised")


def check_quantize(q_quantize) -> None:
    """Refuse what q_quantize cannot be."""
    if not (q_quantize is None or (isinstance(q_quantize, str) and q_quantize in QUANTIZE)):
        raise ValueError(
            f"q_quantize: {q_quantize!r}; accepted: 'auto', 'never', or None, which lengths decide "
            "(docs/serving/eight_bits.md)"
        )


def pairs() -> bool | None:
    """Whether calls of many queries ask for pairs of CTAs; None: that a rule decides."""
    return {"auto": None, "on": True, "off": False}[
        environment.choice(PAIR_VARIABLE, "auto", "on", "off")
    ]


def of_kernels(mixed: bool = True) -> dict:
    """What the variables say to the rule that names a call's kernel (sm100/choose/which_kernel.py).

    mixed: queries of 16 bits may meet keys of 8
    """
    few, invariant = swaps(), batch_invariant()
    return {
        "swaps": few,
        "widens": mixed and widens(),
        "pairs": False if invariant else pairs(),
        "invariant": invariant,
    }


def maximum() -> str | None:
    """What CUTE_FA4_MAXIMUM says of the schedule's maximum; None: that the problem decides."""
    return {"auto": None, "exact": "exact"}[environment.choice(MAXIMUM_VARIABLE, "auto", "exact")]


def exponential() -> str | None:
    """What CUTE_FA4_EXPONENTIAL says of the schedule's exponential; None: that problem and arch decide."""
    asked = environment.choice(EXPONENTIAL_VARIABLE, "auto", "exact")
    return {"auto": None, "exact": "exact"}[asked]


def dependent_launch() -> bool | None:
    """What CUTE_FA4_PDL says of every kernel's launch; None: that the problem decides."""
    return {"auto": None, "off": False}[environment.choice(PDL_VARIABLE, "auto", "off")]


def batch_invariant() -> bool:
    """Whether every call keeps the contract of docs/invariance.md."""
    return environment.choice(INVARIANT_VARIABLE, "auto", "on") == "on"


def of_schedules() -> dict:
    """What the variables say of every schedule's choices."""
    if (
        batch_invariant()
    ):  # no row decides for another one: neither its maximum nor how many rows there are
        return _of_schedules() | {"maximum": "exact", "lone_tiles": False}
    return _of_schedules()


def _of_schedules() -> dict:
    return {
        "claims": claims(),
        "maximum": maximum(),
        "exponential": exponential(),
        "dependent_launch": dependent_launch(),
    }


def is_warming_up() -> bool:
    """Whether compiling is what was asked for."""
    return _warming_up.get()


@contextlib.contextmanager
def warming_up():
    """Inside, compiling is what was asked for."""
    token = _warming_up.set(True)
    try:
        yield
    finally:
        _warming_up.reset(token)
