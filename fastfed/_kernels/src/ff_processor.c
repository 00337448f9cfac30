#include "ff_processor.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>

/* A bit of a register of cpuid. */
#define HAS(word, bit) (((word) >> (bit)) & 1u)

/* Return which registers the operating system saves when it switches tasks (XCR0). */
static uint64_t saved_registers(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* The level that is supported, and whether AVX-512 VNNI is. */
typedef struct {
    int level, vnni;
} processor;

/* Return the level of this processor, as the psABI of x86-64 defines it, and whether it has AVX-512
 * VNNI. The compilers' own __builtin_cpu_supports knows names of levels only from gcc 11 and clang
 * 18 on, and needs a library that clang on Windows does not link. */
static processor detect(void)
{
    uint32_t a, b, c, d, extended = 0, b7 = 0, c7 = 0;
    processor result = {FF_LEVEL_BASE, 0};
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return result;
    const uint32_t c1 = c;
    if (__get_cpuid(0x80000001, &a, &b, &c, &d))
        extended = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d))
        b7 = b, c7 = c;
    /* Level 2: SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT; LAHF. */
    const uint32_t v2 = HAS(c1, 0) & HAS(c1, 9) & HAS(c1, 13) & HAS(c1, 19) & HAS(c1, 20) &
                        HAS(c1, 23) & HAS(extended, 0);
    /* Level 3: FMA, MOVBE, OSXSAVE, AVX, F16C; BMI1, AVX2, BMI2; LZCNT. */
    const uint32_t v3 = v2 & HAS(c1, 12) & HAS(c1, 22) & HAS(c1, 27) & HAS(c1, 28) & HAS(c1, 29) &
                        HAS(b7, 3) & HAS(b7, 5) & HAS(b7, 8) & HAS(extended, 5);
    /* Level 4: AVX512F, DQ, CD, BW, VL. */
    const uint32_t v4 =
        v3 & HAS(b7, 16) & HAS(b7, 17) & HAS(b7, 28) & HAS(b7, 30) & HAS(b7, 31);
    if (!v3)
        return result;
    const uint64_t saved = saved_registers();
    /* The registers of SSE and AVX. */
    if ((saved & 0x6) != 0x6)
        return result;
    result.level = FF_LEVEL_V3;
    /* The registers of AVX-512, except on macOS, which enables them when a thread first uses
     * them. */
#ifndef __APPLE__
    if ((saved & 0xE0) != 0xE0)
        return result;
#endif
    if (v4) {
        result.level = FF_LEVEL_V4;
        result.vnni = (int)HAS(c7, 11);
    }
    return result;
}

/* Return the highest level that this processor and its operating system support. */
int ff_processor_level(void) { return detect().level; }
/* Return 1 if processor and operating system support AVX-512 VNNI. */
int ff_processor_vnni(void) { return detect().vnni; }

#else
/* Return the base level, the only one of this build. */
int ff_processor_level(void) { return FF_LEVEL_BASE; }
/* Return 0: this build uses no AVX-512. */
int ff_processor_vnni(void) { return 0; }
#endif
