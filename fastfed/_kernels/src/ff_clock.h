/* When a silo asks for a synchronisation: the determinant of what it knows has grown enough
 * (dubey-pentland-2020, Algorithm 1; the private rule: zhou-chowdhury-2024, Appendix D.2). */
#ifndef FF_CLOCK_H
#define FF_CLOCK_H

#include "ff_linalg.h"
#include "ff_protocol.h"

enum { FF_FIXED = 0, FF_DETERMINANT = 1, FF_PRIVATE_DETERMINANT = 2 };

/* Fires in a round, n rounds after the last synchronisation and this one counted, when
 *   FF_DETERMINANT:          ln det(S + Q + extra I) - ln det S >= threshold / n
 *   FF_PRIVATE_DETERMINANT:  ln det(S + Q + N) - ln det S > threshold / n
 * S: what is synchronised, Q: the silo's batch, N: the noise of prefix n in a tree of single
 * rounds, anew after every synchronisation. */
typedef struct {
    /* plan */
    int64_t kind;
    int64_t delay; /* rounds that are still played after the one in which it fires */
    double threshold, extra;
    ff_noise_std std; /* of N's nodes; no bias part */
    int64_t levels;   /* of the tree of single rounds */
    /* state */
    double before;  /* ln det S */
    double ridge;   /* what was added to the diagonal of the total to make S */
    int64_t last;   /* round of the last synchronisation */
    int64_t due;    /* round at whose end the next one is; 0: nobody has asked */
    double *wide;   /* (M, d, d): factor of S + Q + extra I; scratch for the private rule */
    double *growth; /* (M): ln det(S + Q + extra I) - ln det S */
    double *nodes;  /* (M, levels, s): standard normals of N's nodes; private rule only */
    int64_t *fired; /* (M): first round in which it fired, or the silo failed, since the last
                     * look; or 0 */
    double *saved;  /* (M, ff_play_saved): the silos as they were at the last look */
} ff_clock;

/* A synchronisation has just made S = total + ridge I, of factor w. scratch: ff_packed(d) + 2 d. */
void ff_clock_restart(ff_clock *clock, const double *total, double ridge, const double *w,
                      int64_t silos, int64_t d, double *scratch);

/* Takes in the features of the round; returns 1 when the rule fires. `noise`: the silo's stream
 * of this round, `batch`: its statistic. scratch: 2 ff_statistic(d), normals:
 * ff_noise_capacity(d). */
int64_t ff_clock_observe(ff_clock *clock, int64_t silo, int64_t rounds, const double *x,
                         const double *total, const double *batch, const ff_stream *noise,
                         int64_t d, double *normals, double *scratch);

#endif
