/* Screening with a sieve (ff_scores.h): which actions may be chosen, from approximate rankings
 * r = <x, theta> + ranking b and bonuses b. An action passes if r + (2 slack - 1 - ranking) b is at
 * least min(limit, the largest score). */
#ifndef FF_SIEVE_H
#define FF_SIEVE_H

#include "ff_screen_f32.h"

/* Bounds for screening, if every score has an error of at most `error`. The error of a ranking is
 * at most as large, and that of r + factor b at most 2 slack - 1 times as large. */
typedef struct {
    double factor;            /* 2 slack - 1 - ranking */
    double certain, possible; /* at least `certain`: passes; below `possible`: does not pass */
    double rank_error;        /* bound on the error of a ranking */
    double score_factor;      /* a score is r + score_factor b */
    double largest;           /* scores below it are not the largest */
    int at_limit;             /* 1: the largest score is at least the limit */
} ff_sieve_bounds;

/* Return the bounds for screening. largest: the largest approximate score. */
FF_INLINE ff_sieve_bounds ff_sieve_bounds_of(const ff_sieve *sieve, double largest, double error)
{
    const double sieve_error = (2.0 * sieve->slack - 1.0) * error;
    const double low = largest - error, high = largest + error;
    return (ff_sieve_bounds){
        .factor = 2.0 * sieve->slack - 1.0 - sieve->ranking,
        .certain = (high < sieve->limit ? high : sieve->limit) + sieve_error,
        .possible = (low < sieve->limit ? low : sieve->limit) - sieve_error,
        .rank_error = error,
        .score_factor = 1.0 - sieve->ranking,
        .largest = low - error,
        .at_limit = low >= sieve->limit,
    };
}

/* Define a function that lists the actions that may pass and may have the largest ranking, for
 * arrays of this type. A NaN proves nothing, so its action is listed. */
#define LIST_PASSING(name, real)                                                                   \
    static ff_sieved name(const real *restrict rank, const real *restrict bonus, int64_t count,    \
                          const ff_sieve_bounds *bounds, int64_t *restrict candidates)             \
    {                                                                                              \
        /* The largest ranking among actions that certainly pass. */                               \
        double best = -INFINITY;                                                                   \
        for (int64_t a = 0; a < count; a++) {                                                      \
            const double r = (double)rank[a], value = r + bounds->factor * (double)bonus[a];       \
            best = value >= bounds->certain && r > best ? r : best;                                \
        }                                                                                          \
        const double least = best - 2.0 * bounds->rank_error;                                      \
        ff_sieved result = {0, 0, 1, bounds->at_limit};                                            \
        for (int64_t a = 0; a < count; a++) {                                                      \
            const double r = (double)rank[a], value = r + bounds->factor * (double)bonus[a];       \
            if (value < bounds->possible || r < least)                                             \
                continue;                                                                          \
            candidates[result.count++] = a;                                                        \
            result.certain &= value >= bounds->certain;                                            \
        }                                                                                          \
        for (int64_t a = 0; !result.certain && !result.at_limit && a < count; a++)                 \
            if (!((double)rank[a] + bounds->score_factor * (double)bonus[a] < bounds->largest))    \
                candidates[count + result.largest++] = a;                                          \
        return result;                                                                             \
    }

#endif
