/* The arithmetic assumes rounding to nearest and subnormals; the process may have set something else (torch's
   set_flush_denormal, libraries linked with -ffast-math). Returns the state to restore. */
#if defined(__x86_64__)
static u32 ieee_mode(void) {
    u32 before = __builtin_ia32_stmxcsr();
    if (before & 0xe040u) __builtin_ia32_ldmxcsr(before & ~0xe040u); /* flush to zero, rounding, denormals are zero */
    return before;
}
static void restore_mode(u32 before) { if (before & 0xe040u) __builtin_ia32_ldmxcsr(before); }
#elif defined(__aarch64__)
static u64 ieee_mode(void) {
    u64 before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    if (before & 0x1c00000u) __asm__ volatile("msr fpcr, %0" : : "r"(before & ~0x1c00000ull)); /* FZ, RMode */
    return before;
}
static void restore_mode(u64 before) { if (before & 0x1c00000u) __asm__ volatile("msr fpcr, %0" : : "r"(before)); }
#else
static int ieee_mode(void) { return 0; }
static void restore_mode(int before) { (void)before; }
#endif
