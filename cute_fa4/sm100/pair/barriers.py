"""Barriers of two CTAs that share their MMAs: the single-CTA barriers with other counts, and three more.

CTA 0 issues the MMAs of both CTAs. Both CTAs arrive on the barriers that CTA 0 waits for, in its shared memory
("at 0"), with one arrival per warp: 32 arrivals per warp would be 32 messages from one SM to the other.
"""

from dataclasses import replace

from ..blueprint.barriers import CTA, SOFTMAX, WORK_ENTRY, Arrivals, Barrier
from ..blueprint.chip import WARP_SIZE
from ..blueprint.warp_roles import WarpRoles

CTAS = 2
LEADER = 0  # rank of the CTA whose mma warp issues


def of_pair(row: Barrier) -> Barrier:
    """The pair version of a single-CTA barrier."""
    if row.name in ("q_full", "kv_full"):
        return replace(row, raised_by=(Arrivals("load", 1, "+ bytes of both"),))
    if row.name in ("p_ready", "p_last"):
        *some, last = (by_warps_of_both(arrivals) for arrivals in row.raised_by)
        raised_by = (*some, replace(last, how="at 0"))
        return replace(row, raised_by=raised_by, awaited_by="mma")
    return row


def by_warps_of_both(arrivals: Arrivals) -> Arrivals:
    """One arrival per warp of both CTAs, in place of one per thread."""
    return Arrivals(arrivals.role, CTAS * arrivals.count // WARP_SIZE)


def factor_read(warps: WarpRoles) -> Barrier:
    return Barrier(
        "factor_read",
        SOFTMAX,
        (Arrivals("correction", len(warps.correction)),),
        "softmax",
        "the last factor has been read",
        "the next factor follows this wait, or s_ready of a P V that waited for p_ready",
    )


def other_verdict() -> Barrier:
    return Barrier(
        "verdict",
        WORK_ENTRY,
        (Arrivals("load", 1, "of the other"),),
        "load",
        "whether the other CTA does",
        "the verdict of the next work tile follows this wait",
    )


def claim_read() -> Barrier:
    return Barrier(
        "claim_read",
        CTA,
        (Arrivals("load", 1, "of 1, at 0"),),
        "load",
        "both have read the last answer",
        "one claim at a time",
    )
