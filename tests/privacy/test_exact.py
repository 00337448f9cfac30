"""Tests of exact draws and exact releases.

They compare enclosures of draws with mpmath, test the distributions, and check rounding and
decisions. Each statistical test has a false-alarm probability below 10^-6.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fastfed
from fastfed import _sampling
from fastfed._random import SystemNoise
from fastfed._sampling import ERROR, Laplaces, Normals, Uniforms
from fastfed.bandits.problem import ProblemSpec
from fastfed.privacy import centred_sensitivity, exact
from fastfed.privacy.releases.buffered import buffered_coefficients
from fastfed.privacy.releases.prefix_sums import (
    honaker_coefficients,
    node_number,
    toeplitz_coefficients,
)
from fastfed.privacy.sensitivity import layout_stds, user_sensitivity
from fastfed.protocols.plan import Clip, NoiseStd
from fastfed.protocols.release import ExactAdder, fixed_point, make_adder, spread
from fastfed.simulation.systems import ALGORITHMS

FALSE_ALARM = 1e-6
REPEAT = settings(max_examples=150, deadline=None, derandomize=True)


class Stream:
    """A source of random bytes that depend on a seed; the first words may be given."""

    def __init__(self, seed: int, words: list[int] = []) -> None:  # noqa: B006
        self.seed, self.at = seed, 0
        self.first = b"".join(int(w).to_bytes(8, "little") for w in words)

    def __call__(self, count: int) -> bytes:
        """Return the next bytes: those of the given words first, then bytes of a hash."""
        first_bytes, self.first = self.first[:count], self.first[count:]
        self.at += 1
        return first_bytes + hashlib.shake_128(f"{self.seed} {self.at}".encode()).digest(
            count - len(first_bytes)
        )


WORD = st.one_of(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**45),
    st.integers(0, 2**45).map(lambda a: 2**64 - 1 - a),
    st.integers(0, 63).map(lambda a: 2**a),
    st.just(0),
)


def uniform_midpoint(draws, index, bits=400):
    """Return the midpoint of the interval that a long prefix leaves for a uniform."""
    a, n = draws._uniforms.prefix(index, bits)
    return mpmath.mpf(2 * a + 1) / mpmath.mpf(2) ** (n + 1)


def is_within(interval, value):
    """Return whether the value lies in the interval."""
    low, high = (mpmath.mpf(x.numerator) / x.denominator for x in interval)
    return low <= value <= high


@REPEAT
@given(WORD, WORD, st.integers(0, 2**32), st.sampled_from([8, 44, 64, 150]))
def test_intervals_of_normals_contain_the_exact_draw(radius, turn, seed, bits):
    with mpmath.workdps(160):
        draws = Normals(2, Stream(seed, [radius, turn]))
        for i, wave in enumerate((mpmath.cos, mpmath.sin)):
            interval = draws.interval(i, bits)
            u, w = uniform_midpoint(draws, 0), uniform_midpoint(draws, 1)
            z = mpmath.sqrt(-2 * mpmath.log(u)) * wave(2 * mpmath.pi * w)
            assert interval[1] - interval[0] <= Fraction(1, 2**bits)
            assert is_within(interval, z)
            assert abs(mpmath.mpf(float(draws.values[i])) - z) <= ERROR


@REPEAT
@given(WORD, st.integers(0, 2**32), st.sampled_from([8, 44, 64, 150]))
def test_intervals_of_laplace_draws_contain_the_exact_draw(word, seed, bits):
    with mpmath.workdps(160):
        draws = Laplaces(1, Stream(seed, [word]))
        interval = draws.interval(0, bits)
        a, n = draws._uniforms.prefix(0, 400)
        positive, bits_of_size = a >> (n - 1), a & ((1 << (n - 1)) - 1)
        size = -mpmath.log(mpmath.mpf(2 * bits_of_size + 1) / mpmath.mpf(2) ** n)
        z = size if positive else -size
        assert interval[1] - interval[0] <= Fraction(1, 2**bits)
        assert is_within(interval, z)
        assert abs(mpmath.mpf(float(draws.values[0])) - z) <= ERROR


def test_pi_sine_and_cosine_have_the_requested_digits():
    with mpmath.workdps(120):
        for digits in (20, 60, 100):
            assert abs(mpmath.mpf(str(_sampling._pi(digits))) - mpmath.pi) < 10 ** (1 - digits)
        for turn in range(16):
            with _sampling.localcontext(_sampling._context(60)):
                sine = _sampling._sine(turn, 4, False, 60)
                cosine = _sampling._sine(turn, 4, True, 60)
            assert abs(mpmath.mpf(str(sine)) - mpmath.sin(mpmath.pi * turn / 8)) < 1e-55
            assert abs(mpmath.mpf(str(cosine)) - mpmath.cos(mpmath.pi * turn / 8)) < 1e-55


def test_a_prefix_keeps_its_bits_when_extended():
    draws = Uniforms(3, Stream(1))
    prefixes = [draws.prefix(1, bits) for bits in (64, 100, 200, 64)]
    a, n = prefixes[2]
    for b, m in prefixes:
        assert a >> (n - m) == b if m <= n else a == b >> (m - n)
    assert prefixes[3] == prefixes[2]


# ---- distributions -------------------------------------------------------------------------------


def test_normals_have_the_normal_distribution():
    draws = Normals(2_000_001, Stream(5)).values
    assert stats.kstest(draws, stats.norm.cdf).pvalue > FALSE_ALARM
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((draws**power).mean() - mean) < 5 * math.sqrt(variance / len(draws)), power
    pairs = draws[:-1].reshape(2, -1)
    assert abs(np.corrcoef(pairs)[0, 1]) < 5 / math.sqrt(pairs.shape[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "distribution", "even"),
    [(Normals, stats.norm, (1, 3, 15, 105)), (Laplaces, stats.laplace, (2, 24, 720, 40320))],
)
def test_a_hundred_million_draws_have_their_distribution(kind, distribution, even):
    """Test draws from the operating system.

    The tests are chi-square of 1000 equally likely cells, the largest distance of the distribution
    functions at their edges, four moments, and the tails that occur. ``even`` holds the moments of
    orders 2, 4, 6 and 8.
    """
    cells, blocks, size = 1000, 100, 10**6
    edges = distribution.ppf(np.arange(1, cells) / cells)
    tail_points = np.array([4.0, 4.5, 5.0, 5.5, 6.0])
    counts, powers, tail_counts = np.zeros(cells), np.zeros(5), np.zeros((2, len(tail_points)))
    for _ in range(blocks):
        z = kind(size).values
        order = np.sort(z)
        counts += np.diff(np.searchsorted(order, edges), prepend=0, append=size)
        power = np.ones(size)
        for k in range(1, 5):
            power *= z
            powers[k] += power.sum()
        tail_counts += [
            size - np.searchsorted(order, tail_points, "right"),
            np.searchsorted(order, -tail_points),
        ]
    n = blocks * size
    chi = stats.chisquare(counts)
    distance = np.abs(np.cumsum(counts)[:-1] / n - np.arange(1, cells) / cells).max()
    scores = []
    for k in range(1, 5):
        mean, square = (0 if k % 2 else even[k // 2 - 1]), even[k - 1]
        scores.append((powers[k] / n - mean) / math.sqrt((square - mean**2) / n))
    tails = [stats.binomtest(int(c), n, distribution.sf(t)).pvalue for row in tail_counts
             for c, t in zip(row, tail_points, strict=True)]  # fmt: skip
    print(
        f"{kind.__name__}: {n:.0e} draws, chi-square {chi.statistic:.1f} of {cells - 1} (p "
        f"{chi.pvalue:.3f}), distance {distance * math.sqrt(n):.3f} / sqrt n, moments "
        f"{' '.join(f'{s:+.2f}' for s in scores)} standard errors, tails p >= {min(tails):.3f}"
    )
    assert chi.pvalue > FALSE_ALARM and min(tails) > FALSE_ALARM
    # Kolmogorov: the distance exceeds 2.7 / sqrt n once in 10^6.
    assert distance < 2.7 / math.sqrt(n)
    assert np.abs(scores).max() < 5.0


def test_laplace_draws_have_the_laplace_distribution():
    draws = Laplaces(500_000, Stream(6)).values
    assert stats.kstest(draws, stats.laplace.cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize("zeros", [60, 100, 200, 400])
def test_tails_of_normals_extend_beyond_53_bits(zeros):
    """Use uniforms that begin with many zeros; the radius must have its conditional
    distribution."""
    radii = []
    for seed in range(200):
        zero_words = [0] * (zeros // 64)
        bits = int.from_bytes(Stream(seed)(8), "little") >> (zeros % 64)
        draws = Normals(2, LongRadius(seed, [*zero_words, bits]))
        low, high = draws.interval(0, 60)
        second_interval = draws.interval(1, 60)
        radii.append(math.hypot(float(low + high) / 2, float(sum(second_interval)) / 2))
    assert min(radii) > math.sqrt(2 * zeros * math.log(2)) - 1e-9
    # u = 2^-zeros v, v uniform: r^2 / 2 = zeros ln 2 + Exp(1).
    excess = np.array(radii) ** 2 / 2 - zeros * math.log(2)
    assert stats.kstest(excess, stats.expon.cdf).pvalue > FALSE_ALARM


class LongRadius(Stream):
    """A stream in which the radius begins with given words; all other bits are random.

    The first call requests a word for the radius and for the turn. Later calls extend them
    alternately, first the radius.
    """

    def __init__(self, seed: int, radius: list[int]) -> None:
        super().__init__(seed + 1000)
        self.radius, self.calls = radius, 0

    def __call__(self, count: int) -> bytes:
        """Return the next bytes, in which the given words replace those of the radius."""
        random_bytes = super().__call__(count)
        self.calls += 1
        if self.calls == 1:
            return self.radius[0].to_bytes(8, "little") + random_bytes[8:]
        word_index = self.calls // 2
        if self.calls % 2 == 0 and word_index < len(self.radius):
            assert count == 8
            return self.radius[word_index].to_bytes(8, "big")
        return random_bytes


# ---- releases ------------------------------------------------------------------------------------


def quantised(values, unit):
    """Return the values in multiples of the unit."""
    return exact.quantise(np.asarray(values, float), unit)


@REPEAT
@given(st.integers(0, 2**32), st.floats(1e-6, 1e6), st.floats(-1e6, 1e6))
def test_a_release_is_the_exact_sum_rounded_to_the_grid(seed, std, value):
    draws = Normals(6, Stream(seed))
    values, stds = np.full(6, value), np.full(6, std)
    released = exact.add_normals(values, stds, draws)
    grid = Fraction(float(exact.grid_of(stds)[0]))
    assert std * 2.0**-15 < grid <= std * 2.0**-14
    for i, released_value in enumerate(released):
        low, high = ((Fraction(value) + Fraction(std) * z) / grid for z in draws.interval(i, 100))
        # Beyond 2^53 steps the multiple is itself rounded to float64.
        assert float(math.floor(low + Fraction(1, 2)) * grid) == released_value
        assert float(math.floor(high + Fraction(1, 2)) * grid) == released_value


def test_released_values_are_multiples_of_one_grid_for_every_record():
    """Check that low bits of the multiples reveal nothing."""
    std = np.full(3000, 7.3)
    for value in (0.0, 1 / 3, math.pi, 1e3 + 2.0**-30):
        released = exact.add_normals(np.full(3000, value), std, Normals(3000))
        steps = released / exact.grid_of(std)
        assert (steps == np.rint(steps)).all()
        # Parity and the next bits do not depend on the value.
        for modulus in (2, 16):
            counts = np.bincount(steps.astype(np.int64) % modulus, minlength=modulus)
            assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_released_zeros_are_positive():
    std = np.full(200_000, 1.0)
    for value in (0.0, -0.0, 2.0**-20, -(2.0**-20)):
        # Use a fixed stream: with fresh draws, no zero occurred among 200 000 draws in some runs.
        released = exact.add_normals(np.full(len(std), value), std, Normals(len(std), Stream(7)))
        zeros = released[released == 0.0]
        assert len(zeros) and not np.signbit(zeros).any()


def test_more_bits_decide_a_doubtful_rounding():
    """Use values so close to the midpoint of two grid points that 64 bits do not decide."""
    draws = Normals(2, Stream(3))
    std = np.ones(2)
    grid = Fraction(float(exact.grid_of(std)[0]))
    low, high = draws.interval(0, 200)
    z = (low + high) / 2
    half = (math.floor(z / grid) + Fraction(1, 2)) * grid
    released = set()
    for offset in (-(2.0**-60), 2.0**-60):
        # x + z has this distance from the midpoint of two grid points.
        refine = lambda entry, bits, a=offset: tuple(  # noqa: E731
            end - z + half + Fraction(a) for end in draws.interval(entry, bits)
        )
        near = np.array([float(half), 0.0])
        released.add(float(exact.noisy(np.zeros(2), std, near, ERROR, refine)[0]))
    assert released == {float(half - grid / 2), float(half + grid / 2)}


def plan_of(release="tree", protocol="silo-ldp", horizon=12, dimension=3):
    """Return the plan of a small private system."""
    return fastfed.make_system(
        "private-fedlinucb", silos=2, horizon=horizon, dimension=dimension, batch_size=1,
        protocol=protocol, release=release, epsilon=1.0, delta=1e-6,
    ).plan  # fmt: skip


@pytest.mark.parametrize("release", ["honaker", "toeplitz", "factorised", "buffered"])
def test_a_prefix_is_the_exact_combination_of_its_draws(release):
    """Compare with dense factors: every prefix is the rounded exact sum."""
    plan = plan_of(release)
    adder = make_adder(plan, SystemNoise(), 0, plan.noise_std)
    assert isinstance(adder, ExactAdder)
    size, k = plan.statistic_size, plan.releases
    total = np.zeros(size)
    for step in range(1, k + 1):
        total = total + quantised(np.full(size, 0.37 * step), adder.unit)
        terms = adder._prefixes.terms(step)
        count, sizes = adder._prefixes.size(step)
        assert count >= len(terms) and 0 <= sizes - float(sum(terms.values())) < 1e-9
        released = adder.prefix(total, step)
        if release == "toeplitz":
            f = toeplitz_coefficients(k)
            coefficients = {j: f[step - j] for j in range(1, step + 1)}
        elif release == "buffered":
            b = buffered_coefficients(k)
            coefficients = {j: b[step - j] for j in range(1, step + 1)}
        elif release == "factorised":
            row = plan.factor.matrix[step - 1]
            coefficients = {j: row[j - 1] for j in range(1, step + 1)}
            assert all(Fraction(float(row[j - 1])) == terms[j] for j in terms)
        else:
            coefficients = {node_number(*node): c for node, c in honaker_coefficients(step).items()}
        assert terms.keys() == coefficients.keys()
        for number, c in terms.items():
            assert float(c) == pytest.approx(coefficients[number], rel=1e-14)
        for j in range(size):
            z = sum(
                c * sum(adder._draw_cache[number].interval(j, 120)) / 2
                for number, c in terms.items()
            )
            grid = Fraction(float(exact.grid_of(adder._std)[j]))
            real = Fraction(float(total[j])) + Fraction(float(adder._std[j])) * z
            assert Fraction(float(released[j])) == math.floor(real / grid + Fraction(1, 2)) * grid


def centred_plan(centre=0.5, **keys):
    """Return the plan of a system with centred rewards."""
    spec = ProblemSpec(silos=2, horizon=12, dimension=3, intercept=3.0)
    all_keys = {"batch_size": 1, "epsilon": 1.0, "delta": 1e-6, "reward_centre": centre, **keys}
    return ALGORITHMS.choose("private-fedlinucb").make(all_keys, spec).plan


@pytest.mark.parametrize("protocol", ["silo-ldp", "silo-ldp-prefix", "central"])
@pytest.mark.parametrize("release", ["tree", "factorised"])
def test_a_public_constant_is_released_without_noise(protocol, release):
    """Check the entries of deployed sums.

    The entry of the constant c with itself is c^2 times the number of rows; all others are noisy.
    """
    if protocol == "silo-ldp-prefix" and release != "tree":
        return
    plan = centred_plan(protocol=protocol, release=release)
    silos = [fastfed.parties.Silo(plan, i) for i in range(2)]
    server = fastfed.parties.Server(plan)
    c = plan.clip.constant
    totals = []
    for round in range(1, plan.horizon + 1):
        for silo in silos:
            silo.select(np.array([[0.3, 0.2, c], [0.1, 0.6, c]]))
            silo.observe(1.0)
        broadcast = server.combine([silo.report() for silo in silos])
        for silo in silos:
            silo.receive(broadcast)
        total = np.asarray(broadcast.values)
        assert total[-1] == pytest.approx(2 * round * c * c, abs=2 * round * 2.0**-40)
        assert total[-1] == 2 * round * exact.quantise(np.array([c * c]), fixed_point(plan)[0])[0]
        totals.append(total)
    # On a grid of 2^-11, two of about 96 noisy numbers are equal in one run of thirty.
    noise = np.array(totals)[:, :-1]
    assert len(np.unique(noise)) >= noise.size - 4


@pytest.mark.parametrize("centre", [0.5, 0.9])
@pytest.mark.parametrize("layout", ["iid", "goe1", "goe2"])
@pytest.mark.parametrize("ratio", [0.05, 1.0, 20.0])
def test_noise_factor_covers_rounding_of_centred_records(centre, layout, ratio):
    """Use enough records to make rounding visible; check random and extreme pairs."""
    plan = centred_plan(centre)
    unit, factor = fixed_point(plan, 2**40)
    d, c = plan.dimension, plan.clip.constant
    std = spread(NoiseStd(1.0, *layout_stds(layout, ratio)), d)[:-1]
    low, high = plan.clip.centred
    sensitivity = centred_sensitivity(
        "replace", layout, 3.0, (low, high), covariance_std=ratio, bias_std=1.0
    )
    # A lower bound of D for every layout; the first term of the factor depends on it.
    assert sensitivity >= (1.0 - 1e-12) / (2.0 * math.sqrt(2.0) * std.min())
    rounding_change = 2.0 * math.sqrt(len(std) + 1) * 0.5 * unit / std.min()
    assert (factor - 1.0) * sensitivity >= rounding_change
    rng = np.random.default_rng(7)
    max_change = 0.0
    for _ in range(2000):
        z = rng.normal(size=(2, d - 1))
        z *= math.sqrt(0.5) / np.linalg.norm(z, axis=1, keepdims=True)
        if rng.random() < 0.5:
            z[1] = -z[0]
        points = []
        for row, y in zip(z, rng.choice([low, high], size=2), strict=True):
            x = np.append(row, c)
            statistic = np.concatenate([x * y, np.outer(x, x)[np.tril_indices(d)]])
            points.append(exact.quantise(statistic, unit)[:-1])
        max_change = max(max_change, float(np.linalg.norm((points[0] - points[1]) / std)))
    assert max_change <= sensitivity * factor


def test_a_failed_report_can_be_repeated_and_counts_the_batch_once(monkeypatch):
    for release in ("tree", "honaker", "toeplitz", "factorised"):
        plan = plan_of(release)
        silo = fastfed.parties.Silo(plan, 0)
        sums = []
        monkeypatch.setattr(
            exact, "noisy", lambda v, std, n, e, r, kept=sums: kept.append(v.copy()) or fail()
        )
        for _ in range(2):
            if not silo.due:
                silo.select(np.eye(3))
                silo.observe(0.5)
            with pytest.raises(MemoryError):
                silo.report()
        monkeypatch.undo()
        assert (sums[0] == sums[1]).all()
        first = silo.report()
        assert first.release == 1


def fail():
    """Raise MemoryError."""
    raise MemoryError


# ---- sensitivity of fixed point ------------------------------------------------------------------


def test_sums_in_fixed_point_are_exact_in_any_order():
    """Compare with exact fractions and with the reverse order."""
    rng = np.random.default_rng(2)
    unit = exact.quantum(5000)
    points = exact.quantise(rng.uniform(-1, 1, size=(5000, 4)), unit)
    forward = np.zeros(4)
    for p in points:
        forward += p
    backward = np.zeros(4)
    for p in points[::-1]:
        backward += p
    assert (forward == backward).all()
    exact_sums = [sum((Fraction(float(v)) for v in column), Fraction(0)) for column in points.T]
    assert [Fraction(float(v)) for v in forward] == exact_sums
    # The largest possible sum is exact, too.
    assert 5000.0 + unit - 5000.0 == unit and exact.quantum(5000) >= 5000 * 2.0**-53


@pytest.mark.parametrize("layout", ["iid", "goe1", "goe2"])
@pytest.mark.parametrize("ratio", [0.05, 0.7, 1.0, 20.0])
def test_noise_factor_covers_rounding_of_records(layout, ratio):
    """Check random and extreme pairs with a coarse unit, where rounding is visible."""
    rng = np.random.default_rng(7)
    d = 3
    size = d + d * (d + 1) // 2
    std = spread(NoiseStd(1.0, *layout_stds(layout, ratio)), d)
    sensitivity = user_sensitivity("replace", layout, bias_std=1.0, cov_std=ratio)
    lower = np.tril_indices(d)
    unit = 2.0**-6
    factor = exact.inflation(unit, size, d)
    max_change = 0.0
    for _ in range(4000):
        x = rng.normal(size=(2, d))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        if rng.random() < 0.5:
            x[1] = -x[0]
        y = rng.choice([-1.0, 1.0], size=2)
        points = [
            exact.quantise(np.concatenate([v * w, np.outer(v, v)[lower]]), unit)
            for v, w in zip(x, y, strict=True)
        ]
        max_change = max(max_change, float(np.linalg.norm((points[0] - points[1]) / std)))
    assert max_change <= sensitivity * factor
    assert factor - 1.0 < 1e-9 or unit == 2.0**-6


@pytest.mark.parametrize(("feature", "reward"), [(1.0, 0.02), (0.05, 1.0), (3.0, 10.0)])
def test_unit_and_noise_factor_follow_the_bounds_of_the_records(feature, reward):
    """Check for several bounds that sums are exact and that the factor covers rounding."""
    plan = dataclasses.replace(plan_of(), clip=Clip(feature, -reward, reward))
    rng, d, layout = np.random.default_rng(8), plan.dimension, "goe2"
    largest = max(feature * reward, feature**2)
    unit, _ = fixed_point(plan, 1000)
    assert 1000 * largest / unit < 2.0**53 and math.frexp(unit)[0] == 0.5
    # Use enough records to make rounding visible.
    unit, factor = fixed_point(plan, 2**40)
    cov = 0.7 * feature**2
    bias = feature * reward
    std = spread(NoiseStd(bias, *layout_stds(layout, cov)), d)
    sensitivity = user_sensitivity(
        "replace", layout, bias_std=bias / (feature * reward), cov_std=0.7
    )
    max_change = 0.0
    for _ in range(2000):
        x = rng.normal(size=(2, d))
        x *= feature / np.linalg.norm(x, axis=1, keepdims=True)
        y = reward * rng.choice([-1.0, 1.0], size=2)
        points = [
            exact.quantise(np.concatenate([v * w, np.outer(v, v)[np.tril_indices(d)]]), unit)
            for v, w in zip(x, y, strict=True)
        ]
        max_change = max(max_change, float(np.linalg.norm((points[0] - points[1]) / std)))
    assert max_change <= sensitivity * factor


def test_schedule_and_sums_use_the_same_noise_factor():
    system = fastfed.make_system(
        "feducb", silos=3, horizon=200, dimension=2, epsilon=1.0, delta=1e-6,
        schedule="private-determinant",
    )  # fmt: skip
    silo = fastfed.parties.Silo(system.plan, 0)
    unit, factor = fixed_point(system.plan)
    assert silo.trigger is not None and silo.trigger._unit == unit
    assert silo.trigger._std.max() == max(system.plan.trigger.std) * factor


def test_noise_of_subnormal_size_has_a_grid():
    for std in (5e-324, 1e-320, 1e-310):
        assert (
            fastfed.privacy.TreeRelease(2, 4, noise_std=std).add([0.5, -0.25]) == [0.5, -0.25]
        ).all()


# ---- decisions -----------------------------------------------------------------------------------


def test_choices_with_tiny_weights_are_exact():
    """Check that a uniform with 640 leading zeros is below e^-400 and one with 512 is not."""
    for zeros, expected in ((80, 0), (64, 1)):
        zero_words = iter([b"\0" * 8] * (zeros // 8))
        draw = Uniforms(1, lambda n, zero_words=zero_words: b"".join(next(zero_words, b"\xa5" * 8)
                                                          for _ in range(n // 8)))  # fmt: skip
        choice = exact.choose(np.array([400.0, 0.0, 1e300]), 1.0, np.array([1, 1, 1]), draw)
        assert choice == (expected, 0)
    # These weights would need 10^11 digits.
    deep = np.array([1e9, 0.0, 2e9])
    counts = np.array([1, 2**40, 3])
    assert exact._choose_exactly(deep, 500.0, counts, Uniforms(1, Stream(1)), 0)[0] == 1


def test_choices_have_their_probabilities():
    costs, counts, rate = np.array([3.0, 0.0, 1.0, 7.0]), np.array([2, 1, 3, 0]), 0.7
    weights = np.exp(-rate * costs) * counts
    n = 40_000
    draw = Uniforms(n, Stream(11))
    counts_found = np.zeros((4, 3))
    for i in range(n):
        choice, position = exact.choose(costs, rate, counts, draw, i)
        counts_found[choice, position] += 1
    assert counts_found[3].sum() == 0
    probabilities = np.repeat(weights / counts.clip(1), 3).reshape(4, 3)
    probabilities[np.arange(3)[None] >= counts[:, None]] = 0
    is_possible = probabilities > 0
    expected = probabilities[is_possible] / weights.sum() * n
    assert stats.chisquare(counts_found[is_possible], expected).pvalue > FALSE_ALARM


def test_a_choice_next_to_a_threshold_is_exact():
    """Use uniforms of 320 bits next to the edge e^-1 / (1 + e^-1) of the cdf."""
    with mpmath.workdps(120):
        edge = mpmath.e**-1 / (1 + mpmath.e**-1)
        start = int(mpmath.floor(edge * 2**320))
    for step, expected in ((-1, 0), (1, 1)):
        a = start + step
        words = [a >> 256]
        draw = Uniforms(1, Stream(0, words))
        draw._extended[0] = a, 320
        assert exact.choose(np.array([1.0, 0.0]), 1.0, np.ones(2, np.int64), draw)[0] == expected


@REPEAT
@given(st.integers(0, 2**32), st.integers(1, 30))
def test_least_returns_the_smallest_exact_noisy_score(seed, n):
    values = np.random.default_rng(seed).integers(0, 5, size=n) / 4.0
    draws = Laplaces(n, Stream(seed))
    index = exact.least(values, 0.3, draws)
    sums = [
        Fraction(float(v)) + Fraction(0.3) * sum(draws.interval(i, 150)) / 2
        for i, v in enumerate(values)
    ]
    assert index == min(range(n), key=sums.__getitem__)


@REPEAT
@given(st.integers(0, 2**32), st.floats(-5, 5))
def test_above_compares_exact_noisy_values(seed, value):
    noise, threshold = Laplaces(1, Stream(seed)), Laplaces(1, Stream(seed + 1))
    is_above = exact.above(value, 2.0, noise, 1.0, 3.0, threshold)
    middle = [sum(d.interval(0, 150)) / 2 for d in (noise, threshold)]
    assert is_above == (Fraction(value) - 1 + 2 * middle[0] - 3 * middle[1] > 0)


def test_above_decides_comparisons_that_float64_cannot():
    noise, threshold = Laplaces(1, Stream(4)), Laplaces(1, Stream(5))
    low, high = noise.interval(0, 120)
    start = float(-(low + high) / 2)  # value + Z is within 2^-53 of 0
    tiny = Laplaces(1, Stream(5))
    is_above = exact.above(start, 1.0, noise, 0.0, 1e-300, tiny)
    assert is_above == (Fraction(start) + (low + high) / 2 > 0)
    assert threshold.values[0] == tiny.values[0]


# ---- objects that act once -----------------------------------------------------------------------


def test_deployed_certificate_is_exact_and_refuses_a_tiny_delta():
    system = fastfed.make_system(
        "private-fedlinucb", silos=2, horizon=20, dimension=3, batch_size=5, epsilon=1.0,
        delta=1e-6,
    )  # fmt: skip
    text = str(system.deployed_certificate)
    assert "released values are exact" in text and "float64" not in text
    assert system.deployed_certificate.status == "proven"
    assert "float64" in str(system.certificate)
    tiny = fastfed.make_system(
        "private-fedlinucb", silos=2, horizon=20, dimension=3, batch_size=5, epsilon=1.0,
        delta=1e-40,
    )  # fmt: skip
    with pytest.raises(fastfed.InputError, match=r"delta must be at least 7.89e-31 in a deploy"):
        tiny.deployed_certificate  # noqa: B018


def test_a_server_with_system_noise_needs_reports_in_fixed_point():
    plan = plan_of(protocol="central")
    server = fastfed.parties.Server(plan)
    silos = [fastfed.parties.Silo(plan, i, fastfed.parties.SeededNoise(1)) for i in range(2)]
    for silo in silos:
        silo.select(np.full((2, 3), 1 / 3))
        silo.observe(1 / 3)
    with pytest.raises(fastfed.InputError, match="must be in fixed point, multiples of 2\\^-47"):
        server.combine([silo.report() for silo in silos])
    assert server.release == 0
