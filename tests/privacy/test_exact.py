"""Ideal draws and exact releases: enclosures against mpmath, laws, roundings, decisions.

False alarms of the statistical tests: below 10^-6 each.
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

ALARM = 1e-6
REPEAT = settings(max_examples=150, deadline=None, derandomize=True)


class Stream:
    """Random bytes that are a function of a seed; the first words may be given."""

    def __init__(self, seed: int, words: list[int] = []) -> None:  # noqa: B006
        self.seed, self.at = seed, 0
        self.first = b"".join(int(w).to_bytes(8, "little") for w in words)

    def __call__(self, count: int) -> bytes:
        made, self.first = self.first[:count], self.first[count:]
        self.at += 1
        return made + hashlib.shake_128(f"{self.seed} {self.at}".encode()).digest(count - len(made))


WORD = st.one_of(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**45),
    st.integers(0, 2**45).map(lambda a: 2**64 - 1 - a),
    st.integers(0, 63).map(lambda a: 2**a),
    st.just(0),
)


def uniform(draws, index, bits=400):
    """The middle of what a long prefix of a uniform leaves."""
    a, n = draws._uniforms.prefix(index, bits)
    return mpmath.mpf(2 * a + 1) / mpmath.mpf(2) ** (n + 1)


def within(interval, value):
    low, high = (mpmath.mpf(x.numerator) / x.denominator for x in interval)
    return low <= value <= high


@REPEAT
@given(WORD, WORD, st.integers(0, 2**32), st.sampled_from([8, 44, 64, 150]))
def test_normals_are_enclosed(radius, turn, seed, bits):
    with mpmath.workdps(160):
        draws = Normals(2, Stream(seed, [radius, turn]))
        for i, wave in enumerate((mpmath.cos, mpmath.sin)):
            found = draws.interval(i, bits)
            u, w = uniform(draws, 0), uniform(draws, 1)
            z = mpmath.sqrt(-2 * mpmath.log(u)) * wave(2 * mpmath.pi * w)
            assert found[1] - found[0] <= Fraction(1, 2**bits)
            assert within(found, z)
            assert abs(mpmath.mpf(float(draws.values[i])) - z) <= ERROR


@REPEAT
@given(WORD, st.integers(0, 2**32), st.sampled_from([8, 44, 64, 150]))
def test_laplace_draws_are_enclosed(word, seed, bits):
    with mpmath.workdps(160):
        draws = Laplaces(1, Stream(seed, [word]))
        found = draws.interval(0, bits)
        a, n = draws._uniforms.prefix(0, 400)
        positive, rest = a >> (n - 1), a & ((1 << (n - 1)) - 1)
        size = -mpmath.log(mpmath.mpf(2 * rest + 1) / mpmath.mpf(2) ** n)
        z = size if positive else -size
        assert found[1] - found[0] <= Fraction(1, 2**bits)
        assert within(found, z)
        assert abs(mpmath.mpf(float(draws.values[0])) - z) <= ERROR


def test_pi_and_the_quarters_of_a_turn():
    with mpmath.workdps(120):
        for digits in (20, 60, 100):
            assert abs(mpmath.mpf(str(_sampling._pi(digits))) - mpmath.pi) < 10 ** (1 - digits)
        for turn in range(16):
            with _sampling.localcontext(_sampling._context(60)):
                sine = _sampling._sine(turn, 4, False, 60)
                cosine = _sampling._sine(turn, 4, True, 60)
            assert abs(mpmath.mpf(str(sine)) - mpmath.sin(mpmath.pi * turn / 8)) < 1e-55
            assert abs(mpmath.mpf(str(cosine)) - mpmath.cos(mpmath.pi * turn / 8)) < 1e-55


def test_bits_once_drawn_stay():
    draws = Uniforms(3, Stream(1))
    first = [draws.prefix(1, bits) for bits in (64, 100, 200, 64)]
    a, n = first[2]
    for b, m in first:
        assert a >> (n - m) == b if m <= n else a == b >> (m - n)
    assert first[3] == first[2]


# ---- the law -------------------------------------------------------------------------------------


def test_normals_have_the_law():
    draws = Normals(2_000_001, Stream(5)).values
    assert stats.kstest(draws, stats.norm.cdf).pvalue > ALARM
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((draws**power).mean() - mean) < 5 * math.sqrt(variance / len(draws)), power
    pairs = draws[:-1].reshape(2, -1)
    assert abs(np.corrcoef(pairs)[0, 1]) < 5 / math.sqrt(pairs.shape[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "law", "even"),
    [(Normals, stats.norm, (1, 3, 15, 105)), (Laplaces, stats.laplace, (2, 24, 720, 40320))],
)
def test_a_hundred_million_draws_have_the_law(kind, law, even):
    """From the operating system: chi-square of 1 000 equally likely cells, the largest distance of
    the distribution functions at their edges, four moments (``even``: of orders 2, 4, 6, 8), and
    the tails that come up."""
    cells, blocks, size = 1000, 100, 10**6
    edges = law.ppf(np.arange(1, cells) / cells)
    far = np.array([4.0, 4.5, 5.0, 5.5, 6.0])
    counts, powers, beyond = np.zeros(cells), np.zeros(5), np.zeros((2, len(far)))
    for _ in range(blocks):
        z = kind(size).values
        order = np.sort(z)
        counts += np.diff(np.searchsorted(order, edges), prepend=0, append=size)
        power = np.ones(size)
        for k in range(1, 5):
            power *= z
            powers[k] += power.sum()
        beyond += [size - np.searchsorted(order, far, "right"), np.searchsorted(order, -far)]
    n = blocks * size
    chi = stats.chisquare(counts)
    distance = np.abs(np.cumsum(counts)[:-1] / n - np.arange(1, cells) / cells).max()
    scores = []
    for k in range(1, 5):
        mean, square = (0 if k % 2 else even[k // 2 - 1]), even[k - 1]
        scores.append((powers[k] / n - mean) / math.sqrt((square - mean**2) / n))
    tails = [stats.binomtest(int(c), n, law.sf(t)).pvalue for row in beyond
             for c, t in zip(row, far, strict=True)]  # fmt: skip
    print(
        f"{kind.__name__}: {n:.0e} draws, chi-square {chi.statistic:.1f} of {cells - 1} (p "
        f"{chi.pvalue:.3f}), distance {distance * math.sqrt(n):.3f} / sqrt n, moments "
        f"{' '.join(f'{s:+.2f}' for s in scores)} standard errors, tails p >= {min(tails):.3f}"
    )
    assert chi.pvalue > ALARM and min(tails) > ALARM
    # Kolmogorov: beyond 2.7 / sqrt n once in 10^6.
    assert distance < 2.7 / math.sqrt(n)
    assert np.abs(scores).max() < 5.0


def test_laplace_draws_have_the_law():
    draws = Laplaces(500_000, Stream(6)).values
    assert stats.kstest(draws, stats.laplace.cdf).pvalue > ALARM


@pytest.mark.parametrize("zeros", [60, 100, 200, 400])
def test_tails_go_on_beyond_what_53_bits_reach(zeros):
    """Of uniforms that begin with so many zeros the radius has the law that is left of it."""
    radii = []
    for seed in range(200):
        head = [0] * (zeros // 64)
        bits = int.from_bytes(Stream(seed)(8), "little") >> (zeros % 64)
        draws = Normals(2, _Long(seed, [*head, bits]))
        low, high = draws.interval(0, 60)
        other = draws.interval(1, 60)
        radii.append(math.hypot(float(low + high) / 2, float(sum(other)) / 2))
    assert min(radii) > math.sqrt(2 * zeros * math.log(2)) - 1e-9
    # u = 2^-zeros v, v uniform: r^2 / 2 = zeros ln 2 + Exp(1).
    excess = np.array(radii) ** 2 / 2 - zeros * math.log(2)
    assert stats.kstest(excess, stats.expon.cdf).pvalue > ALARM


class _Long(Stream):
    """The radius begins with these words; the turn, and the rest of the radius, are random.

    The first call asks for a word of each; extensions come in turns, the radius's first.
    """

    def __init__(self, seed: int, radius: list[int]) -> None:
        super().__init__(seed + 1000)
        self.radius, self.calls = radius, 0

    def __call__(self, count: int) -> bytes:
        made = super().__call__(count)
        self.calls += 1
        if self.calls == 1:
            return self.radius[0].to_bytes(8, "little") + made[8:]
        place = self.calls // 2
        if self.calls % 2 == 0 and place < len(self.radius):
            assert count == 8
            return self.radius[place].to_bytes(8, "big")
        return made


# ---- releases ------------------------------------------------------------------------------------


def fixed(values, unit):
    return exact.quantise(np.asarray(values, float), unit)


@REPEAT
@given(st.integers(0, 2**32), st.floats(1e-6, 1e6), st.floats(-1e6, 1e6))
def test_a_release_is_the_real_sum_rounded(seed, std, value):
    draws = Normals(6, Stream(seed))
    values, stds = np.full(6, value), np.full(6, std)
    released = exact.add_normals(values, stds, draws)
    grid = Fraction(float(exact.grid_of(stds)[0]))
    assert std * 2.0**-15 < grid <= std * 2.0**-14
    for i, found in enumerate(released):
        low, high = ((Fraction(value) + Fraction(std) * z) / grid for z in draws.interval(i, 100))
        # Beyond 2^53 steps the multiple itself is rounded to a float64.
        assert float(math.floor(low + Fraction(1, 2)) * grid) == found
        assert float(math.floor(high + Fraction(1, 2)) * grid) == found


def test_every_record_can_give_every_released_value():
    """Whatever the record, released values are the multiples of one grid."""
    std = np.full(3000, 7.3)
    for value in (0.0, 1 / 3, math.pi, 1e3 + 2.0**-30):
        released = exact.add_normals(np.full(3000, value), std, Normals(3000))
        steps = released / exact.grid_of(std)
        assert (steps == np.rint(steps)).all()
        # Parity and the next bits say nothing of the value.
        for modulus in (2, 16):
            counts = np.bincount(steps.astype(np.int64) % modulus, minlength=modulus)
            assert stats.chisquare(counts).pvalue > ALARM


def test_zeros_have_one_sign():
    std = np.full(200_000, 1.0)
    for value in (0.0, -0.0, 2.0**-20, -(2.0**-20)):
        # A stream of its own: of 200 000 fresh draws none was zero once in some dozens of runs.
        released = exact.add_normals(np.full(len(std), value), std, Normals(len(std), Stream(7)))
        zeros = released[released == 0.0]
        assert len(zeros) and not np.signbit(zeros).any()


def test_a_doubtful_rounding_is_settled_by_more_bits():
    """Values so near the middle of two grid points that 64 bits do not decide."""
    draws = Normals(2, Stream(3))
    std = np.ones(2)
    grid = Fraction(float(exact.grid_of(std)[0]))
    low, high = draws.interval(0, 200)
    z = (low + high) / 2
    half = (math.floor(z / grid) + Fraction(1, 2)) * grid
    seen = set()
    for away in (-(2.0**-60), 2.0**-60):
        # x + z is so far from the middle between two points.
        refine = lambda entry, bits, a=away: tuple(  # noqa: E731
            end - z + half + Fraction(a) for end in draws.interval(entry, bits)
        )
        near = np.array([float(half), 0.0])
        seen.add(float(exact.noisy(np.zeros(2), std, near, ERROR, refine)[0]))
    assert seen == {float(half - grid / 2), float(half + grid / 2)}


def plan_of(release="tree", protocol="silo-ldp", horizon=12, dimension=3):
    return fastfed.make_system(
        "private-fedlinucb", silos=2, horizon=horizon, dimension=dimension, batch_size=1,
        protocol=protocol, release=release, epsilon=1.0, delta=1e-6,
    ).plan  # fmt: skip


@pytest.mark.parametrize("release", ["honaker", "toeplitz", "factorised", "buffered"])
def test_a_prefix_is_the_combination_of_its_draws(release):
    """Against dense factors: every prefix is the rounded exact sum, whatever the driver's order."""
    plan = plan_of(release)
    adder = make_adder(plan, SystemNoise(), 0, plan.noise_std)
    assert isinstance(adder, ExactAdder)
    size, k = plan.statistic_size, plan.releases
    total = np.zeros(size)
    for step in range(1, k + 1):
        total = total + fixed(np.full(size, 0.37 * step), adder.unit)
        terms = adder._prefixes.terms(step)
        count, sizes = adder._prefixes.size(step)
        assert count >= len(terms) and 0 <= sizes - float(sum(terms.values())) < 1e-9
        released = adder.prefix(total, step)
        if release == "toeplitz":
            f = toeplitz_coefficients(k)
            wanted = {j: f[step - j] for j in range(1, step + 1)}
        elif release == "buffered":
            b = buffered_coefficients(k)
            wanted = {j: b[step - j] for j in range(1, step + 1)}
        elif release == "factorised":
            row = plan.factor.matrix[step - 1]
            wanted = {j: row[j - 1] for j in range(1, step + 1)}
            assert all(Fraction(float(row[j - 1])) == terms[j] for j in terms)
        else:
            wanted = {node_number(*node): c for node, c in honaker_coefficients(step).items()}
        assert terms.keys() == wanted.keys()
        for number, c in terms.items():
            assert float(c) == pytest.approx(wanted[number], rel=1e-14)
        for j in range(size):
            z = sum(
                c * sum(adder._draw_cache[number].interval(j, 120)) / 2
                for number, c in terms.items()
            )
            grid = Fraction(float(exact.grid_of(adder._std)[j]))
            real = Fraction(float(total[j])) + Fraction(float(adder._std[j])) * z
            assert Fraction(float(released[j])) == math.floor(real / grid + Fraction(1, 2)) * grid


def centred_plan(centre=0.5, **keys):
    spec = ProblemSpec(silos=2, horizon=12, dimension=3, intercept=3.0)
    table = {"batch_size": 1, "epsilon": 1.0, "delta": 1e-6, "reward_centre": centre, **keys}
    return ALGORITHMS.choose("private-fedlinucb").make(table, spec).plan


@pytest.mark.parametrize("protocol", ["silo-ldp", "silo-ldp-prefix", "central"])
@pytest.mark.parametrize("release", ["tree", "factorised"])
def test_a_public_constant_is_released_as_it_is(protocol, release):
    """The entry (c, c) of deployed sums is c^2 times the rows; every other entry is noisy."""
    if protocol == "silo-ldp-prefix" and release != "tree":
        return
    plan = centred_plan(protocol=protocol, release=release)
    silos = [fastfed.parties.Silo(plan, i) for i in range(2)]
    server = fastfed.parties.Server(plan)
    c = plan.clip.constant
    seen = []
    for round in range(1, plan.horizon + 1):
        for silo in silos:
            silo.select(np.array([[0.3, 0.2, c], [0.1, 0.6, c]]))
            silo.observe(1.0)
        answer = server.combine([silo.report() for silo in silos])
        for silo in silos:
            silo.receive(answer)
        total = np.asarray(answer.values)
        assert total[-1] == pytest.approx(2 * round * c * c, abs=2 * round * 2.0**-40)
        assert total[-1] == 2 * round * exact.quantise(np.array([c * c]), fixed_point(plan)[0])[0]
        seen.append(total)
    # On a grid of 2^-11 two of some 96 noisy numbers are equal by chance in one run of thirty.
    noise = np.array(seen)[:, :-1]
    assert len(np.unique(noise)) >= noise.size - 4


@pytest.mark.parametrize("centre", [0.5, 0.9])
@pytest.mark.parametrize("layout", ["iid", "goe1", "goe2"])
@pytest.mark.parametrize("ratio", [0.05, 1.0, 20.0])
def test_inflation_pays_for_rounded_centred_records(centre, layout, ratio):
    """With so many records that rounding shows: random and extreme pairs beside the constant."""
    plan = centred_plan(centre)
    unit, factor = fixed_point(plan, 2**40)
    d, c = plan.dimension, plan.clip.constant
    std = spread(NoiseStd(1.0, *layout_stds(layout, ratio)), d)[:-1]
    low, high = plan.clip.centred
    proven = centred_sensitivity(
        "replace", layout, 3.0, (low, high), covariance_std=ratio, bias_std=1.0
    )
    # What D is at least, in every layout: the first term of the factor rests on it.
    assert proven >= (1.0 - 1e-12) / (2.0 * math.sqrt(2.0) * std.min())
    moved = 2.0 * math.sqrt(len(std) + 1) * 0.5 * unit / std.min()
    assert (factor - 1.0) * proven >= moved
    rng = np.random.default_rng(7)
    worst = 0.0
    for _ in range(2000):
        z = rng.normal(size=(2, d - 1))
        z *= math.sqrt(0.5) / np.linalg.norm(z, axis=1, keepdims=True)
        if rng.random() < 0.5:
            z[1] = -z[0]
        points = []
        for row, y in zip(z, rng.choice([low, high], size=2), strict=True):
            x = np.append(row, c)
            whole = np.concatenate([x * y, np.outer(x, x)[np.tril_indices(d)]])
            points.append(exact.quantise(whole, unit)[:-1])
        worst = max(worst, float(np.linalg.norm((points[0] - points[1]) / std)))
    assert worst <= proven * factor


def test_a_report_that_fails_can_be_made_again_and_counts_the_batch_once(monkeypatch):
    for release in ("tree", "honaker", "toeplitz", "factorised"):
        plan = plan_of(release)
        silo = fastfed.parties.Silo(plan, 0)
        sums = []
        monkeypatch.setattr(
            exact, "noisy", lambda v, std, n, e, r, kept=sums: kept.append(v.copy()) or _failing()
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


def _failing():
    raise MemoryError


# ---- sensitivity of fixed point ------------------------------------------------------------------


def test_sums_in_fixed_point_are_exact_in_any_order():
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
    exactly = [sum((Fraction(float(v)) for v in column), Fraction(0)) for column in points.T]
    assert [Fraction(float(v)) for v in forward] == exactly
    # The largest sum there can be still is.
    assert 5000.0 + unit - 5000.0 == unit and exact.quantum(5000) >= 5000 * 2.0**-53


@pytest.mark.parametrize("layout", ["iid", "goe1", "goe2"])
@pytest.mark.parametrize("ratio", [0.05, 0.7, 1.0, 20.0])
def test_inflation_pays_for_rounded_records(layout, ratio):
    """Against random and extreme pairs, with a coarse unit so that it shows."""
    rng = np.random.default_rng(7)
    d = 3
    size = d + d * (d + 1) // 2
    std = spread(NoiseStd(1.0, *layout_stds(layout, ratio)), d)
    proven = user_sensitivity("replace", layout, bias_std=1.0, cov_std=ratio)
    lower = np.tril_indices(d)
    unit = 2.0**-6
    factor = exact.inflation(unit, size, d)
    worst = 0.0
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
        worst = max(worst, float(np.linalg.norm((points[0] - points[1]) / std)))
    assert worst <= proven * factor
    assert factor - 1.0 < 1e-9 or unit == 2.0**-6


@pytest.mark.parametrize(("feature", "reward"), [(1.0, 0.02), (0.05, 1.0), (3.0, 10.0)])
def test_records_of_other_bounds_have_a_unit_and_a_factor_of_their_own(feature, reward):
    """A plan's own clipping: sums are exact, and what rounding adds is paid for."""
    plan = dataclasses.replace(plan_of(), clip=Clip(feature, -reward, reward))
    rng, d, layout = np.random.default_rng(8), plan.dimension, "goe2"
    largest = max(feature * reward, feature**2)
    unit, _ = fixed_point(plan, 1000)
    assert 1000 * largest / unit < 2.0**53 and math.frexp(unit)[0] == 0.5
    # So many records that rounding shows.
    unit, factor = fixed_point(plan, 2**40)
    cov = 0.7 * feature**2
    bias = feature * reward
    std = spread(NoiseStd(bias, *layout_stds(layout, cov)), d)
    proven = user_sensitivity("replace", layout, bias_std=bias / (feature * reward), cov_std=0.7)
    worst = 0.0
    for _ in range(2000):
        x = rng.normal(size=(2, d))
        x *= feature / np.linalg.norm(x, axis=1, keepdims=True)
        y = reward * rng.choice([-1.0, 1.0], size=2)
        points = [
            exact.quantise(np.concatenate([v * w, np.outer(v, v)[np.tril_indices(d)]]), unit)
            for v, w in zip(x, y, strict=True)
        ]
        worst = max(worst, float(np.linalg.norm((points[0] - points[1]) / std)))
    assert worst <= proven * factor


def test_a_schedule_and_the_sums_of_a_record_share_one_factor():
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


def test_weights_too_small_to_write_down_are_still_chosen_as_often_as_they_should():
    """A uniform of 640 zeros is below the e^-400 of the first candidate; one of 512 is not."""
    for zeros, wanted in ((80, 0), (64, 1)):
        heads = iter([b"\0" * 8] * (zeros // 8))
        draw = Uniforms(1, lambda n, heads=heads: b"".join(next(heads, b"\xa5" * 8)
                                                          for _ in range(n // 8)))  # fmt: skip
        found = exact.choose(np.array([400.0, 0.0, 1e300]), 1.0, np.array([1, 1, 1]), draw)
        assert found == (wanted, 0)
    # 10^11 digits long, were it written out.
    deep = np.array([1e9, 0.0, 2e9])
    counts = np.array([1, 2**40, 3])
    assert exact._choose_exactly(deep, 500.0, counts, Uniforms(1, Stream(1)), 0)[0] == 1


def test_choices_have_their_probabilities():
    costs, counts, rate = np.array([3.0, 0.0, 1.0, 7.0]), np.array([2, 1, 3, 0]), 0.7
    weights = np.exp(-rate * costs) * counts
    n = 40_000
    draw = Uniforms(n, Stream(11))
    found = np.zeros((4, 3))
    for i in range(n):
        at, place = exact.choose(costs, rate, counts, draw, i)
        found[at, place] += 1
    assert found[3].sum() == 0
    each = np.repeat(weights / counts.clip(1), 3).reshape(4, 3)
    each[np.arange(3)[None] >= counts[:, None]] = 0
    shown = each > 0
    expected = each[shown] / weights.sum() * n
    assert stats.chisquare(found[shown], expected).pvalue > ALARM


def test_a_choice_at_an_edge_is_settled_as_for_real_weights():
    """At the uniforms next to the edge e^-1 / (1 + e^-1) of the cdf, 300 bits long."""
    with mpmath.workdps(120):
        edge = mpmath.e**-1 / (1 + mpmath.e**-1)
        start = int(mpmath.floor(edge * 2**320))
    for step, wanted in ((-1, 0), (1, 1)):
        a = start + step
        words = [a >> 256]
        draw = Uniforms(1, Stream(0, words))
        draw._longer[0] = a, 320
        assert exact.choose(np.array([1.0, 0.0]), 1.0, np.ones(2, np.int64), draw)[0] == wanted


@REPEAT
@given(st.integers(0, 2**32), st.integers(1, 30))
def test_the_least_noisy_score(seed, n):
    values = np.random.default_rng(seed).integers(0, 5, size=n) / 4.0
    draws = Laplaces(n, Stream(seed))
    found = exact.least(values, 0.3, draws)
    sums = [
        Fraction(float(v)) + Fraction(0.3) * sum(draws.interval(i, 150)) / 2
        for i, v in enumerate(values)
    ]
    assert found == min(range(n), key=sums.__getitem__)


@REPEAT
@given(st.integers(0, 2**32), st.floats(-5, 5))
def test_comparisons(seed, value):
    noise, threshold = Laplaces(1, Stream(seed)), Laplaces(1, Stream(seed + 1))
    found = exact.above(value, 2.0, noise, 1.0, 3.0, threshold)
    middle = [sum(d.interval(0, 150)) / 2 for d in (noise, threshold)]
    assert found == (Fraction(value) - 1 + 2 * middle[0] - 3 * middle[1] > 0)


def test_a_comparison_that_floats_cannot_decide():
    noise, threshold = Laplaces(1, Stream(4)), Laplaces(1, Stream(5))
    low, high = noise.interval(0, 120)
    start = float(-(low + high) / 2)  # value + Z is within 2^-53 of 0
    tiny = Laplaces(1, Stream(5))
    found = exact.above(start, 1.0, noise, 0.0, 1e-300, tiny)
    assert found == (Fraction(start) + (low + high) / 2 > 0)
    assert threshold.values[0] == tiny.values[0]


# ---- objects that act once -----------------------------------------------------------------------


def test_a_deployment_says_exact_and_refuses_a_claim_about_the_generator():
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


def test_a_server_with_system_noise_takes_fixed_point_alone():
    plan = plan_of(protocol="central")
    server = fastfed.parties.Server(plan)
    silos = [fastfed.parties.Silo(plan, i, fastfed.parties.SeededNoise(1)) for i in range(2)]
    for silo in silos:
        silo.select(np.full((2, 3), 1 / 3))
        silo.observe(1 / 3)
    with pytest.raises(fastfed.InputError, match="must be in fixed point, multiples of 2\\^-47"):
        server.combine([silo.report() for silo in silos])
    assert server.release == 0
