/* The first principal directions of a pool's actions: where most of their features hang together,
 * few products tell nearly all of a bonus (ff_bonus_few.h). */
#ifndef FF_DIRECTIONS_H
#define FF_DIRECTIONS_H

#include "ff_base.h"

/* The most of them; their number is a multiple of 6 (ROWS of ff_panel.h). */
#define FF_MOST_DIRECTIONS 60

typedef struct {
    const double *rows; /* (count, d), orthonormal */
    int64_t count;
} ff_directions;

#endif
