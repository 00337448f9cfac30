/* What this processor supports, and the level of the kernels that therefore runs. */
#ifndef FF_PROCESSOR_H
#define FF_PROCESSOR_H

#include "ff_base.h"

/* Levels of x86-64: processors since about 2003, 2013 and 2017. */
enum { FF_LEVEL_BASE, FF_LEVEL_V3, FF_LEVEL_V4, FF_LEVEL_COUNT };

/* Return the highest level that processor and operating system support; FF_LEVEL_BASE if it is not
 * x86-64. */
int ff_processor_level(void);

/* Return 1 if processor and operating system support AVX-512 VNNI. */
int ff_processor_vnni(void);

/* Choose the highest level up to `highest` that this processor supports, for all later calls.
 * Returns the chosen level; -1 if this build has only one level. Before the first call the base
 * level runs. */
int ff_levels_choose(int highest);

/* Return the chosen level; FF_LEVEL_V4 if this build has only one level, because none is
 * excluded. */
int ff_levels_chosen(void);

#endif
