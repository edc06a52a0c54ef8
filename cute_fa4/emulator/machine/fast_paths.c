/* The common cases of the emulator's most frequent operations. See fast_paths.py, which names every function.

   Each function does all of its work or none of it: where anything is unusual it returns 0 (or -1) and has changed
   nothing. NumPy arrays come as objects; DATA is where NumPy's C interface keeps their address (PyArrayObject.data,
   behind the HEAD bytes of every Python object; checked when the library is loaded).

       R          registers of a warp, u32[row][32]; a 64-bit register is two rows as u64[32]
       code       of a register: row * 4 + kind; kind 0: 32 bits, 1: 64 bits, 2: 16 bits; -1: nobody wants it
       words      tensor memory, u32[column][128]
*/
#include <stdint.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef int32_t s32;
typedef uint64_t u64;
typedef int64_t s64;
typedef float f32;
typedef double f64;
typedef f64 v8 __attribute__((vector_size(64), aligned(8)));
typedef void Object;
#define DATA(array) (*(char **)((char *)(array) + HEAD))

@FLOAT_MODE@
#define ALL_WRITTEN 0x0101010101010101ull

s64 address_of(Object *array) { return (s64)DATA(array); }

/* --- registers ------------------------------------------------------------------------------------ */

/* The one value of a 32-bit register in the lanes of mask, plus add; -1 if lanes differ. */
s64 uniform(Object *R, s64 row, u32 mask, u32 add) {
    const u32 *r = (const u32 *)DATA(R) + row * 32;
    u32 first = r[__builtin_ctz(mask)], different = 0;
    if (mask == 0xffffffffu)
        for (int l = 0; l < 32; l++) different |= r[l] ^ first;
    else
        for (u32 left = mask; left; left &= left - 1) different |= r[__builtin_ctz(left)] ^ first;
    return different ? -1 : (s64)(u32)(first + add);
}

/* out[n][32] = rows of R. */
void copy_rows(Object *R, Object *rows, s64 count, Object *out) {
    const s64 *row = (const s64 *)DATA(rows);
    for (s64 n = 0; n < count; n++)
        memcpy((u32 *)DATA(out) + n * 32, (const u32 *)DATA(R) + row[n] * 32, 128);
}

/* --- shared memory -------------------------------------------------------------------------------- */

/* Offsets of the lanes of mask in the shared memory of rank; how many, or -1 unless all of them lie in it, are aligned,
   and every byte of map (written, or owned by an mbarrier) is `wanted`. */
s64 shared_offsets(Object *R, s64 row, u32 add, u32 mask, u32 rank, s64 size, u32 itemsize, Object *map, u32 wanted,
                   Object *offsets) {
    const u32 *r = (const u32 *)DATA(R) + row * 32;
    const u8 *byte = (const u8 *)DATA(map);
    s64 *out = (s64 *)DATA(offsets), count = 0;
    for (u32 left = mask; left; left &= left - 1) {
        u32 address = r[__builtin_ctz(left)] + add, offset = address & 0xffffffu;
        if (address >> 24 != rank || offset < 1024 || (s64)offset + itemsize > size || offset & (itemsize - 1))
            return -1;
        for (u32 n = 0; n < itemsize; n++)
            if (byte[offset + n] != wanted) return -1;
        out[count++] = offset;
    }
    return count;
}

/* Lane by lane: elements of `size` bytes at an offset -> registers. */
void load_registers(Object *R, u32 mask, Object *bytes, Object *offsets, Object *codes, s64 count, u32 size,
                    u32 is_signed) {
    const s64 *offset = (const s64 *)DATA(offsets), *code = (const s64 *)DATA(codes);
    const char *memory = DATA(bytes);
    u32 *r = (u32 *)DATA(R);
    for (u32 left = mask; left; left &= left - 1) {
        int lane = __builtin_ctz(left);
        const char *from = memory + *offset++;
        for (s64 n = 0; n < count; n++, from += size) {
            u64 value = 0;
            memcpy(&value, from, size);
            if (is_signed && size < 8) value = (u64)((s64)(value << (64 - 8 * size)) >> (64 - 8 * size));
            if (code[n] < 0) continue;
            s64 row = code[n] >> 2, kind = code[n] & 3;
            if (kind == 1) ((u64 *)(r + row * 32))[lane] = value;
            else r[row * 32 + lane] = kind == 2 ? (u32)value & 0xffffu : (u32)value;
        }
    }
}

/* The inverse; marks the written bytes in `written`. */
void store_registers(Object *R, u32 mask, Object *bytes, Object *written, Object *offsets, Object *codes, s64 count,
                     u32 size) {
    const s64 *offset = (const s64 *)DATA(offsets), *code = (const s64 *)DATA(codes);
    char *memory = DATA(bytes), *map = DATA(written);
    const u32 *r = (const u32 *)DATA(R);
    for (u32 left = mask; left; left &= left - 1, offset++) {
        int lane = __builtin_ctz(left);
        for (s64 n = 0; n < count; n++) {
            s64 row = code[n] >> 2;
            u64 value = (code[n] & 3) == 1 ? ((const u64 *)(r + row * 32))[lane] : r[row * 32 + lane];
            memcpy(memory + *offset + n * size, &value, size);
        }
        memset(map + *offset, 1, count * size);
    }
}

/* --- tensor memory -------------------------------------------------------------------------------- */

static int allocated_block(Object *allocated, s64 lane, s64 lanes, s64 column, s64 columns) {
    if (lane + lanes > 128 || column + columns > 512) return 0;
    const u8 *column_is = (const u8 *)DATA(allocated) + column;
    for (s64 c = 0; c < columns; c++)
        if (!column_is[c]) return 0;
    return 1;
}

static int written_block(const u8 *written, s64 lanes, s64 columns) {
    u64 all = ALL_WRITTEN;
    for (s64 c = 0; c < columns; c++)
        for (s64 l = 0; l < lanes; l += 8) {
            u64 eight;
            memcpy(&eight, written + c * 128 + l, 8);
            all &= eight;
        }
    return all == ALL_WRITTEN;
}

/* 32 lanes of columns -> registers. */
int load_tensor(Object *R, Object *rows, Object *words, Object *written, Object *allocated, s64 lane, s64 column,
                s64 columns) {
    s64 first = column * 128 + lane;
    if (!allocated_block(allocated, lane, 32, column, columns)
        || !written_block((const u8 *)DATA(written) + first, 32, columns))
        return 0;
    const s64 *row = (const s64 *)DATA(rows);
    for (s64 c = 0; c < columns; c++)
        memcpy((u32 *)DATA(R) + row[c] * 32, (const u32 *)DATA(words) + first + c * 128, 128);
    return 1;
}

/* values[columns][32] -> 32 lanes of columns. */
int store_tensor(Object *values, Object *words, Object *written, Object *allocated, s64 lane, s64 column, s64 columns) {
    s64 first = column * 128 + lane;
    if (!allocated_block(allocated, lane, 32, column, columns)) return 0;
    for (s64 c = 0; c < columns; c++) {
        memcpy((u32 *)DATA(words) + first + c * 128, (const u32 *)DATA(values) + c * 32, 128);
        memset(DATA(written) + first + c * 128, 1, 32);
    }
    return 1;
}

/* --- order of accesses (checks/memory.py: touch) --------------------------------------------------- */

/* checks/shadow.py: last writers of granules; by actor its latest read anywhere, and its last reads of granules. */
typedef struct { s32 *writer, *latest, **readers; s64 actors; } Shadow;

/* The granules of an access: rows of `width` every `stride` from `first`, or `width` of an index. */
typedef struct { const s64 *index; s64 first, rows, stride, width; } Granules;

/* The accessing actor and its clock: numbers by actor up to which writes, and reads, are ordered before it. */
typedef struct { s64 actor; const s32 *writers, *readers, *actor_of; s64 writers_known, readers_known; } Access;

static inline s64 granule(const Granules *g, s64 row, s64 n) {
    return g->index ? g->index[n] : g->first + row * g->stride + n;
}

static int follows(const Shadow *shadow, const Granules *g, const Access *me, int write) {
    if (!write && (me->actor >= shadow->actors || !shadow->readers[me->actor])) return 0;
    s32 seen = 0; /* the common case: the same writer wrote the previous granule */
    for (s64 row = 0; row < g->rows; row++)
        for (s64 n = 0; n < g->width; n++) {
            s32 number = shadow->writer[granule(g, row, n)];
            if (number == seen) continue;
            s32 actor = me->actor_of[number];
            if (number > (actor < me->writers_known ? me->writers[actor] : 0)) return 0;
            seen = number;
        }
    for (s64 actor = 0; write && actor < shadow->actors; actor++) {
        s32 known = actor < me->readers_known ? me->readers[actor] : 0;
        if (actor == me->actor || shadow->latest[actor] <= known) continue;
        const s32 *column = shadow->readers[actor];
        for (s64 row = 0; row < g->rows; row++)
            for (s64 n = 0; n < g->width; n++)
                if (column[granule(g, row, n)] > known) return 0;
    }
    return 1;
}

static void note(Shadow *shadow, const Granules *g, const Access *me, int write, s32 number) {
    s32 *column = write ? shadow->writer : shadow->readers[me->actor];
    for (s64 row = 0; row < g->rows; row++)
        for (s64 n = 0; n < g->width; n++) column[granule(g, row, n)] = number;
    if (!write) shadow->latest[me->actor] = number;
}

#define ACCESS int write, s64 actor, Object *known, s64 writers_known, Object *happened, s64 readers_known, \
    Object *actor_of, s32 number
#define ME {actor, (const s32 *)DATA(known), (const s32 *)DATA(happened), (const s32 *)DATA(actor_of), writers_known, \
    readers_known}

/* 1 if the access is ordered after everything that it must follow; it is then recorded. */
int touch_index(Shadow *shadow, Object *at, s64 count, ACCESS) {
    Access me = ME;
    Granules g = {(const s64 *)DATA(at), 0, 1, 0, count};
    if (!follows(shadow, &g, &me, write)) return 0;
    note(shadow, &g, &me, write, number);
    return 1;
}

int touch_block(Shadow *shadow, s64 first, s64 rows, s64 stride, s64 width, ACCESS) {
    Access me = ME;
    Granules g = {0, first, rows, stride, width};
    if (!follows(shadow, &g, &me, write)) return 0;
    note(shadow, &g, &me, write, number);
    return 1;
}

/* Items of up to 32 bytes of up to 32 lanes, at byte offsets of a ByteShadow: chunks of 16 bytes, and single bytes of
   the chunks that have a slot (fine: null where none has). */
int touch_items(Shadow *coarse, Shadow *fine, Object *slots, Object *offsets, s64 count, s64 nbytes, ACCESS) {
    static s64 chunks[32 * 2], bytes[32 * 32];
    const s64 *offset = (const s64 *)DATA(offsets);
    const s32 *slot = fine ? (const s32 *)DATA(slots) : 0;
    Access me = ME;
    Granules of_chunks = {chunks, 0, 1, 0, 0}, of_bytes = {bytes, 0, 1, 0, 0};
    if (count > 32 || nbytes > 32) return 0;
    for (s64 n = 0; n < count; n++)
        for (s64 at = offset[n], end = at + nbytes; at < end; ) {
            s64 chunk = at >> 4, until = (chunk + 1) * 16 < end ? (chunk + 1) * 16 : end;
            if (!slot || slot[chunk] < 0) {
                if (nbytes < 16) return 0; /* Python gives it a slot */
                chunks[of_chunks.width++] = chunk;
                at = until;
            } else
                for (; at < until; at++) bytes[of_bytes.width++] = (s64)slot[chunk] * 16 + (at & 15);
        }
    if (of_chunks.width && !follows(coarse, &of_chunks, &me, write)) return 0;
    if (of_bytes.width && !follows(fine, &of_bytes, &me, write)) return 0;
    if (of_chunks.width) note(coarse, &of_chunks, &me, write, number);
    if (of_bytes.width) note(fine, &of_bytes, &me, write, number);
    return 1;
}

/* --- products (tensor_core.py) --------------------------------------------------------------------- */

static inline f32 f32_bits(u32 bits) {
    f32 value;
    memcpy(&value, &bits, 4);
    return value;
}

enum { F16, BF16, TF32, TABLE };
enum { K_BYTES = 32, ROWS = 128, MAX_K = 32 };

static inline f64 element(int format, const f64 *table, const u8 *from) {
    u16 half;
    u32 word;
    switch (format) {
    case F16: {
        memcpy(&half, from, 2);
        u32 sign = (u32)(half & 0x8000u) << 16, rest = half & 0x7fffu;
        if (rest >= 0x7c00u) return f32_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
        if (rest < 0x0400u) return (sign ? -1.0 : 1.0) * rest * 0x1p-24;
        return f32_bits(sign | ((rest << 13) + 0x38000000u));
    }
    case BF16: memcpy(&half, from, 2); return f32_bits((u32)half << 16);
    case TF32: memcpy(&word, from, 4); return f32_bits(word & 0xffffe000u);
    default: return table[*from];
    }
}

/* An operand of `rows` rows as out[k * step_k + row * step_row]; 0 where shared memory was never written. */
static int decode_shared(const u8 *bytes, const u8 *written, const s64 *chunk, int format, const f64 *table, int bytes_each,
                         int mn_major, s64 rows, f64 *out, s64 step_k, s64 step_row) {
    int each = 16 / bytes_each;
    s64 across = mn_major ? rows / each : 2, lines = mn_major ? K_BYTES / bytes_each : rows;
    for (s64 line = 0; line < lines; line++)
        for (s64 part = 0; part < across; part++) {
            s64 at = *chunk++ * 16;
            u64 low, high;
            memcpy(&low, written + at, 8);
            memcpy(&high, written + at + 8, 8);
            if ((low & high) != ALL_WRITTEN) return 0;
            s64 k = mn_major ? line : part * each, row = mn_major ? part * each : line;
            f64 *to = out + k * step_k + row * step_row;
            s64 step = mn_major ? step_row : step_k;
            for (int e = 0; e < each; e++) to[e * step] = element(format, table, bytes + at + e * bytes_each);
        }
    return 1;
}

typedef struct {
    Object *bytes, *written, *chunks, *table; /* of shared memory; chunks: int64 numbers; table: of 8-bit formats */
    s64 format, bytes_each, mn_major, rows, column; /* column: of an A in tensor memory (bytes, written, chunks unused) */
} Operand;

/* D[n][row] = sum over k of B[n][k] * A[k][row] (+ D[n][row] * scale): 128 rows, the sum in f64, rounded to f32 once.
   b has one operand, or two of half as many rows each. */
int multiply(const Operand *a, const Operand *b, s64 parts, Object *words, Object *written, Object *allocated, s64 column,
             s64 columns, s64 accumulate, f64 scale, s64 negate) {
    static f64 A[MAX_K][ROWS] __attribute__((aligned(64))), B[256][MAX_K];
    s64 first = column * 128, depth = K_BYTES / a->bytes_each, rows_of_b = 0;
    if (!allocated_block(allocated, 0, ROWS, column, columns)) return 0;
    if (accumulate && !written_block((const u8 *)DATA(written) + first, ROWS, columns)) return 0;
    for (s64 p = 0; p < parts; p++) {
        if (!decode_shared((const u8 *)DATA(b[p].bytes), (const u8 *)DATA(b[p].written), (const s64 *)DATA(b[p].chunks),
                           b[p].format, b[p].table ? (const f64 *)DATA(b[p].table) : 0, b[p].bytes_each, b[p].mn_major,
                           b[p].rows, B[rows_of_b], 1, MAX_K))
            return 0;
        rows_of_b += b[p].rows;
    }
    const f64 *table = a->table ? (const f64 *)DATA(a->table) : 0;
    if (a->bytes) {
        if (!decode_shared((const u8 *)DATA(a->bytes), (const u8 *)DATA(a->written), (const s64 *)DATA(a->chunks),
                           a->format, table, a->bytes_each, a->mn_major, ROWS, A[0], ROWS, 1))
            return 0;
    } else {
        if (!allocated_block(allocated, 0, ROWS, a->column, K_BYTES / 4)
            || !written_block((const u8 *)DATA(written) + a->column * 128, ROWS, K_BYTES / 4))
            return 0;
        for (s64 k = 0; k < depth; k++) {
            s64 at = k * a->bytes_each;
            const u8 *from = (const u8 *)((const u32 *)DATA(words) + (a->column + at / 4) * 128) + at % 4;
            for (int row = 0; row < ROWS; row++) A[k][row] = element(a->format, table, from + row * 4);
        }
    }
    __typeof__(ieee_mode()) mode = ieee_mode();
    f64 sign = negate ? -1.0 : 1.0;
    for (s64 n = 0; n < columns; n += 4)
        for (int row = 0; row < ROWS; row += 16) {
            v8 sum[4][2] = {{{0}}};
            for (s64 k = 0; k < depth; k++) {
                v8 low = *(const v8 *)&A[k][row], high = *(const v8 *)&A[k][row + 8];
                for (int j = 0; j < 4; j++) {
                    f64 one = B[n + j][k];
                    v8 b_of_k = {one, one, one, one, one, one, one, one};
                    sum[j][0] += b_of_k * low;
                    sum[j][1] += b_of_k * high;
                }
            }
            for (int j = 0; j < 4; j++) {
                f32 *d = (f32 *)DATA(words) + (column + n + j) * 128 + row;
                const f64 *s = (const f64 *)sum[j];
                if (accumulate)
                    for (int l = 0; l < 16; l++) d[l] = (f32)(s[l] * sign + d[l] * (f32)scale);
                else
                    for (int l = 0; l < 16; l++) d[l] = (f32)(s[l] * sign);
            }
        }
    memset(DATA(written) + first, 1, columns * 128);
    restore_mode(mode);
    return 1;
}
