/* f64 arithmetic of one lane in a direction: _rz _rm _rp. Needs lane_arithmetic.h. */
#include <fenv.h>

/* f64 sums in a direction: s is the nearest f64, e what it lost. */
INLINE f64 step64(f64 s, int take, s64 by) {
    u64 u = bits64(s);
    return f64_bits(take ? u + (u64)(u >> 63 ? -by : by) : u);
}
INLINE f64 sum64_rn(f64 x, f64 y) { return x + y; }
INLINE f64 sum64(f64 x, f64 y) { return x + y; }
INLINE f64 sum64_rz(f64 x, f64 y) {
    f64 s = x + y, e = sum_error(x, y, s);
    int inward = finite64(s) ? (s > 0.0 && e < 0.0) || (s < 0.0 && e > 0.0) : finite64(x) && finite64(y);
    return f64_bits(bits64(s) - (u64)inward);
}
INLINE f64 sum64_rm(f64 x, f64 y) {
    f64 s = x + y, e = sum_error(x, y, s);
    int below = finite64(s) ? e < 0.0 : s > 0.0 && finite64(x) && finite64(y);
    u64 zero = (bits64(x) | bits64(y)) & 0x8000000000000000ull;
    return s == 0.0 && e == 0.0 ? f64_bits(zero) : step64(s, below, -1);
}
INLINE f64 sum64_rp(f64 x, f64 y) {
    f64 s = x + y, e = sum_error(x, y, s);
    int above = finite64(s) ? e > 0.0 : s < 0.0 && finite64(x) && finite64(y);
    return step64(s, above, 1);
}

/* One f64 operation in a rounding mode of the processor. volatile keeps it between the changes of the mode. */
#define DIRECTED64(NAME, MODE) \
    INLINE f64 mul64_##NAME(f64 a, f64 b) { DIRECTED(MODE, x * y) } \
    INLINE f64 div64_##NAME(f64 a, f64 b) { DIRECTED(MODE, x / y) } \
    INLINE f64 sqrt64_##NAME(f64 a) { f64 b = 0.0; DIRECTED(MODE, (void)y, sqrt(x)) } \
    INLINE f64 fma64_##NAME(f64 a, f64 b, f64 c) { volatile f64 z = c; DIRECTED(MODE, fma(x, y, z)) }
#define DIRECTED(MODE, ...) \
    volatile f64 x = a, y = b, r; \
    fesetround(MODE); \
    r = (__VA_ARGS__); \
    fesetround(FE_TONEAREST); \
    return r;
DIRECTED64(rz, FE_TOWARDZERO)
DIRECTED64(rm, FE_DOWNWARD)
DIRECTED64(rp, FE_UPWARD)
