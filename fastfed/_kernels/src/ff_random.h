/* Keyed random streams: Philox4x32-10 (Salmon et al. 2011). Each number is a function of a key and
 * a counter. */
#ifndef FF_RANDOM_H
#define FF_RANDOM_H

#include "ff_base.h"

/* A stream, for one (seed, purpose) and one (replicate, silo, index); index is a round or a tree
 * node. The fourth word of the counter numbers the blocks of the stream. A block has four words of
 * 32 bits. */
typedef struct {
    uint32_t key0, key1;
    uint32_t replicate, silo, index;
} ff_stream;

/* Purposes. Streams of different purposes are independent. Also in fastfed/_random.py; the numbers
 * never change. */
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
    /* drawn in Python, by the server of a federation in phases */
    FF_ROTATION = 12,
    FF_RANGE = 13,
    FF_LAPLACE = 14,
    /* used by clients and servers of experts */
    FF_SAMPLE = 15,
    FF_SCORE_NOISE = 16,
    FF_THRESHOLD = 17,
    FF_QUERY = 18,
    FF_CHOICE = 19,
    /* for a user's score function */
    FF_SCORE_KEY = 20,
    /* coins that decide which users' rounds are shared */
    FF_PARTICIPATION = 21,
    /* noise of the sum over all silos, if it is drawn once */
    FF_SUM_BIAS_NOISE = 22,
    FF_SUM_COV_NOISE = 23,
    /* when the reward of a round arrives */
    FF_DELAY = 24
};

/* Open a stream. */
ff_stream ff_stream_open(uint64_t seed, uint64_t purpose, uint32_t replicate, uint32_t silo,
                         uint32_t index);

/* Return 64 uniform bits, from which a user's function may seed its own streams. */
uint64_t ff_key(const ff_stream *s);

/* Return how many numbers the normal generators write for n values: n rounded up to whole
 * vectors. */
int64_t ff_normal_capacity_f32(int64_t n);
int64_t ff_normal_capacity_f64(int64_t n);

/* Draw n standard normals. `out` has space for the capacity above; its first n entries are the
 * result. */
void ff_normals_f32(const ff_stream *s, int64_t n, float *restrict out);
void ff_normals_f64(const ff_stream *s, int64_t n, double *restrict out);

/* Compute 2 half standard normals from 53-bit integers a and b (half each) in [0, 2^53) by
 * Box-Muller: for noise whose bits come from the operating system. */
void ff_normals_from_bits(const uint64_t *restrict a, const uint64_t *restrict b, int64_t half,
                          double *restrict out);

/* Draw n numbers from the standard Laplace distribution, density exp(-|x|)/2, with 53 bits each. */
int64_t ff_laplace_capacity(int64_t n);
void ff_laplace(const ff_stream *s, int64_t n, double *restrict out);

/* Draw one Laplace number from the first uniform of each of n streams with indices s->index,
 * s->index + 1, ... */
void ff_laplaces(const ff_stream *s, int64_t n, double *restrict out);

/* Compute n Laplace numbers from 53-bit integers a in [0, 2^53) whose bits come from the operating
 * system. */
void ff_laplace_from_bits(const uint64_t *restrict a, int64_t n, double *restrict out);

/* Approximate 2 * half exact standard normals, with an error of at most 2^-40 (docs/exact.md). The
 * uniforms of exact draws have unlimited bits, and `words` holds the first 64 of each: those of
 * `half` radii, then of `half` angles. `out` receives the draws from cosines, then those from
 * sines. Returns the number of radii for which 64 bits do not suffice for that error: words below
 * 2^44 or above 2^64 - 2^44 - 1. */
int64_t ff_ideal_normals(const uint64_t *restrict words, int64_t half, double *restrict out);

/* Do the same for n Laplace draws. A word holds one bit for the sign, and the first 63 bits of a
 * uniform. */
int64_t ff_ideal_laplace(const uint64_t *restrict words, int64_t n, double *restrict out);

/* Draw n uniform integers of 32 bits, with the generators of contexts. `out` has space for the
 * capacity. */
int64_t ff_random_u32_capacity(int64_t n);
void ff_random_u32(const ff_stream *s, int64_t n, uint32_t *restrict out);

/* Write the four 32-bit words of block number `block`. */
void ff_philox(const ff_stream *s, uint32_t block, uint32_t out[4]);

/* Write the words of FF_PHILOX_LANES consecutive blocks of a stream, or of block number `block` of
 * the streams with indices s->index, s->index + 1, ..., or with the listed indices: out[i][l] is
 * word i of lane l. */
#define FF_PHILOX_LANES 16
void ff_philox_blocks(const ff_stream *s, uint32_t first,
                      uint32_t (*restrict out)[FF_PHILOX_LANES]);
void ff_philox_indices(const ff_stream *s, uint32_t block,
                       uint32_t (*restrict out)[FF_PHILOX_LANES]);
void ff_philox_listed(const ff_stream *s, uint32_t block, const uint32_t *restrict index,
                      uint32_t (*restrict out)[FF_PHILOX_LANES]);

/* Return a uniform number in (0, 1) with 53 bits, from block number `block`. */
double ff_uniform(const ff_stream *s, uint32_t block);

/* Write ff_uniform of block 0 of each of the FF_PHILOX_LANES streams with indices s->index,
 * s->index + 1, ... */
void ff_uniforms(const ff_stream *s, double out[FF_PHILOX_LANES]);

/* Return the uniform number in (0, 1) with 53 bits that two words give. */
double ff_unit(uint32_t high, uint32_t low);

/* Return a uniform integer in [0, n), n < 2^31, without bias. */
int64_t ff_uniform_int(const ff_stream *s, int64_t n);

/* Return one standard normal. */
double ff_normal(const ff_stream *s);

/* Return ln x for finite x > 0. The last bit of libm's log depends on the processor; the last bit
 * of ff_log does not. */
double ff_log(double x);

/* Compute ln x of n numbers, with the bits of ff_log. */
void ff_logs(const double *restrict x, int64_t n, double *restrict out);

/* Write a uniformly random permutation of 0..n-1 (Fisher-Yates) to out. */
void ff_permutation(const ff_stream *s, int64_t n, int64_t *restrict out);

#endif
