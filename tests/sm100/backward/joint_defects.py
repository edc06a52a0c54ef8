"""Defects of the kernel of all gradients: turns of dQ, dS in two CTAs, columns, places (defects.py)."""

from tests.sm100.backward.damaged import Defect

THREE = "joint, three pairs"
JOINT = {
    # --- turns
    "a pair that adds waits for nobody": Defect(
        "joint_dq",
        "    turns.await_turn(counters[0], work.number)",
        "    if place.tile < work.last_before:\n        turns.await_turn(counters[0], work.number)",
        THREE,
    ),
    "the last pair waits for nobody": Defect(
        "joint_dq",
        "    turns.await_turn(counters[0], work.number)",
        "    if place.tile >= work.last_before:\n        turns.await_turn(counters[0], work.number)",
        "joint",
    ),
    "all warps have the first one's counter": Defect("joint_dq", "(COUNTERS // 2) + warp", "(COUNTERS // 2)", THREE),
    "a turn ends before additions are complete": Defect("joint_dq", "read=False", "read=True", "joint"),
    "a turn does not end": Defect("joint_dq", "    turns.end_turn(counter)", "    pass", "joint"),
    "pairs have the first number": Defect("work", "return side_by_side(number,", "return side_by_side(0,", "joint"),
    "heads have one counter": Defect("joint_dq", "q_head(owner, work, place) * args.stats.shape[1]", "0", THREE),
    # --- the first and the last pair of a tile
    "all pairs store": Defect(
        "joint_dq", "if work.number == 0:\n            put", "if work.number >= 0:\n            put", THREE,
    ),
    "the last pair leaves out the sum": Defect(
        "joint_dq", "x.bitcast(Float32) + own[first + i]", "own[first + i]", "joint",
    ),
    "pairs that are alone load the sum": Defect(
        "joint_dq", "elif work.number == 0:", "elif work.number < 0:", "joint, far below",
    ),
    "all pairs but the last are the last": Defect(
        "work", "choose(following < own,", "choose(following >= own,", "joint",
    ),
    "all rows read the sum as the first one": Defect(
        "joint_dq", "at = swizzled(row, inside", "at = swizzled(0, inside", "joint",
    ),
    "the sum has the first columns twice": Defect(
        "joint_dq", "in rows.boxes(BOX):\n", "in [(at, rows.column) for at, _ in rows.boxes(BOX)]:\n", "joint",
    ),
    "the sum of the first tile is awaited": Defect("joint_dq", "loads_before(work, place) & 1", "0", "joint"),
    "tiles begin with the first": Defect(
        "work", "DescendingPlace(work.end - 1,", "DescendingPlace(work.first,", "joint",
    ),
    "the same head again, by all gradients": Defect(
        "work", "choose(last, 0, self.turn + 1))", "0 * self.turn)", "joint",
    ),
    # --- dS
    "dS of both CTAs has the first keys": Defect("joint_compute", "work.rank * ROWS + thread", "thread", "joint"),
    "dS is sent to its own CTA": Defect("joint_compute", "other = work.rank ^ 1", "other = work.rank", "joint"),
    "dS is written before dQ has been made": Defect(
        "joint_compute", "        cta.dq_ready.wait(0, (n & 1) ^ 1)", "        pass", "joint",
    ),
    "dS of the other CTA is not fenced": Defect(
        "joint_products", '    cute.arch.fence_proxy("async.shared", space="cluster")', "    pass", "joint",
    ),
    "bytes of the other CTA are not announced": Defect(
        "joint_products", "owner.ds_tile.nbytes // owner.ctas", "0", "joint",
    ),
    "CTA 1 has no dS": Defect("joint_products", "            cta.ds_there.wait(0, n & 1)\n", "", "joint"),
    # --- columns and rows
    "both CTAs load the same columns": Defect("joint_load", "work.rank * (DEPTH", "0 * (DEPTH", "joint"),
    "columns of its own keys": Defect("joint_load", "(half - work.rank) * ROWS", "0", "joint"),
    "both CTAs load the same queries": Defect(
        "load", "row = row + rank_row(owner, work)", "row = row", "joint",
    ),
    "both CTAs load the same columns of queries": Defect(
        "load", "column = work.rank * owner.summed_tile(i).cols", "column = 0", "joint",
    ),
    "both CTAs subtract the same numbers": Defect(
        "load", "(row_in_line(owner, place, 0) + rank_row(owner, work))", "row_in_line(owner, place, 0)", "joint",
    ),
    "both CTAs add the same queries": Defect(
        "joint_dq", "work.rank * owner.tiles[0].rows + warp", "warp", "joint",
    ),
    "dQ has the first columns twice": Defect(
        "joint_dq", "work, place), warp // 2 * (DEPTH // 2)", "work, place), 0", "joint",
    ),
    "dP subtracts L": Defect("load", "group, (i, line, head))", "group, (0, line, head))", "joint"),
    "L and delta have one place": Defect("operands", "owner.made_part(i) if", "owner.made_part(0) if", "joint"),
    # --- places that are used again
    "S over dQ that is not read": Defect(
        "joint_products", "                cta.dq_read.wait(0, (n & 1) ^ 1)", "                pass", "joint",
    ),
    "dQ over S that is not read": Defect(
        "joint_products", "                cta.s_read.wait(0, (n & 1) ^ 1)", "                pass", "joint",
    ),
    "staged dQ is not seen by its copy": Defect(
        "joint_dq", '    cute.arch.fence_proxy("async.shared", space="cta")\n', "", "joint",
    ),
    "a sum over dQ that is not stored": Defect(
        "joint_dq", "            cute.arch.cp_async_bulk_wait_group(0, read=True)", "            pass", "joint",
    ),
    "columns of K are not awaited": Defect(
        "joint_products", "                cta.own_full.wait(K_COLUMNS, 0)", "                pass", "joint",
    ),
    # --- keys that do not exist
    "keys beyond the end have weights": Defect(
        "joint_compute", "select_(key < work.sequence.length_k, word, Int32(0))", "word", "joint, far below",
    ),
    "no tile is cut by the end of keys": Defect(
        "joint_compute", "cut | (work.row + ROWS > work.sequence.length_k)", "cut", "joint, far below",
    ),
}  # fmt: skip
