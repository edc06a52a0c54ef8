"""Defects of operands: dS beside dP, the own tile in tensor memory, L and delta as a step of the MMAs (defects.py).

Left out, because they change nothing or too little: a FAR that makes weights of 1 of zeros, whose products are zeros;
two parts of L and delta instead of three, that is 16 bits, where gradients are rounded to 8
"""

from tests.sm100.backward.damaged import Defect

OPERANDS = {
    # --- dS in columns of its own, and own tile 0 in tensor memory
    "dS is written over one that is read": Defect(
        "compute", "                cta.other_empty.wait(before.index, before.phase)", "                pass", "causal",
    ),
    "no fence before the next dS": Defect(
        "compute", "before.phase)  # the sum has read the dS before\n                tensor_memory.fence_after()\n",
        "before.phase)\n", "causal",
    ),
    "dS waits for the sum of two turns before": Defect(
        "compute", "slot.previous(owner.slots[0])\n",
        "slot.previous(owner.slots[0]).previous(owner.slots[0])\n", "causal",
    ),
    "dS over dP, which is made again": Defect(
        "config", "return 2 * self.other_rows, self.p_columns", "return self.dp_column, self.p_columns", "causal",
    ),
    "dQ over dS": Defect("config", "2 * self.p_columns * self.ds_apart", "0", "causal"),
    "dQ before the next dP reads another dS": Defect(
        "products", "owner.p_place if result else owner.ds_place", "owner.p_place", "causal",
    ),
    "the own tile is moved before it is there": Defect("own_tile", "    cta.own_full.wait(0, 0)\n", "", "causal"),
    "the own tile is not awaited in its columns": Defect(
        "products", "            cta.own_moved.wait(0, 0)\n", "", "causal",
    ),
    "no fence after the own tile": Defect(
        "products", "own_moved.wait(0, 0)\n            tensor_memory.fence_after()", "own_moved.wait(0, 0)", "causal",
    ),
    "the own tile is announced before it is moved": Defect(
        "own_tile", "    tensor_memory.wait_store()\n", "", "causal",
    ),
    "no fence before the own tile": Defect("own_tile", "    tensor_memory.fence_before()\n", "", "causal"),
    "both warpgroups move the first half": Defect("own_tile", "group * half + column", "column", "causal"),
    "both halves of the own tile in one place": Defect(
        "own_tile", "group * (half * value_bytes // F32_BYTES)", "0", "causal",
    ),
    "batches of the own tile overlap": Defect(
        "own_tile", "to + first * value_bytes // F32_BYTES", "to + first // 4", "widest",
    ),
    "the own tile over dP": Defect(
        "config", "        return self._columns_before_own\n\n", "        return ROWS\n\n", "causal",
    ),
    # --- L and delta in a step of the MMAs
    "no step subtracts L and delta": Defect("products", "if owner.subtracts:", "if False:", "causal"),
    "delta from S": Defect("products", "of_dp=i == 1", "of_dp=True", "causal"),
    "L from dP": Defect("products", "of_dp=i == 1", "of_dp=False", "causal"),
    "parts of slot 0": Defect("products", "slots[0].index * (owner.stats * F32_BYTES)", "0", "causal"),
    "parts are loaded into slot 0": Defect("load", "slots[0].index * (owner.stats * 4)", "0", "causal"),
    "L and delta for their parts": Defect("operands", "(STATS if owner.subtracts else 0)", "0", "causal"),
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
        "kernel", '            cute.arch.fence_proxy("async.shared", space="cta")\n', "", "causal",
    ),
}  # fmt: skip
