# cython: language_level=3
"""Ridge regression: factors of V, rank-one updates, upper confidence bounds and confidence radii.

Thin wrappers that do not check their arguments; see ``src/ff_linalg.h``, ``src/ff_scores.h``,
``src/ff_screen_i16.h``, ``src/ff_estimate.h`` and ``src/ff_mean.h``.
"""

from libc.stdint cimport int64_t, uint64_t, uintptr_t

import numpy as np

from fastfed._kernels.environments import status_error

from fastfed._kernels.headers cimport *


# ---- factors of V --------------------------------------------------------------------------------

def log(double x):
    """Return ln x for finite x > 0, with the same bits on every processor."""
    return ff_log(x)


def factor(const double[::1] packed, int64_t d):
    """Return the inverse factor W (d, d) of the packed V, or None if V is not positive definite."""
    cdef double[:, ::1] w = np.empty((d, d))
    if ff_factor(&packed[0], d, &w[0, 0]):
        return None
    return np.asarray(w)


def solve(const double[:, ::1] w, const double[::1] u):
    """Return V^{-1} u (d,), from the inverse factor w of V."""
    cdef int64_t d = w.shape[0]
    cdef double[::1] theta = np.empty(d), scratch = np.empty(d)
    ff_solve(&w[0, 0], &u[0], d, &scratch[0], &theta[0])
    return np.asarray(theta)


def least_squares(const double[:, ::1] statistics, int64_t d):
    """Return V^+ u (M, d) of every statistic (u, packed V) in statistics (M, s); 0 for a statistic
    that is not finite."""
    cdef double[:, ::1] theta = np.zeros((statistics.shape[0], d))
    cdef double[::1] scratch = np.empty(2 * d * d + d)
    cdef int64_t i
    for i in range(statistics.shape[0]):
        ff_least_squares(&statistics[i, 0], d, &scratch[0], &theta[i, 0])
    return np.asarray(theta)


def hadamard(values):
    """Return H v for every row v of a (M, 2^k) array, with H the Hadamard matrix, H H = 2^k I."""
    result = np.array(values, dtype=np.float64, order="C", ndmin=2)
    cdef double[:, ::1] rows = result
    cdef int64_t i
    for i in range(rows.shape[0]):
        ff_hadamard(&rows[i, 0], rows.shape[1])
    return result


def log_det(const double[:, ::1] w):
    """Return ln det V, from the inverse factor w of V."""
    return ff_log_det(&w[0, 0], w.shape[0])


def log_volume(const double[:, ::1] w, bint arms):
    """Return ln det V or, for arms, the logarithm of the largest entry of the diagonal V."""
    cdef ff_radius radius
    radius.arms = arms
    return ff_log_volume(&radius, &w[0, 0], w.shape[0])


def observe(double[:, ::1] w, double[::1] theta, const double[::1] x, double y):
    """Update W and theta by a data point, in place; theta may be None. Returns det V after the
    point divided by det V before it."""
    cdef int64_t d = w.shape[0]
    cdef double[::1] scratch = np.empty(4 * d)
    cdef double *t = NULL
    if theta is not None:
        t = &theta[0]
    return ff_observe(&w[0, 0], t, &x[0], y, d, &scratch[0])


def arms_observe(double[:, ::1] w, double[::1] theta, const double[::1] x, double y):
    """Do the same as `observe` for a unit vector x (one entry 1, the others 0) and a diagonal W."""
    return ff_arms_observe(&w[0, 0], &theta[0], &x[0], y, w.shape[0])


def accumulate(double[::1] statistic, const double[::1] x, double y):
    """Add a data point to a statistic (bias, packed covariance), in place."""
    cdef int64_t d = x.shape[0]
    ff_accumulate(&statistic[0] + d, &statistic[0], &x[0], y, d)


def rank_one(double[:, ::1] gram, double[::1] bias, const double[::1] x, double y):
    """Add a data point to gram (d, d) and bias (d,), in place."""
    ff_rank_one(&gram[0, 0], &bias[0], &x[0], y, x.shape[0])


def sherman_morrison(double[:, ::1] inverse, const double[::1] x):
    """Update inverse = V^{-1} (d, d) to (V + x x')^{-1}, in place."""
    cdef int64_t d = x.shape[0]
    cdef double[::1] scratch = np.empty(d)
    ff_sherman_morrison(&inverse[0, 0], &x[0], d, &scratch[0])


def clip_norm(double[::1] x, double bound):
    """Scale x to norm `bound` in place if its norm is larger; return True if the norm exceeded the
    bound by more than rounding."""
    return bool(ff_clip_norm(&x[0], x.shape[0], bound))


# ---- scores --------------------------------------------------------------------------------------

cdef ff_actions view_of(actions) except *:
    """Describe actions (K, d) of float32 or float64, with any positive strides, for C."""
    cdef ff_actions view
    cdef int64_t size = actions.itemsize
    cdef uintptr_t address = actions.__array_interface__["data"][0]
    view.x = <const void *>address
    view.is_double = size == 8
    view.action_stride = actions.strides[0] // size
    view.feature_stride = actions.strides[1] // size
    view.actions = actions.shape[0]
    view.mean = NULL
    view.best = 0.0
    view.quantised = NULL
    view.ahead = NULL
    return view


def scores(actions, const double[:, ::1] w, const double[::1] theta, double beta, double gamma):
    """Return the scores (K,) of all actions."""
    cdef int64_t d = w.shape[0]
    cdef ff_actions view = view_of(actions)
    cdef double[::1] scratch = np.empty(ff_score_scratch(d, view.actions))
    cdef double[::1] out = np.empty(view.actions)
    ff_scores(&view, &w[0, 0], &theta[0], beta, gamma, d, &scratch[0], &out[0])
    return np.asarray(out)


def bonus_ends(
    actions, const double[:, ::1] w, const double[::1] theta, double beta, double gamma,
    const double[:, ::1] points, const double[:, ::1] basis=None,
):
    """Return (bounds, new w): bounds (5, K) on the scores of float32 feature-major actions, and w
    after the points (n, d) have entered V; None if there are no cheap bounds. For tests.

    The bounds are computed from w and hold for the new w. Rows 1 to 3 are upper bounds: the cheap
    bounds (which use a pool's principal directions, the rows of basis, if it is given), those from
    ||R x|| for all actions together, and those from ||R x|| for one action at a time. Rows 4 and 5
    are lower bounds. See ff_bonus_cache_test_bounds.
    """
    cdef int64_t d = w.shape[0]
    cdef ff_actions view = view_of(actions)
    cdef double[::1] scratch = np.empty(
        ff_bonus_cache_size(d) + 3 * d * d + 2 * d + ff_score_scratch(d, view.actions) + 64)
    cdef float[:, ::1] bounds = np.empty((5, view.actions), np.float32)
    cdef double[:, ::1] w_now = np.empty((d, d))
    cdef int64_t points_count = points.shape[0]
    cdef ff_directions directions
    if basis is not None:
        directions.rows, directions.count = &basis[0, 0], basis.shape[0]
    if not ff_bonus_cache_test_bounds(
        &view, NULL if basis is None else &directions, &w[0, 0], &theta[0], beta, gamma,
        &points[0, 0] if points_count else NULL, points_count, &w_now[0, 0], d, &scratch[0],
        &bounds[0, 0],
    ):
        return None
    return np.asarray(bounds), np.asarray(w_now)


def select(actions, const double[:, ::1] w, const double[::1] theta, double beta, double gamma):
    """Return (index, features) of the best action."""
    cdef int64_t d = w.shape[0]
    cdef ff_actions view = view_of(actions)
    cdef double[::1] scratch = np.empty(ff_score_scratch(d, view.actions))
    cdef double[::1] x = np.empty(d)
    cdef int64_t a = ff_select(&view, &w[0, 0], &theta[0], beta, gamma, d, &scratch[0], &x[0])
    return a, np.asarray(x)


def select_sieved(actions, const double[:, ::1] w, const double[::1] theta, double beta,
                  double gamma, double limit, double slack, double ranking):
    """Return (index, features) of the action with the largest <x, theta> + ranking b among those
    that pass a sieve, for b = beta ||x||_{V^-1} + gamma ||V^-1 x||; see ff_sieve in
    ff_scores.h."""
    cdef int64_t d = w.shape[0]
    cdef ff_actions view = view_of(actions)
    cdef double[::1] scratch = np.empty(ff_score_scratch(d, view.actions))
    cdef double[::1] x = np.empty(d)
    cdef ff_sieve sieve = ff_sieve(limit, slack, ranking)
    cdef int64_t a = ff_select_sieved(&view, &w[0, 0], &theta[0], beta, gamma, &sieve, d,
                                      &scratch[0], &x[0])
    return a, np.asarray(x)


def select_max_min(actions, const double[:, ::1] w, const double[::1] theta, double beta,
                   double gamma, const double[:, ::1] other_w, const double[::1] other_theta,
                   double other_beta):
    """Return (index, features) of the action for which the smaller of its scores by two models is
    the largest, see ff_select_max_min."""
    cdef int64_t d = w.shape[0]
    cdef ff_actions view = view_of(actions)
    cdef double[::1] scratch = np.empty(ff_score_scratch(d, view.actions))
    cdef double[::1] x = np.empty(d)
    cdef int64_t a = ff_select_max_min(&view, &w[0, 0], &theta[0], beta, gamma, &other_w[0, 0],
                                       &other_theta[0], other_beta, d, &scratch[0], &x[0])
    return a, np.asarray(x)


def select_passing(actions, const double[:, ::1] w, const double[::1] theta, double beta,
                   const double[:, ::1] local_w, const double[::1] local_theta, double local_beta,
                   double limit, double slack):
    """Return (index, features) of the best action by one model among those that pass the sieve of
    another model, see ff_select_passing."""
    cdef int64_t d = w.shape[0]
    cdef ff_actions view = view_of(actions)
    cdef double[::1] scratch = np.empty(ff_score_scratch(d, view.actions))
    cdef double[::1] x = np.empty(d)
    cdef int64_t a = ff_select_passing(&view, &w[0, 0], &theta[0], beta, &local_w[0, 0],
                                       &local_theta[0], local_beta, limit, slack, d, &scratch[0],
                                       &x[0])
    return a, np.asarray(x)


def scored(score, uint64_t key, int64_t round, actions, const double[:, ::1] w,
           const double[::1] theta, double beta, double gamma, sieve=None):
    """Return (index, features) of the action with the largest score by a user's compiled function,
    ``score.function`` with ``score.state``. With a sieve, only actions that pass it may be chosen;
    ``sieve`` is the tuple (limit, slack, ranking) of ff_sieve in ff_scores.h. See ff_scored."""
    cdef ff_sieve passing
    cdef const ff_sieve *passing_pointer = NULL
    if sieve is not None:
        passing.limit, passing.slack, passing.ranking = sieve
        passing_pointer = &passing
    cdef int64_t d = w.shape[0], a
    cdef ff_actions view = view_of(actions)
    cdef uintptr_t function = score.function.address
    cdef const double *state = <const double *>address_of(score.state)
    cdef int64_t size = 0 if score.state is None else score.state.size
    cdef bint diagonal = score.diagonal
    cdef double[::1] scratch = np.empty(
        ff_arms_scratch(d) if diagonal else ff_scored_scratch(d, view.actions, size))
    cdef double[::1] x = np.empty(d)
    with nogil:
        if diagonal:
            a = ff_arms_scored(<ff_score>function, key, round, &w[0, 0], &theta[0], beta, gamma,
                               passing_pointer, d, &scratch[0], &x[0])
        else:
            a = ff_scored(<ff_score>function, state, size, key, round, &view, &w[0, 0],
                          &theta[0], beta, gamma, passing_pointer, d, &scratch[0], &x[0])
    if a < 0:
        raise status_error(FF_SCORE_FAILED)
    return a, np.asarray(x)


#: Addresses of the score functions of this core, see `fastfed.protocols.score.CoreScore`.
CORE_SCORES = {
    "beta_draws": <uintptr_t>&ff_beta_draws,
    "normal_draws": <uintptr_t>&ff_normal_draws,
}


def has_screen_i16():
    """Return True if this build and this processor have screening in 16 bits."""
    cdef ff_actions view
    view.is_double, view.action_stride = 0, 1
    return bool(ff_screen_i16_fits(&view, 1))


# ---- local rounds --------------------------------------------------------------------------------

#: The largest number of deviations on the grid of a posterior ("belief").
MAX_GRID = FF_MAX_GRID


def belief(model, const double[::1] rest, const double[::1] own, double[:, ::1] w,
           double[::1] theta):
    """Compute W and theta of a silo's posterior, in place. Returns the weights of the deviations,
    or None if a matrix is not finite.

    model: (R^2, prior, spreads, ridges), fields of ff_belief_model in ``src/ff_belief.h``; rest:
    the other silos' released sums (s,); own: the silo's raw sums (s,).
    """
    cdef int64_t d = w.shape[0]
    cdef ff_belief_model m
    fill_belief(&m, model)
    cdef double[::1] scratch = np.empty(ff_belief_scratch(d)), weights = np.empty(m.count)
    if ff_belief(&m, &rest[0], &own[0], d, &w[0, 0], &theta[0], &weights[0], &scratch[0]):
        return None
    return np.asarray(weights)


# ---- estimates and radii -------------------------------------------------------------------------

def refresh(const double[::1] statistic, double regularizer, double[:, ::1] w, double[::1] theta):
    """Compute W and theta of V = lambda I + covariance, in place. Returns the shift that V needed,
    or -1 if no shift helps."""
    cdef int64_t d = w.shape[0]
    cdef double[::1] scratch = np.empty(d * (d + 1) // 2 + d)
    return ff_refresh(&statistic[0], regularizer, d, &w[0, 0], &theta[0], &scratch[0])


def choose_regularizer(const double[::1] statistic, double full, double floor, int64_t d):
    """Return the smallest lambda = full j / 8, j = 0..7, for which every eigenvalue of
    covariance + lambda I is above floor; full if there is none."""
    cdef double[:, ::1] w = np.empty((d, d))
    cdef double[::1] scratch = np.empty(d * (d + 1) // 2)
    return ff_choose_regularizer(&statistic[0], full, floor, d, &w[0, 0], &scratch[0])


cdef class FixedModel:
    """The model of an eager silo with one fixed set of actions, see ``src/ff_fixed.h``.

    rows (K, d) are float32 and feature-major; features of norm above bound are clipped to it.
    """

    cdef double[::1] model
    cdef const double[:, ::1] w
    cdef object rows

    def __init__(self, rows, const double[:, ::1] w, const double[::1] theta, double bound):
        cdef int64_t d = w.shape[0]
        cdef ff_actions view = view_of(rows)
        cdef double[::1] scratch = np.empty(7 * d)
        self.rows, self.w, self.model = rows, w, np.zeros(ff_fixed_size(view.actions, d))
        ff_fixed_make(&self.model[0], &view, &w[0, 0], &theta[0], bound, 0, d, &scratch[0])

    def select(self, double beta, double gamma, sieve=None):
        """Return the action with the largest score. With a sieve (limit, slack, ranking): return
        the best action by the ranking among those that pass the sieve (ff_sieve in
        ff_scores.h)."""
        cdef ff_sieve passing
        if sieve is None:
            return ff_fixed_choose(&self.model[0], beta, gamma, 1.0)
        passing.limit, passing.slack, passing.ranking = sieve
        ff_fixed_choose(&self.model[0], beta, gamma, passing.ranking)
        return ff_fixed_choose_passing(&self.model[0], beta, gamma, &passing)

    def observe(self, double y):
        """Learn the reward of the action selected last; return the factor by which det V grows."""
        return ff_fixed_observe(&self.model[0], y)

    def log_entry(self):
        """Return -ln ||x||^2_{V^-1} of the action selected last. If the actions are unit vectors
        and V is diagonal, that is the logarithm of the action's entry of V."""
        return ff_fixed_log_entry(&self.model[0])

    def inverse_norm(self):
        """Return an upper bound on the largest eigenvalue of V^-1; inf if it is not known."""
        cdef int64_t d = self.w.shape[0]
        cdef ff_actions view = view_of(self.rows)
        cdef double[::1] scratch = np.empty(d * d + ff_inverse_norm_scratch(d))
        return ff_fixed_inverse_norm(&self.model[0], &view, &self.w[0, 0], d, &scratch[0])

    def parts(self):
        """Return <x, theta>, ||x||^2_{V^-1}, ||V^-1 x||^2 and the indices of the different actions.

        The result has shape (4, n) for n different actions; it is for tests.
        """
        # A model starts with 8 numbers, of which number 1 is n. Then 15 arrays follow, padded to
        # multiples of 8 numbers (`parts` in ff_fixed.c).
        cdef int64_t n = <int64_t>self.model[1]
        arrays = np.array(self.model)[8:8 + 15 * ((n + 7) // 8 * 8)].reshape(15, -1)[:, :n]
        return arrays[[0, 1, 2, 14]]


def inverse_norm(const double[:, ::1] w):
    """Return an upper bound on the largest eigenvalue of V^-1."""
    cdef int64_t d = w.shape[0]
    cdef double[::1] scratch = np.empty(ff_inverse_norm_scratch(d))
    return ff_inverse_norm(&w[0, 0], d, &scratch[0])


def row_width(double multiplier, double scale, double base, double anchor, double gamma,
              double rows, int64_t d):
    """Return C of a silo that adds rows x one by one: its bonus is at most C ||x||_{V^-1}, see
    ff_row_width. With arms, pass d = 1."""
    cdef ff_radius radius
    radius.arms = 0
    radius.multiplier, radius.scale, radius.base = multiplier, scale, base
    radius.determinant, radius.anchor = 1, anchor
    return ff_row_width(&radius, gamma, rows, d)


def inflation(double lowered, double floor, double inverse):
    """Return the inflation f of the direct radius after lambda was lowered by `lowered`, so that
    V + lowered I <= f V. All eigenvalues of V are at least floor and at least 1 / inverse."""
    return ff_inflation(lowered, floor, inverse)


def slack(double width, double beta, double gamma, double inflation, double inverse):
    """Return the slack of a sieve: 1 or, if that is larger, a lower bound on the bonus that the
    regret bound counts for an action, divided by the bonus in its score. See ff_slack."""
    return ff_slack(width, beta, gamma, inflation, inverse)


def radius_at(double multiplier, double scale, double base, double offset, double lam,
              double count, int64_t d):
    """Return the confidence radius that depends on count, the number of data points in V, and not
    on det V. lam: lambda of V. See ff_radius."""
    cdef ff_radius radius
    radius.multiplier, radius.scale, radius.base = multiplier, scale, base
    return ff_radius_at(&radius, offset, lam, count, d)


def determinant_radius(double multiplier, double scale, double base, double offset, double anchor,
                       double inflation, double log_det, int64_t d):
    """Return the confidence radius that depends on det V, see ff_radius. With arms, pass d = 1, and
    as log_det the logarithm of the largest entry of V."""
    cdef ff_radius radius
    radius.arms = 0
    radius.multiplier, radius.scale, radius.base = multiplier, scale, base
    radius.anchor = anchor
    return ff_determinant_radius(&radius, offset, inflation,
                                 ff_log_inflation(&radius, inflation), log_det, d)
