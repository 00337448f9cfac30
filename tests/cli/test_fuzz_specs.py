"""Damaged specs: each is refused in one sentence, or planned, certified and run."""

from __future__ import annotations

import tempfile
from pathlib import Path

import fuzzing
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fastfed
from fastfed._validate import InputError, integer, number, show
from fastfed.experiments.specs import load_spec
from fastfed.simulation.experiment import MAX_CURVES, Experiment, experiment_from_spec

RANDOM = st.randoms(use_true_random=False)
SPEC = {
    "name": "fuzzed",
    "horizon": 20,
    "silos": 2,
    "environment": {"kind": "sphere", "dimension": 3, "actions": 4},
    "curve": [
        {
            "label": "a",
            "algorithm": "private-fedlinucb",
            "epsilon": 1.0,
            "delta": 1e-5,
            "batch_size": 5,
        }
    ],
}


def repeat(examples):
    """Return settings of hypothesis: always the same examples, without a deadline."""
    quiet = list(HealthCheck)
    return settings(
        max_examples=examples, deadline=None, derandomize=True, suppress_health_check=quiet
    )


def small(experiment: Experiment) -> bool:
    """Return whether the spec runs in an instant."""
    sizes = [
        (w.silos <= 8, w.facts.dimension <= 40, getattr(w.facts, "actions", 1) <= 200)
        for w in (c.problem for c in experiment.curves)
    ]
    is_short = experiment.horizon <= 80 and experiment.replicates <= 3 and len(sizes) <= 6
    return is_short and all(map(all, sizes))


def check(text: bytes, folder: Path) -> None:
    """Check that a spec is refused in one sentence, or planned, certified and (if small) run."""
    path = folder / "spec.toml"
    path.write_bytes(text)
    with fuzzing.within(60):
        try:
            experiment = load_spec(path)
        except InputError as error:
            assert str(error).startswith(str(path)) and str(error).isprintable()
            return
        experiment.digest()
        for curve in experiment.curves:
            certificate = curve.system.certificate
            assert certificate.exact is None or certificate.exact.epsilon >= 0
        if not small(experiment):
            return
        try:
            results = fastfed.run(experiment, folder / "out", threads=1)
        except Exception as error:
            # Errors that appear only in the simulation have their own sentences.
            kind = type(error).__name__
            if kind == "InputError":
                assert "this run needs about" in str(error), repr(error)
            else:
                assert kind == "SimulationError" and "not finite" in str(error), repr(error)
            return
    assert [c.label for c in results.curves] == [c.label for c in experiment.curves]
    for curve in results.curves:
        for values in (curve.group_regret, curve.bits_up_counts, curve.bits_down_counts):
            assert np.isfinite(values).all()
        assert not any(np.isnan(values).any() for values in curve.bounds.values())


def check_spec(rng, make_spec):
    """Check one random spec in a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        check(make_spec(rng), Path(folder))


def damaged(rng) -> bytes:
    """Return a damaged spec."""
    if rng.random() < 0.15:
        return fuzzing.damaged_text(rng, fuzzing.toml(fuzzing.valid_spec(rng)).encode())
    return fuzzing.toml(fuzzing.damaged_spec(rng)).encode()


def extreme(rng) -> bytes:
    """Return a spec with extreme values."""
    return fuzzing.toml(fuzzing.extreme_spec(rng)).encode()


@repeat(200)
@given(RANDOM)
def test_a_damaged_spec_is_refused_or_runs(rng):
    check_spec(rng, damaged)


@repeat(100)
@given(RANDOM)
def test_extreme_numbers_are_refused_or_run(rng):
    check_spec(rng, extreme)


@pytest.mark.slow
@repeat(20_000)
@given(RANDOM)
def test_many_damaged_specs_are_refused_or_run(rng):
    check_spec(rng, damaged)


@pytest.mark.slow
@repeat(5_000)
@given(RANDOM)
def test_many_extreme_numbers_are_refused_or_run(rng):
    check_spec(rng, extreme)


@repeat(200)
@given(st.binary(max_size=300))
def test_random_bytes_are_no_spec(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.toml"
        path.write_bytes(data)
        with pytest.raises(InputError):
            load_spec(path)


def curve(**keys):
    """Return the spec with some keys of its curve changed."""
    return {**SPEC, "curve": [{**SPEC["curve"][0], **keys}]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = " + "9" * 5000, "not TOML: Exceeds the limit"),
        ("seed = 0x" + "f" * 6000, "seed must be below 2.63 in size"),
        ("figure = {quick = {horizon = 0x" + "f" * 20 + "}}", "horizon must be below 2.63"),
        ("deep = " + "[" * 3000 + "]" * 3000, "nested too deep"),
        ("deep = " + "{a=" * 3000 + "1" + "}" * 3000, "nested too deep"),
    ],
)
def test_what_toml_cannot_hold_is_refused(tmp_path, text, message):
    path = tmp_path / "a.toml"
    path.write_text(text + "\n" + fuzzing.toml(SPEC))
    with pytest.raises(InputError, match=message) as caught:
        load_spec(path)
    assert str(caught.value).startswith(str(path)) and len(str(caught.value)) < 400


def test_a_spec_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xef\xbb\xbf" + fuzzing.toml(SPEC).encode())
    assert load_spec(path).horizon == 20


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            curve(**{
                key: [(i + 1) / 100 for i in range(60)]
                for key in ("epsilon", "delta", "radius_multiplier", "failure_probability")
            }),
            f"must give at most {MAX_CURVES} combinations, got 12960000",
        ),
        ({**SPEC, "curve": SPEC["curve"] * 1001}, "curve must give at most 1000 curves, got 1001"),
        (curve(radius_multiplier=[10**5000]), "radius_multiplier must be below 2.63 in size"),
        (curve(epsilon=1e-300), "epsilon must be >= 1e-50 and <= 1e"),
        (curve(epsilon=1e300), "epsilon must be >= 1e-50 and <= 1e"),
        (curve(epsilon="a\nb"), "^[^\n]*$"),
        ({**SPEC, "environment": {"kind": "letor", "path": "x" * 400}}, "path must be an existing"),
        (
            {**SPEC, "environment": {"kind": "classification", "data": "x" * 400}},
            "data must be .* an existing",
        ),
        ({**SPEC, "environment": {"kind": "replay", "path": "x" * 400}}, "path must be an exist"),
    ],
)  # fmt: skip
def test_found_by_fuzzing(spec, message):
    with fuzzing.within(20), pytest.raises(InputError, match=message) as caught:
        experiment_from_spec(spec)
    assert str(caught.value).isprintable()


def test_a_smoothness_too_small_for_a_tree_is_planned():
    losses = {"kind": "stochastic-losses", "experts": 10}
    keys = {"label": "a", "algorithm": "fed-dp-ope-stoch", "epsilon": 1.0, "smoothness": 5e-324}
    experiment_from_spec({**SPEC, "environment": losses, "curve": [keys]})


@pytest.mark.parametrize("dimension", [4_000, 32_768])
def test_many_dimensions_are_planned(dimension):
    world = {"kind": "sphere", "dimension": dimension, "actions": 4}
    experiment_from_spec({**SPEC, "environment": world})


def test_norm_quantiles_are_those_of_chi_square_in_many_dimensions():
    from scipy.stats import chi2

    from fastfed.bandits.noise_distributions import norm_quantile

    for dimension in (10, 5_000, 32_768):
        exact = np.sqrt(chi2.isf(1e-6, dimension))
        assert norm_quantile(dimension, 1.0, 0.0, 1e-6) == pytest.approx(exact, rel=1e-7)


def test_checks_handle_numbers_of_any_size():
    assert show(10**5000) == "a number of more than 4300 digits"
    for check in (number, integer):
        with pytest.raises(InputError, match="x must be"):
            check("x", 10**5000, at_most=5)
    with pytest.raises(InputError, match="must be finite"):
        number("x", -(10**400))
