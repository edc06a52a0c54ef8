/* Arithmetic of one lane in C: bits, rounding, saturation and narrow formats, as PTX defines them.

   The C statements of the instruction table call these functions; rounding.py states the same meanings
   in NumPy. Everything is branch-free where the hot instructions need it, so that loops over lanes
   become vector code. Needs: round-to-nearest mode, subnormals on, no contraction of a * b + c.

       in, in_ftz            operand as read (.ftz: a subnormal counts as a zero of the same sign)
       out, out_ftz, ..sat   result as written: NaN becomes 0x7fffffff, .ftz and .sat applied
       odd_sum(x, y)         x + y rounded to odd in f64: later rounding to 24 bits or fewer, in any
                             direction, is then the single correct rounding (Boldo and Melquiond 2008)
       f32_rz, f32_rm, ...   f64 -> f32 in a direction
       encode_*              f32 -> 16- and 8-bit formats
*/
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef uint8_t u8;
typedef int8_t s8;
typedef uint16_t u16;
typedef int16_t s16;
typedef uint32_t u32;
typedef int32_t s32;
typedef uint64_t u64;
typedef int64_t s64;
typedef float f32;
typedef double f64;
#define INLINE static inline __attribute__((always_inline, unused))

INLINE u32 bits(f32 x) { u32 u; memcpy(&u, &x, 4); return u; }
INLINE f32 f32_bits(u32 u) { f32 x; memcpy(&x, &u, 4); return x; }
INLINE u64 bits64(f64 x) { u64 u; memcpy(&u, &x, 8); return u; }
INLINE f64 f64_bits(u64 u) { f64 x; memcpy(&x, &u, 8); return x; }

/* --- operands and results ------------------------------------------------------------------------ */
#define NAN32 0x7fffffffu
#define NAN64 0xfff8000000000000ull

INLINE f32 flush(f32 x) { u32 u = bits(x); return f32_bits(u & 0x7f800000u ? u : u & 0x80000000u); }
INLINE f32 canonical(f32 x) { return f32_bits(x != x ? NAN32 : bits(x)); }
INLINE f32 saturate(f32 x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; } /* NaN -> +0 */

INLINE f32 in(f32 x) { return x; }
INLINE f32 in_ftz(f32 x) { return flush(x); }
INLINE f32 out(f32 x) { return canonical(x); }
INLINE f32 out_ftz(f32 x) { return flush(canonical(x)); }
INLINE f32 out_sat(f32 x) { return saturate(x); }
INLINE f32 out_ftz_sat(f32 x) { return flush(saturate(x)); }
INLINE f64 out64(f64 x) { return f64_bits(x != x ? NAN64 : bits64(x)); }
INLINE f64 out64_sat(f64 x) { return x > 0.0 ? (x < 1.0 ? x : 1.0) : 0.0; }

/* --- one rounding of an exact sum ---------------------------------------------------------------- */
INLINE int finite64(f64 x) { return (bits64(x) & 0x7ff0000000000000ull) != 0x7ff0000000000000ull; }

/* What x + y loses when rounded to s (Knuth's TwoSum; exact). */
INLINE f64 sum_error(f64 x, f64 y, f64 s) {
    f64 t = s - x;
    return (x - (s - t)) + (y - t);
}

INLINE f64 odd_sum(f64 x, f64 y) {
    f64 s = x + y, e = sum_error(x, y, s);
    u64 u = bits64(s);
    u64 outward = (bits64(e) ^ u) >> 63 ? u - 1 : u + 1;
    return f64_bits(finite64(s) && e != 0.0 && !(u & 1) ? outward : u);
}

INLINE u32 down(u32 u) { return u >> 31 ? u + 1 : u - 1; }
INLINE u32 up(u32 u) { return u >> 31 ? u - 1 : u + 1; }

INLINE f32 f32_rn(f64 x) { return (f32)x; }
INLINE f32 f32_rz(f64 x) { f32 f = (f32)x; return f32_bits(fabs((f64)f) > fabs(x) ? bits(f) - 1 : bits(f)); }
INLINE f32 f32_rm(f64 x) { f32 f = (f32)x; return f32_bits((f64)f > x ? down(bits(f)) : bits(f)); }
INLINE f32 f32_rp(f64 x) { f32 f = (f32)x; return f32_bits((f64)f < x ? up(bits(f)) : bits(f)); }

/* .ftz of a result: rounded as if exponents had no lower end, then flushed when below the smallest normal
   (measured on an H200: the exact 2^-126 (1 - 2^-24) gives 0, 2^-126 (1 - 2^-46) gives 2^-126). These make a
   zero of every exact value that this rounding leaves below 2^-126; the others keep a normal result. */
#define SMALLEST 0x1p-126
INLINE f64 zero_like(f64 x) { return f64_bits(bits64(x) & 0x8000000000000000ull); }
INLINE f32 f32_rn_ftz(f64 x) { return f32_rn(fabs(x) < SMALLEST * (1.0 - 0x1p-25) ? zero_like(x) : x); }
INLINE f32 f32_rz_ftz(f64 x) { return f32_rz(fabs(x) < SMALLEST ? zero_like(x) : x); }
INLINE f32 f32_rm_ftz(f64 x) {
    return f32_rm(x < SMALLEST && x >= -SMALLEST * (1.0 - 0x1p-24) ? zero_like(x) : x);
}
INLINE f32 f32_rp_ftz(f64 x) {
    return f32_rp(x > -SMALLEST && x <= SMALLEST * (1.0 - 0x1p-24) ? zero_like(x) : x);
}

/* f64 -> f32 rounded to odd: exact enough for any later rounding to 22 bits or fewer. */
INLINE f32 f32_odd(f64 x) { f32 f = f32_rz(x); return f32_bits(bits(f) | ((f64)f != x)); }

/* An exact zero sum of operands of different sign is -0 when rounding down (IEEE 754 6.3). */
INLINE f32 zero_down(f64 x, f64 y, f32 sum) {
    u32 minus = (u32)((bits64(x) | bits64(y)) >> 63) << 31;
    return f32_bits(sum == 0.0f && x == -y ? minus : bits(sum));
}

INLINE f32 sum_rn(f64 x, f64 y) { return f32_rn(odd_sum(x, y)); }
INLINE f32 sum_rz(f64 x, f64 y) { return f32_rz(odd_sum(x, y)); }
INLINE f32 sum_rm(f64 x, f64 y) { return zero_down(x, y, f32_rm(odd_sum(x, y))); }
INLINE f32 sum_rp(f64 x, f64 y) { return f32_rp(odd_sum(x, y)); }
INLINE f32 sum_rz_ftz(f64 x, f64 y) { return f32_rz_ftz(odd_sum(x, y)); }
INLINE f32 sum_rm_ftz(f64 x, f64 y) { return zero_down(x, y, f32_rm_ftz(odd_sum(x, y))); }
INLINE f32 sum_rp_ftz(f64 x, f64 y) { return f32_rp_ftz(odd_sum(x, y)); }

INLINE f32 add_rn(f32 a, f32 b) { return a + b; }
INLINE f32 add_rz(f32 a, f32 b) { return sum_rz(a, b); }
INLINE f32 add_rm(f32 a, f32 b) { return sum_rm(a, b); }
INLINE f32 add_rp(f32 a, f32 b) { return sum_rp(a, b); }
INLINE f32 add(f32 a, f32 b) { return add_rn(a, b); } /* no modifier: .rn */
INLINE f32 mul(f32 a, f32 b) { return a * b; }
INLINE f32 mul_rn(f32 a, f32 b) { return a * b; }
INLINE f32 mul_rz(f32 a, f32 b) { return f32_rz((f64)a * b); } /* 48 bits: the product is exact */
INLINE f32 mul_rm(f32 a, f32 b) { return f32_rm((f64)a * b); }
INLINE f32 mul_rp(f32 a, f32 b) { return f32_rp((f64)a * b); }
/* The rounding without a lower end in f32 alone: the same product 2^24 times as large. Where the scaling
   overflows, no result is tiny, and inf or NaN compares false. */
INLINE f32 flush_below(f32 result, f32 scaled) {
    return f32_bits(fabsf(scaled) < 0x1p-102f ? bits(result) & 0x80000000u : bits(result));
}
INLINE f32 mul_rn_ftz(f32 a, f32 b) { return flush_below(a * b, (a * 0x1p24f) * b); }
INLINE f32 mul_ftz(f32 a, f32 b) { return mul_rn_ftz(a, b); }
INLINE f32 mul_rz_ftz(f32 a, f32 b) { return f32_rz_ftz((f64)a * b); }
INLINE f32 mul_rm_ftz(f32 a, f32 b) { return f32_rm_ftz((f64)a * b); }
INLINE f32 mul_rp_ftz(f32 a, f32 b) { return f32_rp_ftz((f64)a * b); }
#ifdef __FMA__
INLINE f32 fma_rn(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
#else
INLINE f32 fma_rn(f32 a, f32 b, f32 c) { return sum_rn((f64)a * b, c); }
#endif
INLINE f32 fma_rz(f32 a, f32 b, f32 c) { return sum_rz((f64)a * b, c); }
INLINE f32 fma_rm(f32 a, f32 b, f32 c) { return sum_rm((f64)a * b, c); }
INLINE f32 fma_rp(f32 a, f32 b, f32 c) { return sum_rp((f64)a * b, c); }
INLINE f32 fma_rn_ftz(f32 a, f32 b, f32 c) {
    return flush_below(fma_rn(a, b, c), fma_rn(a * 0x1p24f, b, c * 0x1p24f));
}
INLINE f32 fma_rz_ftz(f32 a, f32 b, f32 c) { return sum_rz_ftz((f64)a * b, c); }
INLINE f32 fma_rm_ftz(f32 a, f32 b, f32 c) { return sum_rm_ftz((f64)a * b, c); }
INLINE f32 fma_rp_ftz(f32 a, f32 b, f32 c) { return sum_rp_ftz((f64)a * b, c); }

/* a / b and sqrt(a) to odd: the remainder of the rounded f64 result is exact, its sign is the direction. */
INLINE f64 toward(f64 q, f64 direction) {
    u64 u = bits64(q);
    u64 step = (bits64(direction) ^ u) >> 63 ? u - 1 : u + 1;
    return f64_bits(finite64(q) && q != 0.0 && direction != 0.0 && !(u & 1) ? step : u);
}
INLINE f64 odd_div(f32 a, f32 b) {
    f64 q = (f64)a / (f64)b, r = fma(-q, (f64)b, (f64)a);
    return toward(q, b < 0.0f ? -r : r);
}
INLINE f64 odd_sqrt(f32 a) { f64 q = sqrt((f64)a); return toward(q, fma(-q, q, (f64)a)); }
INLINE f32 div_rn(f32 a, f32 b) { return a / b; }
INLINE f32 div_rz(f32 a, f32 b) { return f32_rz(odd_div(a, b)); }
INLINE f32 div_rm(f32 a, f32 b) { return f32_rm(odd_div(a, b)); }
INLINE f32 div_rp(f32 a, f32 b) { return f32_rp(odd_div(a, b)); }
INLINE f32 div_rn_ftz(f32 a, f32 b) { return f32_rn_ftz(odd_div(a, b)); }
INLINE f32 div_rz_ftz(f32 a, f32 b) { return f32_rz_ftz(odd_div(a, b)); }
INLINE f32 div_rm_ftz(f32 a, f32 b) { return f32_rm_ftz(odd_div(a, b)); }
INLINE f32 div_rp_ftz(f32 a, f32 b) { return f32_rp_ftz(odd_div(a, b)); }
INLINE f32 sqrt_rn(f32 a) { return sqrtf(a); }
INLINE f32 sqrt_rz(f32 a) { return f32_rz(odd_sqrt(a)); }
INLINE f32 sqrt_rm(f32 a) { return f32_rm(odd_sqrt(a)); }
INLINE f32 sqrt_rp(f32 a) { return f32_rp(odd_sqrt(a)); }

/* --- minimum and maximum: a NaN loses, -0 < +0; _NaN: a NaN wins ---------------------------------- */
INLINE f32 minimum(f32 a, f32 b) {
    u32 x = bits(a), y = bits(b), m = a < b ? x : a > b ? y : x | y; /* equal: only +-0 differ in bits */
    return f32_bits(a != a ? (b != b ? NAN32 : y) : b != b ? x : m);
}
INLINE f32 maximum(f32 a, f32 b) {
    u32 x = bits(a), y = bits(b), m = a > b ? x : a < b ? y : x & y;
    return f32_bits(a != a ? (b != b ? NAN32 : y) : b != b ? x : m);
}
INLINE f32 minimum_NaN(f32 a, f32 b) { return f32_bits(a != a || b != b ? NAN32 : bits(minimum(a, b))); }
INLINE f32 maximum_NaN(f32 a, f32 b) { return f32_bits(a != a || b != b ? NAN32 : bits(maximum(a, b))); }
INLINE f64 minimum64(f64 a, f64 b) {
    u64 x = bits64(a), y = bits64(b), m = a < b ? x : a > b ? y : x | y;
    return f64_bits(a != a ? (b != b ? NAN64 : y) : b != b ? x : m);
}
INLINE f64 maximum64(f64 a, f64 b) {
    u64 x = bits64(a), y = bits64(b), m = a > b ? x : a < b ? y : x & y;
    return f64_bits(a != a ? (b != b ? NAN64 : y) : b != b ? x : m);
}

/* --- 16- and 8-bit formats ----------------------------------------------------------------------- */
INLINE f32 f32_of_bf16(u16 h) { return f32_bits((u32)h << 16); }
INLINE f32 f32_of_f16(u16 h) {
    u32 x = h & 0x7fffu, sign = (u32)(h & 0x8000u) << 16;
    u32 normal = (x << 13) + (112u << 23), special = normal + (112u << 23);
    u32 subnormal = bits((f32)(s32)x * 0x1p-24f);
    return f32_bits((x < 0x400u ? subnormal : x < 0x7c00u ? normal : special) | sign);
}
INLINE f32 f32_of_e4m3(u8 h) {
    u32 x = h & 0x7fu, sign = (u32)(h & 0x80u) << 24;
    u32 subnormal = bits((f32)(s32)x * 0x1p-9f);
    return f32_bits((x == 0x7fu ? NAN32 : x < 8u ? subnormal : (x << 20) + (120u << 23)) | sign);
}
INLINE f32 f32_of_e5m2(u8 h) { return f32_of_f16((u16)(h << 8)); }

/* f32 -> a format with m mantissa bits and smallest normal 2^emin, to nearest even. Codes above max
   become overflow. Subnormals: adding 2^(emin - m + 23) makes the f32 adder round at the format's quantum. */
INLINE u32 encode_rn(f32 a, int m, int emin, u32 max, u32 overflow, u32 nan, int width) {
    u32 x = bits(a) & 0x7fffffffu, sign = bits(a) >> 31;
    u32 lowest_normal = (u32)(emin + 127) << 23;
    u32 normal = ((x + ((1u << (22 - m)) - 1u) + ((x >> (23 - m)) & 1u)) >> (23 - m)) - ((u32)(emin + 126) << m);
    f32 magic = f32_bits((u32)(emin - m + 23 + 127) << 23);
    u32 subnormal = bits(f32_bits(x) + magic) - bits(magic);
    u32 code = x < lowest_normal ? subnormal : normal;
    code = code > max ? overflow : code;
    return a != a ? nan : code | sign << (width - 1);
}

/* The same in the directions z (to zero), m (down), p (up); overflow goes to max or to max + 1. */
INLINE u32 encode_directed(f32 a, char direction, int m, int emin, u32 max, u32 nan, int width) {
    u32 x = bits(a) & 0x7fffffffu, sign = bits(a) >> 31;
    int e = (int)(x >> 23) - 127;
    e = e < emin ? emin : e;
    f64 n = (f64)f32_bits(x) * f64_bits((u64)(1023 + m - e) << 52); /* magnitude in units of the quantum */
    int outward = direction == 'p' ? !sign : direction == 'm' ? (int)sign : 0;
    u64 whole = x < 0x7f800000u ? (u64)(outward ? ceil(n) : floor(n)) : 0;
    u64 code = whole + ((u64)(e - emin) << m);
    code = x == 0x7f800000u ? max + 1u : code > max ? (outward ? max + 1u : max) : code;
    return a != a ? nan : (u32)code | sign << (width - 1);
}

#define F16 10, -14, 0x7bffu
#define BF16 7, -126, 0x7f7fu
INLINE u16 f16_rn(f32 a) { return (u16)encode_rn(a, F16, 0x7c00u, 0x7fffu, 16); }
INLINE u16 f16_rz(f32 a) { return (u16)encode_directed(a, 'z', F16, 0x7fffu, 16); }
INLINE u16 f16_rm(f32 a) { return (u16)encode_directed(a, 'm', F16, 0x7fffu, 16); }
INLINE u16 f16_rp(f32 a) { return (u16)encode_directed(a, 'p', F16, 0x7fffu, 16); }
INLINE u16 f16_rn_satfinite(f32 a) { return (u16)encode_rn(a, F16, 0x7bffu, 0x7fffu, 16); }
INLINE u16 f16_rz_satfinite(f32 a) { return f16_rz(f32_bits(a - a == 0.0f || a != a ? bits(a) : (bits(a) & 0x80000000u) | 0x7f7fffffu)); }
INLINE u16 bf16_rn(f32 a) { return (u16)encode_rn(a, BF16, 0x7f80u, 0x7fffu, 16); }
INLINE u16 bf16_rz(f32 a) { return a != a ? 0x7fffu : (u16)(bits(a) >> 16); }
INLINE u16 bf16_rm(f32 a) { return (u16)encode_directed(a, 'm', BF16, 0x7fffu, 16); }
INLINE u16 bf16_rp(f32 a) { return (u16)encode_directed(a, 'p', BF16, 0x7fffu, 16); }
INLINE u16 bf16_rn_satfinite(f32 a) { return (u16)encode_rn(a, BF16, 0x7f7fu, 0x7fffu, 16); }
INLINE u16 bf16_rz_satfinite(f32 a) { return bf16_rz(f32_bits(a - a == 0.0f || a != a ? bits(a) : (bits(a) & 0x80000000u) | 0x7f7fffffu)); }
/* Stochastic: random bits below the quantum are added to the magnitude, and what is below the quantum is cut off. */
INLINE u32 encode_rs(f32 a, u32 r, int rbits, int satfinite, int m, int emin, u32 max) {
    u32 x = bits(a) & 0x7fffffffu, sign = bits(a) >> 31;
    int e = (int)(x >> 23) - 127;
    e = e < emin ? emin : e;
    f64 n = (f64)f32_bits(x) * f64_bits((u64)(1023 + m - e) << 52);
    n += (f64)(r & ((1u << rbits) - 1u)) * f64_bits((u64)(1023 - rbits) << 52);
    u64 code = x < 0x7f800000u ? (u64)floor(n) + ((u64)(e - emin) << m) : (u64)max + 1u;
    code = code > max ? max + (u64)!satfinite : code;
    return a != a ? 0x7fffu : (u32)code | sign << 15;
}
INLINE u16 f16_rs(f32 a, u32 r) { return (u16)encode_rs(a, r, 13, 0, F16); }
INLINE u16 f16_rs_satfinite(f32 a, u32 r) { return (u16)encode_rs(a, r, 13, 1, F16); }
INLINE u16 bf16_rs(f32 a, u32 r) { return (u16)encode_rs(a, r, 16, 0, BF16); }
INLINE u16 bf16_rs_satfinite(f32 a, u32 r) { return (u16)encode_rs(a, r, 16, 1, BF16); }
INLINE u8 e4m3_rn_satfinite(f32 a) { return (u8)encode_rn(a, 3, -6, 0x7eu, 0x7eu, 0x7fu, 8); }
INLINE u8 e5m2_rn_satfinite(f32 a) { return (u8)encode_rn(a, 2, -14, 0x7bu, 0x7bu, 0x7fu, 8); }
/* Formats of 4 and 6 bits have neither NaN nor infinity: NaN becomes the largest value. Codes may have bits above. */
INLINE f32 f32_of_small(u32 h, int m, int emin, int width) {
    u32 x = h & ((1u << (width - 1)) - 1u), sign = (h >> (width - 1) & 1u) << 31;
    u32 subnormal = bits((f32)(s32)x * f32_bits((u32)(emin - m + 127) << 23));
    return f32_bits((x < 1u << m ? subnormal : (x << (23 - m)) + ((u32)(emin + 126) << 23)) | sign);
}
INLINE f32 f32_of_e2m1(u8 h) { return f32_of_small(h, 1, 0, 4); }
INLINE f32 f32_of_e2m3(u8 h) { return f32_of_small(h, 3, 0, 6); }
INLINE f32 f32_of_e3m2(u8 h) { return f32_of_small(h, 2, -2, 6); }
INLINE f32 f32_of_s2f6(u8 h) { return (f32)(s8)h * 0x1p-6f; }
INLINE u8 e2m1_rn(f32 a) { return (u8)encode_rn(a, 1, 0, 0x7u, 0x7u, 0x7u, 4); }
INLINE u8 e2m3_rn(f32 a) { return (u8)encode_rn(a, 3, 0, 0x1fu, 0x1fu, 0x1fu, 6); }
INLINE u8 e3m2_rn(f32 a) { return (u8)encode_rn(a, 2, -2, 0x1fu, 0x1fu, 0x1fu, 6); }
/* Scales: 2^(code - 127); the sign is left out, 0xff is NaN. */
INLINE f32 f32_of_ue8m0(u8 h) { return f32_bits(h == 0xffu ? NAN32 : h == 0 ? 0x00400000u : (u32)h << 23); }
INLINE u8 ue8m0_rz(f32 a) { return (u8)((bits(a) & 0x7fffffffu) >> 23); }
INLINE u8 ue8m0_rp(f32 a) {
    u32 x = bits(a) & 0x7fffffffu, up = x > 0x00400000u && x < 0x7f800000u && (x & 0x007fffffu);
    return (u8)((x >> 23) + up);
}
INLINE u8 ue8m0_rz_satfinite(f32 a) { u8 d = ue8m0_rz(a); return a == a && d == 0xffu ? 0xfeu : d; }
INLINE u8 ue8m0_rp_satfinite(f32 a) { u8 d = ue8m0_rp(a); return a == a && d == 0xffu ? 0xfeu : d; }
/* f64 -> f32, f16, bf16: a NaN keeps its sign and its highest payload bits, and becomes quiet (H200). */
INLINE u32 nan_of_f64(f64 a, int m, int width) {
    u32 payload = (u32)(bits64(a) >> (52 - m)) & ((1u << m) - 1u), magnitude = (1u << (width - 1)) - 1u;
    return (u32)(bits64(a) >> 63) << (width - 1) | (magnitude >> m << m) | 1u << (m - 1) | payload;
}
/* tf32 keeps the place of an f32; the 13 low bits are zero. */
#define NAN_TF32 0x7fffe000u
INLINE u32 tf32_rn(f32 a) { return a != a ? NAN_TF32 : encode_rn(a, 10, -126, 0x3fbffu, 0x3fc00u, 0, 19) << 13; }
INLINE u32 tf32_rz(f32 a) { return a != a ? NAN_TF32 : bits(a) & 0xffffe000u; }
INLINE u32 tf32_rna(f32 a) {
    u32 magnitude = (bits(a) & 0x7fffffffu) + (a != a ? 0u : 0x1000u); /* a NaN is cut, even to infinity */
    return (bits(a) & 0x80000000u) | (magnitude & 0xffffe000u);
}
INLINE u32 finite_tf32(u32 d) { /* infinity becomes the largest finite value */
    return (d & 0x7fffffffu) == 0x7f800000u ? (d & 0x80000000u) | 0x7f7fe000u : d;
}

/* .relu: negative results (and -0) become +0, NaN stays NaN. */
INLINE f32 relu(f32 x) { return f32_bits(x != x || x > 0.0f ? bits(x) : 0u); }
INLINE f32 positive(f32 x) { return x; }
INLINE f32 positive_relu(f32 x) { return relu(x); }
/* .ftz of f16: subnormal halves count as zero. */
INLINE f32 in16(f32 x) { return x; }
INLINE f32 in16_ftz(f32 x) { return f32_bits((bits(x) & 0x7fffffffu) < 0x38800000u ? bits(x) & 0x80000000u : bits(x)); }
/* Before f16_rn: values that round below 2^-14 when exponents have no lower end (see f32_rn_ftz). */
INLINE f32 tiny16(f32 x) { return x; }
INLINE f32 tiny16_ftz(f32 x) { return f32_bits(fabsf(x) < 0x1p-14f * (1.0f - 0x1p-12f) ? bits(x) & 0x80000000u : bits(x)); }
INLINE f32 clamp(f32 x) { return x; }
INLINE f32 clamp_sat(f32 x) { return saturate(x); }

/* --- f64 integers in range -> integers; out of range clamps, NaN gives the value stated ------------ */
INLINE f64 round_rni(f64 x) { return rint(x); }
INLINE f64 round_rzi(f64 x) { return trunc(x); }
INLINE f64 round_rmi(f64 x) { return floor(x); }
INLINE f64 round_rpi(f64 x) { return ceil(x); }
#define INTEGER_OF(T, LOW, ABOVE, MIN, MAX) \
    INLINE T T##_of(f64 r, T nan) { return r != r ? nan : r <= LOW ? MIN : r >= ABOVE ? MAX : (T)r; }
INTEGER_OF(u8, 0.0, 255.0, 0, 255)
INTEGER_OF(s8, -128.0, 127.0, -128, 127)
INTEGER_OF(u16, 0.0, 65535.0, 0, 65535)
INTEGER_OF(s16, -32768.0, 32767.0, -32768, 32767)
INTEGER_OF(u32, 0.0, 4294967295.0, 0, 0xffffffffu)
INTEGER_OF(s32, -2147483648.0, 2147483647.0, INT32_MIN, INT32_MAX)
INTEGER_OF(u64, 0.0, 0x1p64, 0, UINT64_MAX)
INTEGER_OF(s64, -0x1p63, 0x1p63, INT64_MIN, INT64_MAX)

#define MIN_u8 0
#define MIN_u16 0
#define MIN_u32 0
#define MIN_u64 0
#define MIN_s8 INT8_MIN
#define MIN_s16 INT16_MIN
#define MIN_s32 INT32_MIN
#define MIN_s64 INT64_MIN
#define MAX_u8 UINT8_MAX
#define MAX_u16 UINT16_MAX
#define MAX_u32 UINT32_MAX
#define MAX_u64 UINT64_MAX
#define MAX_s8 INT8_MAX
#define MAX_s16 INT16_MAX
#define MAX_s32 INT32_MAX
#define MAX_s64 INT64_MAX
/* What NaN becomes: TOP when f64 or 64 bits are involved, else 0. */
#define TOP_u8 0x80
#define TOP_u16 0x8000
#define TOP_u32 0x80000000u
#define TOP_u64 0x8000000000000000ull
#define TOP_s8 INT8_MIN
#define TOP_s16 INT16_MIN
#define TOP_s32 INT32_MIN
#define TOP_s64 INT64_MIN
#define NAN_u8 0
#define NAN_s8 0
#define NAN_u16 0
#define NAN_s16 0
#define NAN_u32 0
#define NAN_s32 0
#define NAN_u64 TOP_u64
#define NAN_s64 TOP_s64

/* The upper 32 and the lower 32 bits of a 64-bit integer as f64 (both exact); their sum is the value. */
INLINE f64 upper_u64(u64 x) { return (f64)(u32)(x >> 32) * 0x1p32; }
INLINE f64 lower_u64(u64 x) { return (f64)(u32)x; }
INLINE f64 upper_s64(s64 x) { return (f64)(s32)(x >> 32) * 0x1p32; }
INLINE f64 lower_s64(s64 x) { return (f64)(u32)x; }

/* --- approximations: the f64 value rounded to f32 --------------------------------------------------- */

/* 2^x in f64 for |x| <= 200 (beyond: clamped), relative error below 2^-51: x = n + r, Taylor in r ln 2. */
INLINE f64 exp2_f64(f32 x) {
    f64 t = x, shifter = 0x1.8p52;
    t = t < -200.0 ? -200.0 : t > 200.0 ? 200.0 : t;
    f64 shifted = t + shifter, r = t - (shifted - shifter);
    f64 p = 1.3691488853904128e-12; /* (ln 2)^13 / 13! */
    p = p * r + 2.5678435993488206e-11;
    p = p * r + 4.4455382718708116e-10;
    p = p * r + 7.054911620801123e-09;
    p = p * r + 1.01780860092397e-07;
    p = p * r + 1.321548679014431e-06;
    p = p * r + 1.5252733804059841e-05;
    p = p * r + 0.0001540353039338161;
    p = p * r + 0.0013333558146428443;
    p = p * r + 0.009618129107628477;
    p = p * r + 0.05550410866482158;
    p = p * r + 0.24022650695910072;
    p = p * r + 0.6931471805599453;
    p = p * r + 1.0;
    return f64_bits(bits64(p) + (bits64(shifted) << 52));
}
INLINE f32 exp2_f32(f32 x) { return x != x ? x : (f32)exp2_f64(x); }

INLINE f32 div_approx(f32 a, f32 b) {
    u32 sign = (bits(a) ^ bits(b)) & 0x80000000u;
    int lost = fabsf(b) > 0x1p126f && fabsf(b) <= 0x1.fffffep127f;
    f32 zero = f32_bits(bits(fabsf(0.0f * a)) | sign); /* a infinite: NaN */
    return lost ? zero : a / b;
}
INLINE u16 half_rn_f16(f32 x) { return f16_rn(x); }
INLINE u16 half_rn_f16x2(f32 x) { return f16_rn(x); }
INLINE u16 half_rn_bf16(f32 x) { return bf16_rn(x); }
INLINE u16 half_rn_bf16x2(f32 x) { return bf16_rn(x); }

INLINE u32 reverse32(u32 x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
INLINE u64 reverse64(u64 x) { return (u64)reverse32((u32)x) << 32 | reverse32((u32)(x >> 32)); }

/* --- bit fields: PTX ISA, "Integer Arithmetic Instructions"  ------------------------------------------------- */
INLINE u32 amount_clamp(u32 n) { return n < 32 ? n : 32; }
INLINE u32 amount_wrap(u32 n) { return n & 31; }
INLINE u32 zext(u32 a, u32 n) { return n ? a << (32 - n) >> (32 - n) : 0; }
INLINE s32 sext(s32 a, u32 n) { return n ? (s32)((u32)a << (32 - n)) >> (32 - n) : 0; }
#define zext_clamp(a, b) zext(a, amount_clamp(b))
#define zext_wrap(a, b) zext(a, amount_wrap(b))
#define sext_clamp(a, b) sext(a, amount_clamp(b))
#define sext_wrap(a, b) sext(a, amount_wrap(b))

INLINE u32 bfind_u32(u32 a) { return a ? 31u - (u32)__builtin_clz(a) : 0xffffffffu; }
INLINE u32 bfind_u64(u64 a) { return a ? 63u - (u32)__builtin_clzll(a) : 0xffffffffu; }
INLINE u32 bfind_s32(s32 a) { return bfind_u32((u32)(a < 0 ? ~a : a)); }
INLINE u32 bfind_s64(s64 a) { return bfind_u64((u64)(a < 0 ? ~a : a)); }
INLINE u32 bfind_shiftamt_u32(u32 a) { return a ? (u32)__builtin_clz(a) : 0xffffffffu; }
INLINE u32 bfind_shiftamt_u64(u64 a) { return a ? (u32)__builtin_clzll(a) : 0xffffffffu; }
INLINE u32 bfind_shiftamt_s32(s32 a) { return bfind_shiftamt_u32((u32)(a < 0 ? ~a : a)); }
INLINE u32 bfind_shiftamt_s64(s64 a) { return bfind_shiftamt_u64((u64)(a < 0 ? ~a : a)); }

INLINE u32 fns(u32 mask, u32 base, s32 offset) {
    if (offset == INT32_MIN) return 0; /* measured on an H200 */
    if (offset == 0) return base < 32 && mask >> base & 1 ? base : 0xffffffffu;
    s64 step = offset < 0 ? -1 : 1, wanted = offset < 0 ? -(s64)offset : offset;
    for (s64 p = base; p >= 0 && (p < 32 || step < 0); p += step) {
        if (p > 31) { p = 32; continue; }
        if (mask >> p & 1 && --wanted == 0) return (u32)p;
    }
    return 0xffffffffu;
}

/* Positions and lengths count in full here; the 32-bit opcodes pass their low 8 bits. */
INLINE u64 bfe_u64(u64 a, u32 position, u32 length) {
    u64 field = position > 63 ? 0 : a >> position;
    u32 unused = 64 - (length > 64 ? 64 : length);
    return length ? field << (unused & 63) >> (unused & 63) : 0;
}
INLINE u32 bfe_u32(u32 a, u32 position, u32 length) { return (u32)bfe_u64(a, position, length); }
INLINE s64 bfe_s64(s64 a, u32 position, u32 length) {
    s64 field = a >> (position > 63 ? 63 : position);
    u32 unused = 64 - (length > 64 ? 64 : length);
    return length ? (s64)((u64)field << (unused & 63)) >> (unused & 63) : 0;
}
INLINE s32 bfe_s32(s32 a, u32 position, u32 length) { return (s32)bfe_s64(a, position, length); }

INLINE u64 field_mask(u32 position, u32 length) {
    u64 ones = length > 63 ? ~0ull : (1ull << (length & 63)) - 1;
    return position > 63 ? 0 : ones << (position & 63);
}
INLINE u32 bmsk_clamp(u32 a, u32 b) { return (u32)(((1ull << amount_clamp(b)) - 1) << amount_clamp(a)); }
INLINE u32 bmsk_wrap(u32 a, u32 b) { return (u32)(((1ull << (b & 31)) - 1) << (a & 31)); }

INLINE u32 prmt(u32 a, u32 b, u64 selector) {
    u64 pair = (u64)b << 32 | a;
    u32 result = 0;
    for (int i = 0; i < 4; i++, selector >>= 4) {
        u32 byte = pair >> 8 * (selector & 7) & 0xff;
        result |= (selector & 8 ? (byte >> 7) * 0xffu : byte) << 8 * i;
    }
    return result;
}
/* Fixed selections of the prmt modes: four selector nibbles for each value of c & 3. */
#define prmt_f4e 0x6543543243213210ull
#define prmt_b4e 0x0123701267015670ull
#define prmt_rc8 0x3333222211110000ull
#define prmt_ecl 0x3333322232113210ull
#define prmt_ecr 0x3210221011100000ull
#define prmt_rc16 0x3232101032321010ull
