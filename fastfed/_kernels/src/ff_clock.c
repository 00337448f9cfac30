#include "ff_clock.h"

void ff_clock_restart(ff_clock *clock, const double *total, double ridge, const double *w,
                      int64_t silos, int64_t d, double *scratch)
{
    clock->before = ff_log_det(w, d);
    clock->ridge = ridge;
    if (clock->kind != FF_DETERMINANT)
        return;
    ff_refresh(total, ridge + clock->extra, d, clock->wide, scratch, scratch + d);
    clock->growth[0] = ff_log_det(clock->wide, d) - clock->before;
    for (int64_t i = 1; i < silos; i++) {
        memcpy(clock->wide + i * d * d, clock->wide, (size_t)(d * d) * sizeof(double));
        clock->growth[i] = clock->growth[0];
    }
}

static int64_t grown(ff_clock *clock, int64_t silo, int64_t rounds, const double *x, int64_t d,
                     double *scratch)
{
    double *growth = clock->growth + silo;
    *growth += ff_log(ff_observe(clock->wide + silo * d * d, NULL, x, 0.0, d, scratch));
    return *growth >= clock->threshold / (double)rounds;
}

/* A matrix that is not positive definite has not grown: the rule may only see what is private. */
static int64_t grown_privately(ff_clock *clock, int64_t silo, int64_t rounds,
                               const double *total, const double *batch, const ff_stream *noise,
                               int64_t d, double *normals, double *scratch)
{
    const int64_t s = ff_statistic(d), level = ff_node_level(rounds);
    double *nodes = clock->nodes + silo * clock->levels * s, *w = clock->wide + silo * d * d;
    double *node = nodes + level * s, *v = scratch + s;
    ff_normals_f64(noise, ff_packed(d), normals);
    memset(node, 0, (size_t)d * sizeof(double));
    memcpy(node + d, normals, (size_t)ff_packed(d) * sizeof(double));
    ff_prefix(nodes, rounds, s, normals);
    memcpy(scratch, total, (size_t)s * sizeof(double));
    ff_add(scratch, batch, s);
    ff_add_noise(scratch, normals, &clock->std, d, v);
    for (int64_t i = 0; i < d; i++)
        v[d + i * (i + 1) / 2 + i] += clock->ridge;
    if (ff_factor(v + d, d, w) != 0)
        return 0;
    return ff_log_det(w, d) - clock->before > clock->threshold / (double)rounds;
}

int64_t ff_clock_observe(ff_clock *clock, int64_t silo, int64_t rounds, const double *x,
                         const double *total, const double *batch, const ff_stream *noise,
                         int64_t d, double *normals, double *scratch)
{
    if (clock->kind == FF_DETERMINANT)
        return grown(clock, silo, rounds, x, d, scratch);
    return grown_privately(clock, silo, rounds, total, batch, noise, d, normals, scratch);
}
