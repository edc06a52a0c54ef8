"""Defects planted in the sources of the backward kernels: a replaced text, and the problem that shows it.

Left out, because they change nothing:

    the compute warps do not wait for other_full       the MMA warp has, before the commit to s_ready that they wait for
    an L of -inf stays as it is (delta.py)             its row sees no key, so masks put 0 in the place of every P
    warpgroup 0 stores all chunks                      they are the same chunks
    own dS is not fenced (joint_compute.py)            the MMA warp fences dS of both CTAs after it has waited
    the ring of K has as many slots as that of V       one of its three is then not used
"""

from tests.sm100.backward.damaged import Defect
from tests.sm100.backward.joint_defects import JOINT
from tests.sm100.backward.operand_defects import OPERANDS
from tests.sm100.backward.pair_defects import PAIRS
from tests.sm100.backward.wide_defects import WIDE

DEFECTS = {
    # --- what waits for what
    "S is read before it is there": Defect("compute", "    cta.s_ready.wait(s.index, s.phase)\n", "", "causal"),
    "S is awaited with the other parity": Defect(
        "compute", "s_ready.wait(s.index, s.phase)", "s_ready.wait(s.index, s.phase ^ 1)", "causal",
    ),
    "dP is read before it is there": Defect("compute", "        cta.dp_ready.wait(0, n & 1)\n", "", "causal"),
    "no fence after S": Defect(
        "compute", "s_ready.wait(s.index, s.phase)\n    tensor_memory.fence_after()",
        "s_ready.wait(s.index, s.phase)", "causal",
    ),
    "no fence after dP": Defect(
        "compute", "dp_ready.wait(0, n & 1)\n        tensor_memory.fence_after()", "dp_ready.wait(0, n & 1)", "causal",
    ),
    "no fence before the next S": Defect(
        "compute", "        tensor_memory.fence_before()\n        cta.s_read", "        cta.s_read", "causal",
    ),
    "no fence before P": Defect("compute", "tensor_memory.fence_before()\n    cta.p_ready", "cta.p_ready", "causal"),
    "no fence before the next dP": Defect(
        "compute", "            tensor_memory.fence_before()\n            cta.dp_read", "            cta.dp_read",
        "causal",
    ),
    "no fence before dS": Defect(
        "compute", "tensor_memory.fence_before()\n        cta.ds_ready", "cta.ds_ready", "causal",
    ),
    "P is not waited for": Defect(
        "compute", "    tensor_memory.store(to, words)\n    tensor_memory.wait_store()\n",
        "    tensor_memory.store(to, words)\n", "causal",
    ),
    "dS is not waited for": Defect("compute", "ds)\n        tensor_memory.wait_store()\n", "ds)\n", "causal"),
    "S is free before it is read": Defect(
        "compute", "    scores = loaded(", "    cta.s_read.arrive(0)\n    scores = loaded(", "causal",
    ),
    "S and dP are used before they have come": Defect("compute", "    tensor_memory.wait_load()\n", "", "causal"),
    "the next S does not wait": Defect("products", "            cta.s_read.wait(0, n & 1)\n", "", "causal"),
    "the next dP does not wait": Defect("products", "                cta.dp_read.wait(0, n & 1)\n", "", "causal"),
    "P is not awaited": Defect("products", "                cta.p_ready.wait(0, n & 1)\n", "", "causal"),
    "P over dP is stored twice": Defect(
        "compute", "1 in owner.results and not owner.p_over_dp", "1 in owner.results", "causal",
    ),
    "P over the dP of dS": Defect(
        "owner", "self.dp_column + self.p_columns * self.p_over_dp", "self.dp_column", "causal",
    ),
    "dS is not awaited": Defect("products", "            cta.ds_ready.wait(0, n & 1)\n", "", "causal"),
    "dS is awaited with the other parity": Defect(
        "products", "ds_ready.wait(0, n & 1)", "ds_ready.wait(0, n & 1 ^ 1)", "causal",
    ),
    "no fence before dV": Defect(
        "products", "p_ready.wait(0, n & 1)\n                tensor_memory.fence_after()", "p_ready.wait(0, n & 1)",
        "causal",
    ),
    "no fence after S is read": Defect(
        "products", "s_read.wait(0, n & 1)\n            tensor_memory.fence_after()", "s_read.wait(0, n & 1)", "causal",
    ),
    "no fence after dP is read": Defect(
        "products", "dp_read.wait(0, n & 1)\n                tensor_memory.fence_after()", "dp_read.wait(0, n & 1)",
        "causal",
    ),
    "no fence before dK": Defect(
        "products", "ds_ready.wait(0, n & 1)\n            tensor_memory.fence_after()", "ds_ready.wait(0, n & 1)",
        "causal",
    ),
    "dP waits for the tile of S": Defect(
        "products", "    part = owner.made_part(i)\n    await_part(owner, cta, slots, part)",
        "    part = owner.made_part(i)\n    await_part(owner, cta, slots, 0)", "causal",
    ),
    "dP waits for the own tile of S": Defect("products", "own_full.wait(i, 0)", "own_full.wait(0, 0)", "widest"),
    "S is raised for dP": Defect("products", "cta.dp_ready.commit(0)", "cta.s_ready.commit(0)", "causal"),
    "a tile is free before it is added": Defect(
        "products",
        "tensor_core.mma_ts(column, tmem + first, start, steps, computes, high, accumulate=n > 0)\n"
        "    cta.other_empty.commit(ring_index(owner, slots, owner.summed_part(result)))\n",
        "cta.other_empty.commit(ring_index(owner, slots, owner.summed_part(result)))\n"
        "    tensor_core.mma_ts(column, tmem + first, start, steps, computes, high, accumulate=n > 0)\n",
        "causal",
    ),
    "the other slot is free": Defect(
        "products", "ring_index(owner, slots, owner.summed_part(result))",
        "ring_index(owner, next_slots(owner, slots), owner.summed_part(result))", "causal",
    ),
    "done before every dK": Defect(
        "products", "            add(owner, cta, tmem, slots, 0, n)\n",
        "            cta.done.commit(0)\n            add(owner, cta, tmem, slots, 0, n)\n",
        "causal",
    ),
    "the last tile is skipped": Defect("products", "cutlass.range(count,", "cutlass.range(count - 1,", "causal"),
    "loads wait for what is free": Defect(
        "load", "first_slots(owner, 1)", "first_slots(owner, 0)", "causal",
    ),
    "loads do not wait": Defect(
        "load", "    cta.other_empty.wait(operands.ring_index(owner, slots, number), slots[number].phase)\n",
        "    pass\n", "causal",
    ),
    "numbers are not announced": Defect(
        "load", "owner.slot_bytes(number) + numbers * F32_BYTES", "owner.slot_bytes(number)", "causal",
    ),
    "results before they are complete": Defect("store", "        cta.done.wait(0, 0)\n", "", "causal"),
    "no fence before results": Defect("store", "        tensor_memory.fence_after()\n", "", "causal"),
    "no fence between the proxies": Defect(
        "store", '    cute.arch.fence_proxy("async.shared", space="cta")\n', "", "causal",
    ),
    "a chunk is stored before it is written": Defect(
        "store", "    cute.arch.barrier(barrier_id=OF_GROUP + group, number_of_threads=ROWS)\n", "", "causal",
    ),
    "the warpgroups share a barrier": Defect("store", "barrier_id=OF_GROUP + group", "barrier_id=OF_GROUP", "causal"),
    "a CTA ends while its stores read": Defect(
        "store", "            cute.arch.cp_async_bulk_wait_group(0, read=True)\n", "            pass\n", "causal",
    ),
    "an arrival too few": Defect(
        "barriers", 'Arrivals("compute", warps.compute_threads)',
        'Arrivals("compute", warps.compute_threads - 1)', "causal",
    ),
    "an arrival too many": Defect(
        "barriers", 'Arrivals("compute", warps.compute_threads)',
        'Arrivals("compute", warps.compute_threads + 1)', "causal",
    ),
    # --- where things are
    "numbers of slot 0": Defect("compute", "slot.index * owner.stats + first", "first", "soft cap"),
    "both warpgroups have the numbers of the first": Defect(
        "compute", "numbers(owner, cta, slot, row_in_line(owner, place, thread.column))",
        "numbers(owner, cta, slot, 0)", "soft cap",
    ),
    "log-sum-exps for deltas": Defect(
        "compute", "ROWS + row_in_line(", "row_in_line(", "soft cap",
    ),
    "compute stays at slot 0": Defect(
        "compute", "slot, place = slot.next(owner.slots[owner.last_of_tile_0]), place.next(work)",
        "place = place.next(work)", "soft cap",
    ),
    "masks stay at the first tile": Defect(
        "compute", "slot, place = slot.next(owner.slots[owner.last_of_tile_0]), place.next(work)",
        "slot = slot.next(owner.slots[owner.last_of_tile_0])", "causal",
    ),
    "dS of the second warpgroup elsewhere": Defect(
        "products", "group * apart + at", "group * columns + at", "causal",
    ),
    "sums read slot 0": Defect(
        "products", "ring_address(owner, cta, slots, owner.summed_part(result))",
        "ring_address(owner, cta, first_slots(owner, 0), owner.summed_part(result))", "causal",
    ),
    "numbers of the first sequence": Defect(
        "load", "work.sequence.stats_tile + line_of_tile(owner, place)", "line_of_tile(owner, place)", "window",
    ),
    "L of the first tile": Defect(
        "cta", "work.sequence.stats_tile + work.row // ROWS", "work.sequence.stats_tile", "causal",
    ),
    "all deltas of the first sequence": Defect(
        "cta", "work.sequence.stats_tile + work.row // ROWS", "work.row // ROWS", "window",
    ),
    "dV over dK": Defect(
        "owner", "sum(self.depths[i] for i in self.results if i < result)", "result * GRANULE", "causal",
    ),
    "too little tensor memory": Defect(
        "owner", "1 << (used - 1).bit_length()", "1 << (used - 1).bit_length() - 1", "causal",
    ),
    # --- float32 results
    "the second half of a chunk over the first": Defect(
        "store", "buffer + piece * CHUNK_BYTES, row, inside", "buffer, row, inside", "float32",
    ),
    "both halves of a chunk from one place": Defect(
        "store", "buffer + (number - first) * CHUNK_BYTES", "buffer", "float32",
    ),
    "chunks overlap": Defect("store", "number_of_all * CHUNK_BYTES * pieces", "number_of_all * CHUNK_BYTES", "float32"),
    "columns of 16 bits": Defect("store", "number * cfg.stored_columns", "number * GRANULE", "float32"),
    # --- numbers
    "dK begins with what was there": Defect("products", "n > 0)", "n + (result == 0) > 0)", "causal"),
    "dV begins with what was there": Defect("products", "n > 0)", "n + (result == 1) > 0)", "causal"),
    "dV of the last tile alone": Defect("products", "n > 0)", "(n < 0 if result else n > 0))", "causal"),
    "S without the scale": Defect("weights", "scores, args.scale_log2, bias", "scores, Float32(1.0), bias", "causal"),
    "no L in scores of queries": Defect("weights", "is None else -lse[0]", "is None else Float32(0.0)", "fp16"),
    "dS without delta": Defect("compute", "dp = row_math.differences(dp, delta)", "pass", "causal"),
    "dQ and dK without the scale": Defect("store", "result == 0", "result == 2", "causal"),
    "dV with the scale": Defect("store", "result == 0", "result >= 0", "causal"),
    "dK alone without the scale": Defect(
        "store", "const_expr(result == 0)", "const_expr(result == 0 and not owner.owns_keys)", "causal",
    ),
    "delta without dlse": Defect("delta", "total - less", "total", "dlse"),
    "dlse is added": Defect("delta", "total - less", "total + less", "dlse"),
    "delta of half of the lanes": Defect("delta", "(8, 4, 2, 1)", "(4, 2, 1)", "causal"),
    "an L below the limit of scores stays as it is": Defect(
        "delta", "if power < -(2.0 ** LARGEST_SCORE_LOG2[cfg.dtype]):", "if power == -Float32.inf:",
        "sinks far below the scores",
    ),
    "natural log-sum-exps": Defect("delta", "power = power * LOG2_E", "power = power * 1.0", "causal"),
    "rows beyond the end have weights": Defect(
        "delta", "total, less = Float32.inf,", "total, less = Float32(-1e30),", "causal",
    ),
    "the last rows have no delta": Defect("delta", "cutlass.range(PASSES,", "cutlass.range(PASSES - 1,", "causal"),
    # --- which tiles
    "the first visible column is hidden": Defect("compute", "moved(lo, -first)", "moved(lo, 1 - first)", "cut by one"),
    "the last visible column is hidden": Defect("compute", "moved(hi, -first)", "moved(hi, -1 - first)", "causal"),
    "a column too many at the end": Defect("compute", "moved(hi, -first)", "moved(hi, 1 - first)", "causal"),
    "bands hide dS and not P": Defect(
        "compute", "p, of_ds = (visibility.selected(x, word, hidden=0.0) for x in (p, of_ds))",
        "of_ds = visibility.selected(of_ds, word, hidden=0.0)", "causal",
    ),
    "bands hide P and not dS": Defect(
        "compute", "p, of_ds = (visibility.selected(x, word, hidden=0.0) for x in (p, of_ds))",
        "p = visibility.selected(p, word, hidden=0.0)", "causal",
    ),
    "a tile cut by one column at its beginning is whole": Defect(
        "compute", "(lo > start)", "(lo > start + 1)", "cut by one",
    ),
    "a tile cut by one column at its end is whole": Defect(
        "compute", "hi < start + owner.other_rows", "hi < start + owner.other_rows - 1", "cut by one",
    ),
    "whether a tile is cut is asked of the first row": Defect(
        "compute", "sequence, work.row + (ROWS - 1))", "sequence, work.row)", "cut by one",
    ),
    "the tiles of one band of two": Defect(
        "work", "lo, hi = bands[0]\n    for", "return bands[0]\n    for", "either of two masks",
    ),
    "the tiles that both bands have": Defect(
        "work", "else minimum(lo, other_lo)", "else maximum(lo, other_lo)", "either of two masks",
    ),
    "the diagonal is one further": Defect(
        "work", "apart = of.num_keys - of.length_q", "apart = of.num_keys - of.length_q + 1", "causal",
    ),
    "the diagonal begins top left": Defect(
        "work", "apart = of.num_keys - of.length_q", "apart = of.num_keys * 0", "causal",
    ),
    "a key beyond the end is seen": Defect("work", "lo, minimum(hi, of.length_k))", "lo, hi)", "far below"),
    "the tile of the last column is left out": Defect(
        "work", "minimum(end, others)", "minimum(end - 1, others)", "one of the next",
    ),
    "the first tile is left out": Defect(
        "work", "maximum(first, 0) // o", "(maximum(first, 0) + 63) // o", "one of the next",
    ),
    "one head of a group": Defect("work", "turns = group if", "turns = Int32(1) if", "causal"),
    "heads of the first group": Defect("work", "work.head * work.turns + place.turn", "place.turn", "causal"),
    "a key head for each query head": Defect(
        "work", "work.head // (sizes.heads_q // sizes.heads_kv)", "work.head % sizes.heads_kv", "causal",
    ),
    "the second head begins at tile 0": Defect("work", "choose(last, work.first,", "choose(last, 0,", "unseen"),
    "the same head again": Defect("work", "+ 1), self.turn + choose(last, 1, 0)", "+ 1), self.turn", "causal"),
    "no zeros where nothing is seen": Defect(
        "store", "    if work.row < own_rows(owner, work)[1]:", "    if work.count > 0:", "unseen keys",
    ),
    "results replace what they are added to": Defect(
        "operands", '"add" if cfg.accumulate else "store"', '"store"', "float32",
    ),
    "rows of the next sequence are stored": Defect(
        "operands", "partial(clipped_store, box.rows)",
        "(lambda row, valid, head: clipped_store(box.rows, row, box.rows, head))", "packed",
    ),
    "rows of the next sequence are loaded": Defect(
        "operands", "clipped(cfg, clipped_load,",
        "clipped(cfg, lambda row, valid, head: clipped_load(row, box.rows, head),", "packed",
    ),
    "numbers of sequences overlap": Defect("work", "first_q // ROWS + index)", "first_q // ROWS)", "packed"),
    # --- functions of scores, and lengths
    "dS without the slope of score_mod": Defect("weights", "else weight * slope", "else weight", "soft cap"),
    "P with the slope of score_mod": Defect("weights", "p.append(weight)", "p.append(moves)", "soft cap"),
    "score_mod has scores without their scale": Defect(
        "weights", "args.scale\n            value", "1.0\n            value", "soft cap",
    ),
    "weights are powers of two of scores": Defect(
        "weights", "value * Float32(LOG2_E) - subtracted", "value - subtracted", "soft cap",
    ),
    "mask_mod hides dS and not P": Defect(
        "weights", "weight, moves = (select_(shows, x, Float32(0.0)) for x in (weight, moves))",
        "moves = select_(shows, moves, Float32(0.0))", "a mask_mod",
    ),
    "mask_mod hides P and not dS": Defect(
        "weights", "weight, moves = (select_(shows, x, Float32(0.0)) for x in (weight, moves))",
        "weight = select_(shows, weight, Float32(0.0))", "a mask_mod",
    ),
    "functions have rows for columns where keys are owned": Defect(
        "weights", "(column, own) if owner.owns_keys else (own, column)", "(own, column)", "a function of two branches",
    ),
    "functions have the same head for a group": Defect(
        "weights", "q_head(owner, work, place), work.row", "work.head, work.row", "a mask_mod",
    ),
    "functions have the columns of the first warpgroup": Defect(
        "compute", "[first + i", "[place.tile * ROWS + i", "a mask_mod",
    ),
    "functions have the positions of the first keys": Defect(
        "weights", "facts = q_index + of.num_keys - of.length_q,", "facts = q_index,", "a function that reads a tensor",
    ),
    "functions make weights of queries beyond the end": Defect(
        "work", "end = of.length_q if cfg.has_functions else None", "end = None", "a function without a value at zero",
    ),
    "the limit of keys is not read": Defect(
        "work", "seen = minimum(maximum(sizes.limit_k[index], 0), k)", "seen = k", "used",
    ),
    "a limit of keys moves queries": Defect("work", "q, seen, k, first_q", "q, seen, seen, first_q", "used"),
    "padding of queries takes part": Defect(
        "work", "q = minimum(maximum(sizes.used_q[index], 0), q)", "q = minimum(maximum(q, 0), q)", "used",
    ),
    "padding of keys moves queries": Defect(
        "work", "k = minimum(maximum(sizes.used_k[index], 0), k)", "k = minimum(maximum(k, 0), k)", "used",
    ),
    # --- sums for aux tensors
    "S and dP are read before they are there": Defect("sums", "    cta.dp_ready.wait(0, n & 1)", "    ", "one of each"),
    "no fence after S and dP": Defect(
        "sums", "before dP\n    tensor_memory.fence_after()\n", "before dP\n", "one of each",
    ),
    "no fence before the next S and dP": Defect("sums", "    tensor_memory.fence_before()\n", "", "one of each"),
    "a CTA ends before its commits": Defect("sums", "        cta.done.wait(0, 0)", "        pass", "one of each"),
    "warps do not wait for each other's sums": Defect(
        "sums", "        cute.arch.barrier(barrier_id=WRITTEN, number_of_threads=owner.warps.compute_threads)\n", "",
        "one of each",
    ),
    "one buffer of sums": Defect("sums", "(n & 1) * tables", "(n & 0) * tables", "one of each"),
    "tables share a buffer": Defect(
        "sums", "tables + table_of(cfg, number))", "tables + table_of(cfg, 0))", "one of each",
    ),
    "sums over distances begin with the lane before": Defect(
        "sums", "select_(lane == 0, Float32(0.0), before)", "before", "one of each",
    ),
    "a distance of a batch of columns is lost": Defect("sums", "numbers[number], ahead[number], thread)",
        "numbers[number], Float32(0.0), thread)", "one of each",
    ),
    "unfinished sums are one distance off": Defect("sums", "columns + LANES - 2", "columns + LANES - 1", "one of each"),
    "the second warpgroup's distances are those of the first": Defect(
        "sums", "warp // 4 * owner.columns\n        inside", "warp // 8 * owner.columns\n        inside",
        "one of each",
    ),
    "the last distance of a warp is left out": Defect(
        "sums", "inside < owner.columns + LANES - 1:", "inside < owner.columns + LANES - 2:", "one of each",
    ),
    "the first distance of a warp is left out": Defect("sums", "inside >= 0", "inside >= 1", "one of each"),
    "distances of the first key tile": Defect("sums", "place.tile * owner.distances + mine", "mine", "one of each"),
    "sums over rows of the last tile": Defect(
        "sums", "of_rows[number] + total(numbers[number])", "total(numbers[number])", "one of each",
    ),
    "both halves of a row in one place": Defect(
        "sums", "line[thread.column // owner.columns * ROWS + thread.row]", "line[thread.row]", "rows",
    ),
    "scores of the first key tile": Defect(
        "sums", "place.tile * owner.other_rows + thread.column + column\n    layout",
        "thread.column + column\n    layout",
        "one of each",
    ),
    "queries beyond the end count": Defect(
        "sums", "select_(exists, visibility.visibility(bands, column), Int32(0))",
        "visibility.visibility(bands, column)", "a function undefined at zero",
    ),
    "sums over hidden scores": Defect(
        "sums", "seen = visibility.selected(moves, word, hidden=0.0)", "seen = moves", "one of each",
    ),
    "sums without delta": Defect("sums", "x * (y - thread.delta)", "x * y", "one of each"),
    "P without the derivative by the element": Defect(
        "weights", "moves.append(times(slopes[number], weight))", "moves.append(weight)", "one of each",
    ),
    "the derivative by another element": Defect(
        "weights", "slopes[number], weight", "slopes[0], weight", "one of each",
    ),
    "mask_mod hides nothing from sums": Defect(
        "weights", "weight = select_(shown(cfg, at, full), weight, Float32(0.0))", "pass", "rows",
    ),
    "an infinite slope of a weight of zero": Defect(
        "weights", "select_(weight == Float32(0.0), Float32(0.0), weight * slope)", "weight * slope",
        "a function undefined at zero",
    ),
    "launches begin at the first CTA": Defect(
        "kernel", "block = block + args.first", "block = block + 0", "four launches",
    ),
    # --- a ring for each tile of the other side
    "a tile that was added is never free": Defect(
        "products", "    cta.other_empty.commit(ring_index(owner, slots, owner.summed_part(result)))\n", "", "causal",
    ),
    "V is never free where queries are owned": Defect(
        "products", "        cta.other_empty.commit(ring_index(owner, slots, part))\n", "        pass\n", "causal",
    ),
    "the ring of V begins in that of K": Defect(
        "operands", "ring_address + owner.ring_offset(part)", "ring_address", "causal",
    ),
    "both rings share barriers": Defect(
        "operands", "slots[part].index + owner.first_slot(part)", "slots[part].index + part", "causal",
    ),
    "the ring of V is as long as that of K": Defect(
        "operands", "zip(slots, owner.slots, strict", "zip(slots, owner.slots[:1] * 2, strict", "widest",
    ),
    "the only slot for dO is two": Defect(
        "operands", "zip(slots, owner.slots, strict", "zip(slots, (owner.slots[0], 2), strict", "widest",
    ),
    # --- lists of tiles
    "the head is in the bits of the tile": Defect(
        "listed", "self.entry >> (1 + TILE_BITS)", "self.entry >> 2", "lists",
    ),
    "the tile has the bits of the head": Defect(
        "listed", "(entry >> 1) & ((1 << TILE_BITS) - 1)", "entry >> 1", "lists",
    ),
    "every block is full": Defect("listed", "(self.entry & 1) == 1", "(self.entry & 1) >= 0", "lists"),
    "no block is full": Defect("listed", "(self.entry & 1) == 1", "(self.entry & 1) == 2", "lists"),
    "an entry is taken twice": Defect("listed", "self.number + 2", "self.number + 1", "lists"),
    "the first entry is passed over": Defect(
        "listed", "tiles.entry(Int32(0)), tiles.entry(Int32(1))", "tiles.entry(Int32(1)), tiles.entry(Int32(2))",
        "lists",
    ),
    "the lists of the first head": Defect("listed", "minimum(head, heads - 1)", "Int32(0)", "lists"),
    "the list of the first tile": Defect("listed", "heads - 1), tile\n", "heads - 1), Int32(0)\n", "lists"),
    "the lists of the other owner": Defect(
        "kernel", "lists[3:] if owner.owns_keys else lists[:3]", "lists[:3] if owner.owns_keys else lists[3:]", "lists",
    ),
    "an order names heads within tiles": Defect(
        "listed", "of_sequence, tile = number // tiles", "tile, of_sequence = number // tiles", "lists, longest first",
    ),
    "an order is read at the tile of the grid": Defect(
        "listed", "self.order[block]", "self.order[tile]", "lists, longest first",
    ),
    "an order is not read": Defect(
        "listed", "self.order.shape[0]) > 0", "self.order.shape[0]) < 0", "lists, one list alone",
    ),
    "an order that is not there is read": Defect(
        "listed", "self.order.shape[0]) > 0", "self.order.shape[0]) >= 0", "lists",
    ),
    "partial blocks without mask_mod": Defect("compute", "cut | (not place.is_full)", "cut | place.is_full", "lists"),
    "mask_mod also of full blocks": Defect(
        "compute", "place.is_full if cfg.listed and cut else cfg.listed", "False", "lists",
    ),
    "mask_mod of full blocks that are cut": Defect(
        "weights", "shows if full is False else shows | full", "shows", "lists",
    ),
    "sums of full blocks with mask_mod": Defect("sums", "cfg.listed and place.is_full", "False", "lists, sums of rows"),
    **OPERANDS,
    **WIDE,
    **PAIRS,
    **JOINT,
}  # fmt: skip
