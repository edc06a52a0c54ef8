/* Stand-ins for the three TVM-FFI functions that a host function calls, so that C programs need no TVM-FFI.
 *
 *     NAME.o + cuda_runtime.o + plain_c.o -> NAME_c.so
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define HIDDEN __attribute__((visibility("hidden")))

static __thread char text[1024];
static __thread void *current_stream;

/* Exported as NAME_last_error and NAME_use_stream (link.py). */
EXPORT const char *cute_fa4_last_error(void) { return text; }
EXPORT void cute_fa4_use_stream(void *stream) { current_stream = stream; text[0] = 0; }

HIDDEN void *TVMFFIEnvGetStream(int32_t device_type, int32_t device) {
    (void)device_type; (void)device;
    return current_stream;
}
HIDDEN void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
    size_t used = (size_t)snprintf(text, sizeof text, "%s: ", kind);
    for (int32_t i = 0; i < count && used < sizeof text; i++)
        if (parts[i]) used += (size_t)snprintf(text + used, sizeof text - used, "%s", parts[i]);
}
HIDDEN void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message) {
    TVMFFIErrorSetRaisedFromCStrParts(kind, &message, 1);
}
