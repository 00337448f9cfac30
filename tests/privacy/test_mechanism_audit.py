"""Check fastfed.audit for mechanisms whose epsilon is known, and its error messages."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

import fastfed
from fastfed._validate import InputError
from fastfed.privacy import Budget, calibrate, epsilon_of
from fastfed.privacy.audit.bounds import AuditResult

DATA, NEIGHBOUR = np.zeros(3), np.array([1.0, 0.0, 0.0])


def gaussian_mechanism(std: float):
    """Return a mechanism that adds normal noise to three numbers."""

    def noisy(data, rng):
        """Return the data plus normal noise."""
        return np.asarray(data) + std * rng.normal(size=3)

    return noisy


def test_sufficient_noise_passes_and_half_of_it_is_caught() -> None:
    std = calibrate("gaussian", Budget(1.0, 1e-2), sensitivity=1.0).noise_std
    sufficient = fastfed.audit(gaussian_mechanism(std), DATA, NEIGHBOUR, epsilon=1.0, delta=1e-2)
    assert isinstance(sufficient, AuditResult) and sufficient.verdict == "pass"
    assert (sufficient.name, sufficient.claimed_epsilon, sufficient.delta, sufficient.trials) == (
        "noisy",
        1,
        0.01,
        10_000,
    )
    assert sufficient.epsilon_lower_bound > 0.5
    half = fastfed.audit(
        gaussian_mechanism(std / 2), DATA, NEIGHBOUR, epsilon=1.0, delta=1e-2, name="half"
    )
    assert (half.verdict, half.name) == ("caught", "half")
    assert half.epsilon_lower_bound < epsilon_of(2.0 / std, 1e-2)


def test_default_statistic_detects_the_entry_that_depends_on_the_data() -> None:
    """Check one such entry among 50 entries of large noise."""

    def noisy(data, rng):
        """Return 50 entries of noise; one of them depends on the data."""
        entries = 100.0 * rng.normal(size=(5, 10))
        entries[2, 3] = data + 0.3 * rng.normal()
        return entries

    result = fastfed.audit(noisy, 0.0, 1.0, epsilon=1.0, delta=0.01, trials=4000)
    assert result.verdict == "caught" and result.epsilon_lower_bound > 3.0


def test_audit_detects_a_number_without_noise() -> None:
    def exact(data, rng):
        """Return a normal number, and the number of data without noise."""
        return np.array([rng.normal(), float(len(data))])

    result = fastfed.audit(exact, [1], [1, 2], epsilon=1.0, delta=0.0, trials=1000)
    assert result.verdict == "caught"
    # 500 runs are counted for each data set.
    largest_bound = math.log((0.025 ** (1 / 500)) / (1 - 0.025 ** (1 / 500)))
    assert result.epsilon_lower_bound == pytest.approx(largest_bound, rel=1e-6)


def test_a_given_statistic_detects_differences_in_variance() -> None:
    """Check data sets with the same mean and different variances."""

    def scaled_noise(data, rng):
        """Return noise whose standard deviation depends on the data."""
        return rng.normal() * (1.0 + 4.0 * data)

    by_mean = fastfed.audit(scaled_noise, 0.0, 1.0, epsilon=1.0, delta=0.01, trials=4000, seed=3)
    by_absolute_value = fastfed.audit(
        scaled_noise, 0.0, 1.0, epsilon=1.0, delta=0.01, trials=4000, statistic=abs
    )
    assert (
        by_absolute_value.verdict == "caught"
        and by_absolute_value.epsilon_lower_bound > by_mean.epsilon_lower_bound
    )


def test_audit_accepts_mechanisms_with_their_own_noise() -> None:
    """Check callables of the data only, such as a deployed object with noise of the operating
    system."""

    def running_sum(data):
        """Return a private sum of one vector."""
        total = fastfed.privacy.TreeRelease(3, 1, epsilon=1.0, delta=0.01)
        return total.add(data)

    result = fastfed.audit(running_sum, DATA, NEIGHBOUR, epsilon=1.0, delta=0.01, trials=2000)
    assert result.verdict == "pass"

    class Identity:
        """A mechanism that returns the data."""

        def __call__(self, data):
            """Return the data."""
            return data

    identity_result = fastfed.audit(Identity(), 0.0, 1.0, epsilon=1.0, delta=0.0, trials=100)
    assert (identity_result.verdict, identity_result.name) == ("caught", "mechanism")


def test_seeds_determine_results_of_mechanisms_with_a_generator() -> None:
    results = [
        fastfed.audit(
            gaussian_mechanism(2.0),
            DATA,
            NEIGHBOUR,
            epsilon=1.0,
            delta=0.01,
            trials=500,
            seed=own_seed,
        )
        for own_seed in (1, 1, 2)
    ]
    assert results[0] == results[1] != results[2]


def test_runs_that_choose_the_direction_are_not_counted() -> None:
    """Check equal distributions with many entries.

    A direction fitted to the counted runs would give the verdict "caught".
    """

    def pure_noise(data, rng):
        """Return 500 normal numbers, whatever the data are."""
        return rng.normal(size=500)

    result = fastfed.audit(pure_noise, 0, 1, epsilon=0.2, delta=0.01, trials=400)
    assert result.verdict == "pass"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mechanism": 3}, "mechanism must be a function of the data, got 3"),
        ({"statistic": 3}, "statistic must be a function of one output, got 3"),
        ({"statistic": lambda out: None}, "statistic must return a number, got None"),
        ({"statistic": lambda out: math.nan}, "statistic must be finite, got nan"),
        ({"trials": 1}, "trials must be an integer >= 2"),
        ({"seed": -1}, "seed must be an integer >= 0"),
        ({"epsilon": -1.0}, "claimed_epsilon must be >= 0"),
        ({"delta": 1.0}, "delta must be >= 0 and < 1"),
        ({"mechanism": lambda data: math.inf}, "the mechanism's output must be finite"),
        ({"mechanism": lambda data: "no"}, "the mechanism's output must be an array of numbers"),
        ({"mechanism": lambda data: np.zeros(int(data) + 1)}, "outputs must have one size"),
    ],
)
def test_errors_name_the_bad_argument(change: dict, message: str) -> None:
    arguments = {
        "mechanism": lambda data: 0.0,
        "epsilon": 1.0,
        "delta": 0.0,
        "trials": 10,
        **change,
    }
    with pytest.raises(InputError, match=message):
        fastfed.audit(arguments.pop("mechanism"), 0.0, 1.0, **arguments)


def test_example_of_the_privacy_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "privacy.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(blocks[-1], "privacy.md", "exec"), {"__name__": "page"})
    verdict, bound = capsys.readouterr().out.split()
    # Replacing one of three records changes the mean by 0.8 / 3, which is 0.8 in units of this
    # noise.
    assert verdict == "caught" and 0.5 < float(bound) < 0.8
