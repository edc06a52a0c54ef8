"""Defects of operands: dS beside dP, own tiles in tensor memory, L and delta as a step of the MMAs (defects.py).

Left out, because they change nothing or too little: a FAR that makes weights of 1 of zeros, whose products are zeros;
two parts of L and delta instead of three, that is 16 bits, where gradients are rounded to 8
"""

from tests.sm100.backward.damaged import Defect

OPERANDS = {
    # --- dS in columns of its own, and own tiles in tensor memory
    "dS is written over one that is read": Defect(
        "compute", "        cta.other_empty.wait(before.index + owner.first_slot(part), before.phase)", "        pass",
        "causal",
    ),
    "no fence before the next dS": Defect(
        "compute", "before.phase)\n        tensor_memory.fence_after()\n", "before.phase)\n", "causal",
    ),
    "dS waits for the sum of two turns before": Defect(
        "compute", "slot.previous(owner.slots[part])\n",
        "slot.previous(owner.slots[part]).previous(owner.slots[part])\n", "causal",
    ),
    "dS over dP, which is made again": Defect(
        "owner", '"dS":\n            return 2 * self.other_rows', '"dS":\n            return self.dp_column', "causal",
    ),
    "P over dP, which is made again": Defect(
        "owner", '"P":\n            return 2 * self.other_rows', '"P":\n            return self.dp_column', "narrow",
    ),
    "P is written over one that is read": Defect(
        "compute", '"P"):\n        await_sums(owner, cta, slot, n)', '"P"):\n        pass', "narrow",
    ),
    "sums of two warpgroups of four": Defect(
        "products", "group * apart + at", "group % 2 * apart + at", "narrow",
    ),
    "the last warpgroups move what the first do": Defect(
        "own_tile", "group * part + column", "group % 2 * part + column", "narrow",
    ),
    "dQ over dS": Defect("owner", "2 * self.other_rows + self._apart_columns", "2 * self.other_rows", "causal"),
    "dQ before the next dP reads another dS": Defect(
        "products", "owner.p_place if result else owner.ds_place", "owner.p_place", "causal",
    ),
    "the own tile is moved before it is there": Defect("own_tile", "    cta.own_full.wait(i, 0)\n", "", "causal"),
    "the own tile is not awaited in its columns": Defect(
        "products", "            moved.wait(owner.moved.index(i), 0)\n", "", "causal",
    ),
    "no fence after the own tile": Defect(
        "products", "moved.index(i), 0)\n            tensor_memory.fence_after()", "moved.index(i), 0)", "causal",
    ),
    "the own tile is announced before it is moved": Defect(
        "own_tile", "    tensor_memory.wait_store()\n", "", "causal",
    ),
    "no fence before the own tile": Defect("own_tile", "    tensor_memory.fence_before()\n", "", "causal"),
    "both warpgroups move the first half": Defect("own_tile", "group * part + column", "column", "causal"),
    "both halves of the own tile in one place": Defect(
        "own_tile", "group * (part * value_bytes // F32_BYTES)", "0", "causal",
    ),
    "batches of the own tile overlap": Defect(
        "own_tile", "to + first * value_bytes // F32_BYTES", "to + first // 4", "widest",
    ),
    "the own tile over dP": Defect(
        "owner", "self._columns + self._apart_columns + before", "self.other_rows + before", "causal",
    ),
    "own tiles in the same columns": Defect("owner", "in self.moved if j < i)", "in self.moved if j < 0)", "causal"),
    "both barriers of own tiles are the first": Defect(
        "own_tile", "own_moved.arrive(owner.moved.index(i))", "own_moved.arrive(0)", "causal",
    ),
    "V moves alone and has a second barrier": Defect(
        "own_tile", "own_moved.arrive(owner.moved.index(i))", "own_moved.arrive(i)", "wide",
    ),
    "the wait for V alone is for a second barrier": Defect("products", "owner.moved.index(i), 0)", "i, 0)", "wide"),
    "an own tile is overwritten before it has moved": Defect(
        "load", "cta.own_moved.wait(owner.moved.index(i), 0)", "pass", "causal",
    ),
    "the second own tile is overwritten before it has moved": Defect(
        "load", "wait(owner.moved.index(i), 0)", "wait(0, 0)", "causal",
    ),
    "the first slot over an own tile is not": Defect(
        "owner", "self.slots[part] - self.own_tiles[i].nbytes // self.slot_bytes(part)",
        "self.slots[part] - 1", "causal",
    ),
    "own tiles are in the ring of the first": Defect(
        "owner", "ring_offset(self.made_part(i) + 1)", "ring_offset(1)", "causal",
    ),
    "an own tile in the middle of its ring": Defect(
        "owner", "(self.made_part(i) + 1) - sizes[i]",
        "(self.made_part(i) + 1) - 2 * sizes[i]", "causal",
    ),
    "an own tile that stays is after one that has moved": Defect(
        "owner", "range(i) if j not in self.moved)", "range(i))", "widest",
    ),
    "products read own tiles in the ring": Defect("products", "    if i in owner.moved:", "    if False:", "causal"),
    # --- tiles of 64 rows with L and delta of 128 queries
    "parts of the first half of a line": Defect("load", "row_in_line(owner, place, 0) * NUMBERS_A_ROW", "0", "causal"),
    "parts of another half": Defect("load", "place, 0) * NUMBERS_A_ROW", "place, 0) * 4", "causal"),
    # --- L and delta in a step of the MMAs
    "no step subtracts L and delta": Defect("products", "if owner.subtracts:", "if False:", "causal"),
    "delta from S": Defect("products", "of_dp=i == 1", "of_dp=True", "causal"),
    "L from dP": Defect("products", "of_dp=i == 1", "of_dp=False", "causal"),
    "parts of slot 0": Defect(
        "products", "stats_address(owner, cta, slots, i)",
        "stats_address(owner, cta, first_slots(owner, 0), i)", "causal",
    ),
    "parts are loaded into slot 0": Defect(
        "load", "stats_address(owner, cta, slots, i)",
        "stats_address(owner, cta, operands.first_slots(owner, 0), i)", "causal",
    ),
    "L and delta for their parts": Defect("load", "STATS + row_in_line", "row_in_line", "causal"),
    "one part": Defect("subtracted", "PARTS = 3", "PARTS = 1", "far below"),
    "parts are added": Defect("delta", "-power / scale_log2", "power / scale_log2", "causal"),
    "parts without the scale": Defect("delta", "-power / scale_log2", "-power", "causal"),
    "delta is added": Defect("delta", "far, less - total", "far, total - less", "causal"),
    "delta without dlse in its parts": Defect("delta", "far, less - total", "far, -total", "dlse"),
    "rows beyond the end have weights in parts": Defect("subtracted", "FAR = -(2.0**100)", "FAR = 2.0**100", "causal"),
    "rows of a core in one place": Defect("subtracted", "row % ROWS_PER_PERIOD * CHUNK_BYTES", "0", "causal"),
    "cores of rows in one place": Defect("subtracted", "row // ROWS_PER_PERIOD * (2 * CORE_BYTES)", "0", "causal"),
    "parts of delta over those of L": Defect("subtracted", "first + number * CORE_BYTES", "first", "causal"),
    "parts in the layout of ones": Defect(
        "subtracted", "SmemDescriptor(0, CORE_BYTES, 2 * CORE_BYTES", "SmemDescriptor(0, BLOCK_BYTES, CORE_BYTES",
        "causal",
    ),
    "ones are not zeros elsewhere": Defect("subtracted", "const_expr(block == 1)", "const_expr(block >= 0)", "causal"),
    "the last ones are missing": Defect("subtracted", "< ROWS:", "< ROWS - 1:", "causal"),
    "ones are not seen by the tensor core": Defect(
        "subtracted", '    cute.arch.fence_proxy("async.shared", space="cta")\n', "", "causal",
    ),
}  # fmt: skip
