"""Defects where head dims are beyond 192 or of v beyond 128: tiles of 64 rows, kernels of dK and of dV (defects.py).

Left out, because it changes nothing: the first tile of the other side is that of 128 rows, of which masks hide the rest
"""

from tests.sm100.backward.damaged import Defect

WIDE = {
    "dO is not awaited": Defect(
        "dv_alone", "await_summed(owner, cta, slots, 1)", "pass", "widest",
    ),
    "P is not awaited before dV alone": Defect(
        "dv_alone", "cta.p_ready.wait(place.index, place.phase)", "pass", "widest",
    ),
    "Q is free before L is read": Defect(
        "products", "(not owner.parts[part].summed and owner.has_dp)",
        "(not owner.parts[part].summed)", "soft cap, widest",
    ),
    "Q is never free": Defect(
        "dv_alone", "cta.other_empty.commit(ring_index(owner, slots, 0))", "pass", "widest",
    ),
    "no fence before dV alone": Defect("dv_alone", "tensor_memory.fence_after()", "pass", "widest"),
    "the next S in the place of this one": Defect("owner", "1 if self.has_dp else 2", "1", "widest"),
    "dV of the other P": Defect(
        "products", "place_of_s(owner, n).index * o", "place_of_s(owner, n + 1).index * o", "widest",
    ),
    "both S have one place and one barrier": Defect(
        "operands", "Slot(n & 1, (n >> 1) & 1)", "Slot(Int32(0), n & 1)", "widest",
    ),
    "the places of S have the parities of turns": Defect(
        "operands", "Slot(n & 1, (n >> 1) & 1)", "Slot(n & 1, n & 1)", "widest",
    ),
    "S over the other S": Defect("products", "owner.s_column + place * owner.other_rows", "owner.s_column", "widest"),
    "P over the other S": Defect(
        "compute", "owner.p_place) + place * owner.other_rows", "owner.p_place)", "widest",
    ),
    "L with the stride of L and delta": Defect(
        "compute", "slot.index * owner.stats", "slot.index * 256", "soft cap, widest",
    ),
    "L of the first half": Defect(
        "work", "row + place.tile % of_line * owner.other_rows", "row", "widest",
    ),
    "L of another line": Defect("work", "place.tile // (ROWS // owner.other_rows)", "place.tile", "widest"),
    "scores count tiles of 128": Defect(
        "compute", "place.tile * owner.other_rows + thread.column", "place.tile * ROWS + thread.column", "widest",
    ),
    "tiles of 64 are whole like those of 128": Defect(
        "compute", "hi < start + owner.other_rows", "hi < start", "widest",
    ),
    "loads count tiles of 128": Defect(
        "load", "of.first_q, of.length_q, place.tile * owner.other_rows",
        "of.first_q, of.length_q, place.tile * 128", "widest",
    ),
    "other tiles end at 128": Defect("work", "others), 0), owner.other_rows)", "others), 0))", "widest"),
    "only 128 columns of O": Defect(
        "delta", "range_constexpr(0, pieces, LANES)", "range_constexpr(0, LANES, LANES)", "widest",
    ),
    "the second warpgroup has 64 columns further": Defect(
        "cta", "warp // 4 * owner.columns", "warp // 4 * 64", "widest",
    ),
    "the first half of a block twice": Defect(
        "listed", "tile_of(whole) + number % 2", "tile_of(whole)", "lists, widest",
    ),
    "sums of tiles of 128": Defect(
        "sums", "first = place.tile * owner.other_rows", "first = place.tile * ROWS", "one of each, widest",
    ),
    "sums of a warp over 64 columns": Defect(
        "sums", "load_pairs(s, dp, owner.columns", "load_pairs(s, dp, 64", "rows, widest",
    ),
    "both halves of a row of 64 in one place": Defect(
        "sums", "// owner.columns * ROWS + thread.row]", "// 64 * ROWS + thread.row]", "rows, widest",
    ),
    "distances of tiles of 64 lie 256 apart": Defect(
        "sums", "place.tile * owner.distances", "place.tile * 256", "one of each, widest",
    ),
    "threads without a distance write": Defect(
        "sums", "elif mine < owner.distances:", "elif mine >= 0:", "one of each, widest",
    ),
    "keys of sums are loaded in tiles of 128": Defect(
        "kernel", "others, owner.tiles[0].rows", "others, ROWS", "rows, widest",
    ),
    "half of the entries": Defect(
        "listed", "HalvedList(count * 2, entries)", "HalvedList(count, entries)", "lists, widest",
    ),
}  # fmt: skip
