"""fastfed.audit: right on mechanisms whose epsilon is known, and one sentence for bad input."""

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


def gaussian(std: float):
    def noisy(data, rng):
        return np.asarray(data) + std * rng.normal(size=3)

    return noisy


def test_noise_that_keeps_its_claim_passes_and_half_of_it_is_caught() -> None:
    std = calibrate("gaussian", Budget(1.0, 1e-2), sensitivity=1.0).noise_std
    kept = fastfed.audit(gaussian(std), DATA, NEIGHBOUR, epsilon=1.0, delta=1e-2)
    assert isinstance(kept, AuditResult) and kept.verdict == "pass"
    assert (kept.name, kept.claimed_epsilon, kept.delta, kept.trials) == ("noisy", 1, 0.01, 10_000)
    assert kept.epsilon_lower_bound > 0.5
    half = fastfed.audit(gaussian(std / 2), DATA, NEIGHBOUR, epsilon=1.0, delta=1e-2, name="half")
    assert (half.verdict, half.name) == ("caught", "half")
    assert half.epsilon_lower_bound < epsilon_of(2.0 / std, 1e-2)


def test_the_default_statistic_finds_the_entry_that_moves() -> None:
    """Among 50 entries of large noise, one tells."""

    def noisy(data, rng):
        wide = 100.0 * rng.normal(size=(5, 10))
        wide[2, 3] = data + 0.3 * rng.normal()
        return wide

    found = fastfed.audit(noisy, 0.0, 1.0, epsilon=1.0, delta=0.01, trials=4000)
    assert found.verdict == "caught" and found.epsilon_lower_bound > 3.0


def test_a_number_that_has_no_noise_tells_everything() -> None:
    def exact(data, rng):
        return np.array([rng.normal(), float(len(data))])

    found = fastfed.audit(exact, [1], [1, 2], epsilon=1.0, delta=0.0, trials=1000)
    assert found.verdict == "caught"
    # 500 runs counted on each side.
    most = math.log((0.025 ** (1 / 500)) / (1 - 0.025 ** (1 / 500)))
    assert found.epsilon_lower_bound == pytest.approx(most, rel=1e-6)


def test_a_statistic_sees_what_means_do_not() -> None:
    """The same mean, another spread."""

    def spread(data, rng):
        return rng.normal() * (1.0 + 4.0 * data)

    blind = fastfed.audit(spread, 0.0, 1.0, epsilon=1.0, delta=0.01, trials=4000, seed=3)
    seeing = fastfed.audit(spread, 0.0, 1.0, epsilon=1.0, delta=0.01, trials=4000, statistic=abs)
    assert seeing.verdict == "caught" and seeing.epsilon_lower_bound > blind.epsilon_lower_bound


def test_mechanisms_that_draw_for_themselves() -> None:
    """Any callable of the data: a deployed object with the operating system's noise."""

    def running_sum(data):
        total = fastfed.privacy.TreeRelease(3, 1, epsilon=1.0, delta=0.01)
        return total.add(data)

    found = fastfed.audit(running_sum, DATA, NEIGHBOUR, epsilon=1.0, delta=0.01, trials=2000)
    assert found.verdict == "pass"

    class Told:
        def __call__(self, data):
            return data

    told = fastfed.audit(Told(), 0.0, 1.0, epsilon=1.0, delta=0.0, trials=100)
    assert (told.verdict, told.name) == ("caught", "mechanism")


def test_a_seed_fixes_mechanisms_that_take_a_generator() -> None:
    found = [
        fastfed.audit(gaussian(2.0), DATA, NEIGHBOUR, epsilon=1.0, delta=0.01, trials=500, seed=s)
        for s in (1, 1, 2)
    ]
    assert found[0] == found[1] != found[2]


def test_the_direction_is_not_counted_again() -> None:
    """Equal worlds of many entries: a direction fitted to the runs counted would be caught."""

    def pure(data, rng):
        return rng.normal(size=500)

    found = fastfed.audit(pure, 0, 1, epsilon=0.2, delta=0.01, trials=400)
    assert found.verdict == "pass"


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
def test_bad_input_is_one_clear_sentence(change: dict, message: str) -> None:
    given = {"mechanism": lambda data: 0.0, "epsilon": 1.0, "delta": 0.0, "trials": 10, **change}
    with pytest.raises(InputError, match=message):
        fastfed.audit(given.pop("mechanism"), 0.0, 1.0, **given)


def test_the_block_of_the_privacy_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "privacy.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(blocks[-1], "privacy.md", "exec"), {"__name__": "page"})
    verdict, bound = capsys.readouterr().out.split()
    # Replacing one of three moves the mean by 0.8 / 3, which is 0.8 at this scale.
    assert verdict == "caught" and 0.5 < float(bound) < 0.8
