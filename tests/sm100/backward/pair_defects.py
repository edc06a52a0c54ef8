"""Defects of pairs of CTAs: which CTA a signal reaches, whose half is loaded, who begins and ends when (defects.py).

Those of what all families of pairs share, allocations and meetings, are also planted in PTX (test_planted.py).
"""

from tests.sm100.backward.damaged import Defect

PAIRS = {
    # --- signals
    "S is ready in CTA 0 alone": Defect("pair", '("s_ready", "dp_ready",', '("dp_ready",', "pairs"),
    "dP is ready in CTA 0 alone": Defect("pair", '"s_ready", "dp_ready",', '"s_ready",', "pairs"),
    "slots are empty in CTA 0 alone": Defect("pair", '"other_empty", "done"', '"done"', "pairs"),
    "sums are done in CTA 0 alone": Defect("pair", '"other_empty", "done"', '"other_empty",', "pairs"),
    "compute warps arrive in their own CTA": Defect(
        "pair", '(*READ_OR_WRITTEN, "own_there", "dq_read")', '("own_there", "dq_read")', "pairs",
    ),
    "one CTA's own tiles are there": Defect(
        "products", "cta.own_moved if owner.ctas == 1 else cta.own_there", "cta.own_moved", "pairs",
    ),
    "nobody says that own tiles are there": Defect(
        "own_tile", "        cta.own_there.arrive(owner.moved.index(i))", "        pass", "pairs",
    ),
    "arrivals of one CTA": Defect(
        "barriers", "by_warps_of_both(arrivals)", "replace(arrivals, count=arrivals.count // WARP_SIZE)", "pairs",
    ),
    "arrivals of threads": Defect("barriers", "replace(by_warps_of_both(arrivals), h", "replace(arrivals, h", "pairs"),
    "bytes of one CTA are announced": Defect("pair", '    "other_full": LoadedForBoth,\n', "", "pairs"),
    "own tiles that stay count in their own CTA": Defect(
        "pair", "both = owner.ctas > 1 and i not in owner.moved", "both = False", "pairs",
    ),
    "copies of CTA 1 count there": Defect("kernel", "[group] * 2", "[1] * 2", "pairs"),
    "copies of columns count in their own CTA": Defect(
        "kernel", "[owner.ctas] * len(of_sums)", "[1] * len(of_sums)", "pairs",
    ),
    "numbers of CTA 1 count there": Defect("operands", "core, cta_group=owner.ctas", "core", "pairs"),
    "own tiles that move count in CTA 0": Defect(
        "kernel", "1 if i in owner.moved else group", "group", "pairs",
    ),
    # --- beginning and end
    "both CTAs issue": Defect("kernel", "if is_leader():", "if warp == warps.mma:", "pairs"),
    "a CTA without rows does not await its sums": Defect(
        "store", "  # a CTA without rows outlives its commits, too\n        await_sums(cta, work)\n", "\n", "pairs",
    ),
    "results over own tiles that are read": Defect(
        "store", "        await_moves(owner, cta, work)\n", "        pass\n", "pairs",
    ),
    "a CTA ends before the other": Defect(
        "kernel", "            meet()\n", "            cute.arch.sync_threads()\n", "pairs that see nothing",
    ),
    "tensor memory is freed for one CTA": Defect("kernel", "is_two_cta=owner.ctas > 1", "is_two_cta=False", "pairs"),
    "tensor memory is allocated for one CTA": Defect(
        "kernel", "        if cutlass.const_expr(owner.ctas == 1):\n            if warp == warps.mma:",
        "        if cutlass.const_expr(owner.ctas >= 1):\n            if warp == warps.mma:", "pairs",
    ),
    # --- halves
    "both CTAs load the first rows": Defect("load", "row + rank_row(owner, work)\n", "row\n", "pairs"),
    "both CTAs load the first columns": Defect("load", "work.rank * owner.summed_tile(i).cols", "0", "pairs"),
    "sums read rows": Defect(
        "products", "ring_address(owner, cta, slots, owner.summed_part(result))",
        "ring_address(owner, cta, slots, owner.made_part(0))", "pairs",
    ),
    # --- parts of the ring
    "columns are not awaited": Defect(
        "products", "            await_summed(owner, cta, slots, 0)\n", "            pass\n", "pairs",
    ),
    "columns of the turn itself": Defect(
        "load", "                    load_part(cfg, owner, args, cta, work, before, slots, number)\n",
        "                    load_part(cfg, owner, args, cta, work, place, slots, number)\n", "pairs",
    ),
    "the last columns are not loaded": Defect(
        "load", "            if work.count > 0:",
        "            if work.count > 1 << 20:", "pairs",
    ),
    "rows are free after the sum": Defect(
        "products", "(not owner.parts[part].summed and owner.has_dp)", "(False)", "pairs",
    ),
    "tile 0 is free when its rows are": Defect("owner", "return max(j for j", "return min(j for j", "pairs, 128"),
    # --- L and delta
    "L for delta": Defect("load", "group, (i, line, head)", "group, (0, line, head)", "pairs"),
    "L and delta in one place": Defect(
        "operands", "cta.stats_address + owner.stats_offset(part)",
        "cta.stats_address", "pairs",
    ),
    "ones without zeros": Defect(
        "subtracted", "thread < ROWS_PER_PERIOD, row[i], Int32(0)",
        "thread < 99, row[i], Int32(0)", "pairs",
    ),
    "groups of ones lie apart": Defect(
        "subtracted", "SmemDescriptor(0, CORE_BYTES, 0, SWIZZLE_NONE)",
        "SmemDescriptor(0, CORE_BYTES, CORE_BYTES, SWIZZLE_NONE)", "pairs",
    ),
    "both CTAs subtract the first numbers": Defect(
        "load", "row_in_line(owner, place, 0) + rank_row(owner, work)", "row_in_line(owner, place, 0)", "pairs",
    ),
    # --- rows and tiles
    "both CTAs own the same rows": Defect("work", "row = row + rank * ROWS", "row = row + rank * 0", "pairs"),
    "tiles that CTA 0 sees": Defect("work", "row + (rows - 1)", "row + (ROWS - 1)", "pairs"),
    "pairs own 128 rows": Defect("work", "row = tile * rows", "row = tile * ROWS", "pairs"),
    "half of the CTAs": Defect("work", "ROWS * owner.ctas) * owner.ctas", "ROWS * owner.ctas) * 2 // 2", "pairs"),
    "the last queries are counted in 128": Defect(
        "work", "tiles_of(longest, rows) - 1", "tiles_of(longest) - 1", "pairs",
    ),
    "every CTA is a pair": Defect("work", "block = block // owner.ctas", "block = block", "pairs"),
    "L of queries that are not there": Defect(
        "cta", "has_rows = work.row < work.sequence.length_q", "has_rows = work.count > 0", "pairs",
    ),
}  # fmt: skip
