/* Keyed random streams: Philox4x32-10 (Salmon et al. 2011), a function of key and counter. */
#ifndef FF_RANDOM_H
#define FF_RANDOM_H

#include "ff_base.h"

/* One stream per (seed, purpose) x (replicate, silo, index); index is a round or a tree node.
 * The fourth counter word numbers the blocks inside the stream. */
typedef struct {
    uint32_t key0, key1;
    uint32_t replicate, silo, index;
} ff_stream;

/* Purposes: two streams of different purposes never meet. Mirrored by _random.py. */
enum {
    FF_CONTEXT = 1,
    FF_REWARD = 2,
    FF_BIAS_NOISE = 3,
    FF_COV_NOISE = 4,
    FF_INSTANCE = 5,
    FF_PERMUTATION = 6,
    FF_ROUNDING = 7,
    FF_BIT_NOISE = 8,
    FF_SHUFFLE = 9,
    FF_POLICY = 10,
    FF_TRIGGER_NOISE = 11,
    /* drawn by the server of a federation in phases, in Python */
    FF_ROTATION = 12,
    FF_RANGE = 13,
    FF_LAPLACE = 14,
    /* of experts' clients and servers */
    FF_SAMPLE = 15,
    FF_SCORE_NOISE = 16,
    FF_THRESHOLD = 17,
    FF_QUERY = 18,
    FF_CHOICE = 19,
    /* for a user's score function */
    FF_SCORE_KEY = 20,
    /* which users' rounds are shared, where a secret coin decides */
    FF_PARTICIPATION = 21,
    /* the noise of all silos' sum, where it is drawn once */
    FF_SUM_BIAS_NOISE = 22,
    FF_SUM_COV_NOISE = 23
};

ff_stream ff_stream_open(uint64_t seed, uint64_t purpose, uint32_t replicate, uint32_t silo,
                         uint32_t index);

/* 64 uniform bits, from which a user's function may make streams of its own. */
uint64_t ff_key(const ff_stream *s);

/* Words the normal generators write for n values: n rounded up to whole vectors. */
int64_t ff_normal_capacity_f32(int64_t n);
int64_t ff_normal_capacity_f64(int64_t n);

/* Standard normals. `out` must hold the capacity above; the first n are the result. */
void ff_normals_f32(const ff_stream *s, int64_t n, float *restrict out);
void ff_normals_f64(const ff_stream *s, int64_t n, double *restrict out);

/* Standard normals from 53-bit integers in [0, 2^53): the transform alone, for noise whose
 * bits come from the operating system. a and b hold n/2 words each. */
void ff_normals_from_bits(const uint64_t *restrict a, const uint64_t *restrict b, int64_t half,
                          double *restrict out);

/* n draws of the standard Laplace distribution, density exp(-|x|)/2, 53 bits each. */
int64_t ff_laplace_capacity(int64_t n);
void ff_laplace(const ff_stream *s, int64_t n, double *restrict out);

/* Of n streams, from index s->index on, the one draw that the first uniform of each makes. */
void ff_laplaces(const ff_stream *s, int64_t n, double *restrict out);

/* ff_laplace from 53-bit integers in [0, 2^53), whose bits come from the operating system. */
void ff_laplace_from_bits(const uint64_t *restrict a, int64_t n, double *restrict out);

/* Ideal standard normals, known to within 2^-40 (docs/exact.md): `words` holds the first 64 bits of
 * the uniforms of `half` radii, then of as many turns; out the cosines' draws, then the sines'.
 * Returns how many radii the 64 bits do not settle to that error: words below 2^44 or above
 * 2^64 - 2^44 - 1. */
int64_t ff_ideal_normals(const uint64_t *restrict words, int64_t half, double *restrict out);

/* The same of n Laplace draws: a bit for the sign, and the first 63 of a uniform. */
int64_t ff_ideal_laplace(const uint64_t *restrict words, int64_t n, double *restrict out);

/* n uniform integers of 32 bits, from the generators of the contexts; out holds the capacity. */
int64_t ff_random_u32_capacity(int64_t n);
void ff_random_u32(const ff_stream *s, int64_t n, uint32_t *restrict out);

/* Four 32-bit words of block `block`. */
void ff_philox(const ff_stream *s, uint32_t block, uint32_t out[4]);

/* A uniform in (0, 1] with 53 bits; block selects which. */
double ff_uniform(const ff_stream *s, uint32_t block);

/* The uniform in (0, 1) that two words make, 53 bits. */
double ff_unit(uint32_t high, uint32_t low);

/* A uniform integer in [0, n), n < 2^31, without bias. */
int64_t ff_uniform_int(const ff_stream *s, int64_t n);

/* One standard normal. */
double ff_normal(const ff_stream *s);

/* ln x for finite x > 0: our own, because libm's last bit depends on the processor. */
double ff_log(double x);

/* The same of n numbers, with the same bits. */
void ff_logs(const double *restrict x, int64_t n, double *restrict out);

/* A uniform random permutation of 0..n-1 (Fisher-Yates). */
void ff_permutation(const ff_stream *s, int64_t n, int64_t *restrict out);

#endif
