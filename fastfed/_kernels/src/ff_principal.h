/* Actions of a pool by their principal coordinates: where most of their features hang together, a
 * few numbers tell nearly all of an action, and bounds on its bonus need no more
 * (ff_bonus_principal.h). */
#ifndef FF_PRINCIPAL_H
#define FF_PRINCIPAL_H

#include "ff_base.h"
#include "ff_scores.h"

/* The most directions; their number is a multiple of 6 (ROWS of ff_panel.h). */
#define FF_PRINCIPAL_RANK 60

/* The coordinates of query q stand at buffer + starts[q] once met[q] is FF_PRINCIPAL_MADE. They
 * take as long as all products of a round with R, so they are made when a query is met for the
 * fourth time. Where starts is NULL there are none, but the directions tell what actions are like
 * (ff_bonus_few.h). */
#define FF_PRINCIPAL_MADE 5
typedef struct {
    const double *basis;     /* Q (rank, d), orthonormal rows */
    const double *columns;   /* Q', (d, rank) */
    const float *basis32, *columns32; /* both in float32 */
    const double *projector; /* Q'Q, (d, d) */
    int64_t rank;            /* a multiple of 6 */
    double above;            /* `rest` of ff_bonus_principal.h, in largest eigenvalues */
    char *buffer;            /* 64-byte aligned */
    const int64_t *starts;   /* or NULL */
    uint8_t *met;            /* how often, and whether they are made */
    int64_t queries, *made;  /* of how many they are */
} ff_principal;

/* Bytes that the coordinates of K actions take; a multiple of 64. */
int64_t ff_principal_bytes(int64_t rank, int64_t actions);

/* The coordinates of query q, whose actions these are; NULL where there are none yet. */
const char *ff_principal_block(const ff_principal *k, int64_t q, const ff_actions *actions,
                               int64_t d);

/* Whether enough queries have them for bounds to be made at a release. */
int ff_principal_serves(const ff_principal *k);

/* Whether all have them. */
int ff_principal_complete(const ff_principal *k);

/* Makes them into `block`, 64-byte aligned. */
void ff_principal_make(const ff_principal *k, const ff_actions *actions, int64_t d, char *block);

#endif
