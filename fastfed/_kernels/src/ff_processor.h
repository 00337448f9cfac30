/* What this processor has, asked of itself, and which level of the kernels therefore runs. */
#ifndef FF_PROCESSOR_H
#define FF_PROCESSOR_H

#include "ff_base.h"

/* Levels of x86-64: what processors since about 2003, 2013 and 2017 have. */
enum { FF_LEVEL_BASE, FF_LEVEL_V3, FF_LEVEL_V4, FF_LEVEL_COUNT };

/* The highest level that processor and operating system have; FF_LEVEL_BASE where it is not x86-64. */
int ff_processor_level(void);

/* 1 if they have AVX-512 VNNI. */
int ff_processor_vnni(void);

/* Chooses the highest level up to `most` that this processor has, for all calls that begin later,
 * and returns it; -1 where this build has one level only. Until it is called the base level runs. */
int ff_levels_choose(int most);

/* The level that was chosen. Where there is one only, FF_LEVEL_V4, for nothing was held back. */
int ff_levels_chosen(void);

#endif
