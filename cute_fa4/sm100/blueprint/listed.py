"""Lists of key blocks (work/block_lists.py): which problems may have them, and block sizes that a schedule runs."""

from . import bands

LISTED_BLOCK = 128  # sizes are multiples of a tile
PARTIAL, FULL = 1, 2  # kinds of blocks; 0: not listed
# Of an entry in the lists of the backward pass: a tile or half of one, a head of the group (backward/listed.py).
TILE_BITS, TURN_BITS = 20, 10
# Where lists are cut: Int32 of an entry of the order (work/list_parts.py), of a list that is cut (work/lists/cut.py).
OF_CUT = {"order": 4, "cut": 3}
ORDER_WORDS, CUT_WORDS = OF_CUT.values()
PLAIN = dict(
    cache_batch_idx=False, cache_leftpad=False, pack_gqa=False, latent=False, split_keys=False, rope_depth=0,
    kv_dtype=None,
)  # fmt: skip
FIELDS = (
    "q_block", "kv_block", "full_blocks", "packed_lists", "list_offsets", "longest_first", "cut_lists",
)  # fmt: skip


def has_tensors(problem) -> tuple[bool, ...]:
    """Which tensors of lists a kernel has, in the order of BlockLists (work/block_lists.py)."""
    full = problem.full_blocks
    return True, True, full, full, problem.packed_lists, problem.list_offsets


def contradictions(problem) -> list[str]:
    """Errors in the fields of lists, and what does not go with them."""
    if not problem.q_block:
        given = {name: getattr(problem, name) for name in FIELDS}
        return [
            f"{name}={value} with q_block={problem.q_block}: there are no lists: use {type(value)(0)}"
            for name, value in given.items()
            if value
        ]
    size = f"q_block={problem.q_block}"
    why = [
        f"{name}={getattr(problem, name)} is no size of listed blocks: use a multiple of {LISTED_BLOCK}"
        for name in ("q_block", "kv_block")
        if getattr(problem, name) < 1 or getattr(problem, name) % LISTED_BLOCK
    ]
    if problem.mask != bands.Full():
        why.append(
            f"mask={problem.mask!r} with {size}: lists say which key blocks are visible: use masks.Full(), and a "
            "mask_mod for what else is hidden"
        )
    if problem.list_offsets and not problem.packed_lists:
        why.append(
            "list_offsets=True with packed_lists=False: they are places in packed lists: use packed_lists=True"
        )
    if problem.cut_lists and problem.q_layout == "packed":
        why.append(
            "cut_lists=True with q_layout='packed': parts of lists are of dense queries: use cut_lists=False"
        )
    of_parts = dict(longest_first=problem.longest_first, write_lse=problem.write_lse)
    why += [
        f"cut_lists=True with {name}=False: parts are in the sorted order, and are merged by their log-sum-exps: use "
        f"{name}=True"
        for name, value in of_parts.items()
        if problem.cut_lists and not value
    ]
    why += [
        f"{name}={getattr(problem, name)!r} with {size} is not supported: use {value!r}"
        for name, value in PLAIN.items()
        if getattr(problem, name) != value
    ]
    return why


def refusals(problem, rows: int) -> list[str]:
    """Why a schedule whose CTAs have so many rows does not run the lists."""
    if not problem.q_block % rows:  # 0: there are no lists
        return []
    other = "scales that are not of blocks" if problem.block_scales else "schedule=OneTile()"
    return [
        f"q_block={problem.q_block}: a CTA has {rows} rows, which share a list: use a multiple of {rows}, or {other}"
    ]
