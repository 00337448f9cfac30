/* The first principal directions of the actions of a pool. If the features are strongly correlated,
 * products with few directions give most of a bonus (ff_bonus_few.h). */
#ifndef FF_DIRECTIONS_H
#define FF_DIRECTIONS_H

#include "ff_base.h"

/* The largest number of directions. The number used is a multiple of 6 (ROWS of ff_panel.h). */
#define FF_MOST_DIRECTIONS 60

/* Principal directions. */
typedef struct {
    const double *rows; /* (count, d), orthonormal */
    int64_t count;
} ff_directions;

#endif
