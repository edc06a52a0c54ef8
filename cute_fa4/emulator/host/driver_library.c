/* libcuda for cuda.bindings, which asks cuGetProcAddress for the address of every call.
 *
 *     an answered call -> stub n -> slot n, a Python callback (driver_library.py)
 *
 * cuda.core frees what it holds after the interpreter has ended, so the stubs do nothing then. A stub passes on as many
 * words as the longest call has; a call with fewer parameters ignores the rest.
 */
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define WORDS(name) uintptr_t name##0, uintptr_t name##1, uintptr_t name##2, uintptr_t name##3, uintptr_t name##4, \
    uintptr_t name##5, uintptr_t name##6, uintptr_t name##7, uintptr_t name##8, uintptr_t name##9, uintptr_t name##10

typedef int call(WORDS(a));
typedef int resolver(const char *name, void **function);

EXPORT int ended;
EXPORT call *slots[100];
EXPORT resolver *resolve;

#define STUB(n) \
    static int stub##n(WORDS(a)) { return ended ? 0 : slots[n](a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10); }
#define NAME(n) stub##n,
#define TEN(m, t) m(t##0) m(t##1) m(t##2) m(t##3) m(t##4) m(t##5) m(t##6) m(t##7) m(t##8) m(t##9)
#define HUNDRED(m) TEN(m, ) TEN(m, 1) TEN(m, 2) TEN(m, 3) TEN(m, 4) TEN(m, 5) TEN(m, 6) TEN(m, 7) TEN(m, 8) TEN(m, 9)
HUNDRED(STUB)
EXPORT call *const stubs[100] = {HUNDRED(NAME)};

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    (void)version, (void)flags;
    if (status) *status = 0; /* CU_GET_PROC_ADDRESS_SUCCESS */
    return resolve(name, function);
}
