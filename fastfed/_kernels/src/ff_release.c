#include "ff_release.h"

#include <math.h>

#include "ff_random.h"

FF_CLONES
void ff_honaker(double *restrict estimate, const double *restrict node,
                const double *restrict sibling, int64_t level, int64_t s)
{
    const double v = 1.0 / (2.0 - ldexp(1.0, -(int)level)), rest = 1.0 - v;
    for (int64_t j = 0; j < s; j++)
        estimate[j] = v * node[j] + rest * (sibling[j] + estimate[j]);
}

int64_t ff_honaker_number(int64_t k)
{
    int64_t bits = 0;
    for (int64_t rest = k - 1; rest; rest &= rest - 1)
        bits++;
    return 2 * (k - 1) - bits + 1;
}

int64_t ff_nested_draws(int64_t k)
{
    return k ? 1 + (int64_t)ff_log((double)(k + 1)) : 0;
}

FF_CLONES
void ff_toeplitz(const double *restrict history, const double *restrict f, int64_t k, int64_t s,
                 double *restrict out)
{
    memset(out, 0, (size_t)s * sizeof(double));
    for (int64_t i = 0; i < k; i++) {
        const double factor = f[k - 1 - i];
        const double *restrict row = history + i * s;
        for (int64_t j = 0; j < s; j++)
            out[j] += factor * row[j];
    }
}
