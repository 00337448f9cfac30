"""From budget to noise and back: the tree mechanism under its three calibrations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from fastfed._validate import InputError
from fastfed.privacy import (
    MECHANISMS,
    Budget,
    Calibrated,
    calibrate,
    calibrate_tree,
    delta_of,
    mu_of,
)
from fastfed.privacy.mechanisms import catalogue


class Row(NamedTuple):
    """K = 400: noise of each calibration, and true epsilon of the two papers' ones."""

    epsilon: float
    delta: float
    theorem: float
    code: float
    tight: dict[str, float]
    true_theorem: dict[str, float]
    true_code: dict[str, float]


REFERENCE = [
    Row(
        0.2,
        0.1,
        75.84403794891978,
        23.729341455751786,
        {
            "zero-out/iid": 9.753942713850327,
            "zero-out/goe2": 8.44716217725251,
            "replace/iid": 14.630914070775487,
            "replace/goe2": 13.794158072537362,
        },
        {"zero-out": 0.0, "replace": 0.0},
        {"zero-out": 0.0, "replace": 0.015206424366407376},
    ),
    Row(
        0.2,
        0.01,
        99.48352255417208,
        32.88104760872622,
        {
            "zero-out/iid": 25.68035264340088,
            "zero-out/goe2": 22.23983776732802,
            "replace/iid": 38.52052896510131,
            "replace/goe2": 36.31750299482128,
        },
        {"zero-out": 0.016798362904382177, "replace": 0.04214565515590535},
        {"zero-out": 0.13839926354369647, "replace": 0.2512330473023953},
    ),
    Row(
        0.2,
        0.001,
        118.49736042282015,
        39.99056060836082,
        {
            "zero-out/iid": 41.99451585168339,
            "zero-out/goe2": 36.36831754718611,
            "replace/iid": 62.991773777525076,
            "replace/goe2": 59.38921386274257,
        },
        {"zero-out": 0.05488376687826925, "replace": 0.09190819229166573},
        {"zero-out": 0.21220226302519846, "replace": 0.3455401115798828},
    ),
    Row(
        1,
        0.1,
        16.961507117467107,
        5.451904789791033,
        {
            "zero-out/iid": 4.6069891878411315,
            "zero-out/goe2": 3.9897696716306585,
            "replace/iid": 6.910483781761696,
            "replace/goe2": 6.515266591151138,
        },
        {"zero-out": 0.0, "replace": 0.12721447188051357},
        {"zero-out": 0.7307014135915403, "replace": 1.5244726571537308},
    ),
    Row(
        1,
        0.01,
        21.29504285958257,
        7.1025721871652125,
        {
            "zero-out/iid": 7.967151260052624,
            "zero-out/goe2": 6.8997553869987716,
            "replace/iid": 11.950726890078935,
            "replace/goe2": 11.267253365444313,
        },
        {"zero-out": 0.2617964859415971, "replace": 0.45989021705424826},
        {"zero-out": 1.165234583771527, "replace": 2.000462344885746},
    ),
    Row(
        1,
        0.001,
        24.885035203652613,
        8.436219384940106,
        {
            "zero-out/iid": 10.92334462264746,
            "zero-out/goe2": 9.459893937504841,
            "replace/iid": 16.38501693397119,
            "replace/goe2": 15.447942111823256,
        },
        {"zero-out": 0.37520744541049295, "replace": 0.6081913914406445},
        {"zero-out": 1.36170633179266, "replace": 2.221259541717759},
    ),
    Row(
        5,
        0.1,
        4.798719511269177,
        1.621397740678658,
        {
            "zero-out/iid": 1.80329868766822,
            "zero-out/goe2": 1.5617024741318182,
            "replace/iid": 2.7049480315023295,
            "replace/goe2": 2.5502494611100004,
        },
        {"zero-out": 0.9280672459416499, "replace": 1.9006812120642744},
        {"zero-out": 5.977116367112226, "replace": 11.876705220393044},
    ),
    Row(
        5,
        0.001,
        6.024167916275342,
        2.0704569303498124,
        {
            "zero-out/iid": 2.926753124228795,
            "zero-out/goe2": 2.5346425561876087,
            "replace/iid": 4.390129686343192,
            "replace/goe2": 4.139053962002189,
        },
        {"zero-out": 2.043344790997643, "replace": 3.3595210139323997},
        {"zero-out": 7.827444480576449, "replace": 13.534972405650615},
    ),
]
# True epsilon printed to two or three digits: nominal epsilon, delta, zero-out, replacement.
PRINTED_THEOREM = [
    (0.2, 0.1, 0, 0),
    (0.2, 0.01, 0.017, 0.042),
    (0.2, 0.001, 0.055, 0.092),
    (1, 0.1, 0, 0.127),
    (1, 0.01, 0.262, 0.460),
    (1, 0.001, 0.375, 0.608),
    (5, 0.1, 0.928, 1.90),
    (5, 0.01, 1.66, 2.86),
    (5, 0.001, 2.04, 3.36),
]
PRINTED_CODE = [
    (0.2, 0.1, 0, 0.015),
    (1, 0.1, 0.731, 1.52),
    (5, 0.1, 5.98, 11.88),
    (0.2, 0.01, 0.138, 0.251),
    (1, 0.01, 1.17, 2.00),
    (5, 0.01, 7.23, 13.1),
    (0.2, 0.001, 0.212, 0.346),
    (1, 0.001, 1.36, 2.22),
    (5, 0.001, 7.83, 13.5),
]


def places(value: float) -> float:
    """Return slightly more than half a unit in the last printed digit."""
    text = str(value)
    return 0.51 * 10.0 ** -len(text.partition(".")[2]) if "." in text else 1e-12


@pytest.mark.parametrize("row", REFERENCE, ids=lambda r: f"{r.epsilon}-{r.delta}")
def test_calibrations_have_their_reference_values(row: Row) -> None:
    for relation in ("zero-out", "replace"):
        budget = Budget(row.epsilon, row.delta, relation)
        theorem = calibrate_tree(budget, 400, "theorem")
        assert theorem.layout == "iid"
        assert theorem.noise_std == pytest.approx(row.theorem)
        assert theorem.exact() == pytest.approx(row.true_theorem[relation], rel=1e-8)
        code = calibrate_tree(budget, 400, "published-code")
        assert code.layout == "goe1"
        assert code.noise_std == pytest.approx(row.code)
        assert code.exact() == pytest.approx(row.true_code[relation], rel=1e-8)
        for layout in ("iid", "goe2"):
            exact = calibrate_tree(budget, 400, layout=layout)
            assert exact.noise_std == pytest.approx(row.tight[f"{relation}/{layout}"], rel=1e-9)
            assert exact.exact() == pytest.approx(row.epsilon, rel=1e-8)
        assert calibrate_tree(budget, 400).layout == "goe2"


@pytest.mark.parametrize(
    ("calibration", "table"), [("theorem", PRINTED_THEOREM), ("published-code", PRINTED_CODE)]
)
def test_true_epsilon_agrees_with_the_printed_tables(
    calibration: str, table: list[tuple[float, float, float, float]]
) -> None:
    for epsilon, delta, zero_out, replaced in table:
        # One mechanism, two relations; its privacy does not depend on the number of releases.
        for releases in (400, 1000, 1):
            tree = calibrate_tree(Budget(epsilon, delta), releases, calibration)
            assert tree.exact(relation="zero-out") == pytest.approx(zero_out, abs=places(zero_out))
            assert tree.exact(relation="replace") == pytest.approx(replaced, abs=places(replaced))


def test_headline_values() -> None:
    assert calibrate_tree(Budget(1, 0.001), 400, "theorem").exact() == pytest.approx(
        0.608, abs=5e-4
    )
    assert calibrate_tree(Budget(5, 0.1), 400, "published-code").exact() == pytest.approx(
        11.88, abs=5e-3
    )
    exact = calibrate_tree(Budget(1, 0.01), 400)
    assert exact.noise_std == pytest.approx(11.3, abs=0.05)
    assert calibrate_tree(Budget(1, 0.01), 1000).noise_std == pytest.approx(
        exact.noise_std * math.sqrt(10 / 9)
    )


@pytest.mark.parametrize("layout", ["iid", "goe1", "goe2"])
def test_exact_calibration_uses_the_whole_budget(layout: str) -> None:
    rng = np.random.default_rng(11)
    for _ in range(100):
        budget = Budget(
            float(10 ** rng.uniform(-6, 2)),
            float(10 ** rng.uniform(-60, -0.1)),
            str(rng.choice(["replace", "zero-out"])),
        )
        tree = calibrate_tree(budget, int(rng.integers(1, 5000)), layout=layout)
        assert all(c.holds for c in tree.conditions())
        assert delta_of(budget.epsilon, tree.mu()) <= budget.delta
        less = msgspec.structs.replace(tree, noise_std=tree.noise_std * (1 - 1e-6))
        assert not all(c.holds for c in less.conditions())


def test_conditions_detect_too_little_noise() -> None:
    """Plant too little noise; the condition is computed from the noise and must fail."""
    budget = Budget(1, 0.01)
    right = calibrate_tree(budget, 400)
    natural_log = math.sqrt((1 + math.log(400)) / 9)
    no_kappa = 1 / 3
    no_bias_stream = 1 / 2  # D = 1
    for factor, true_epsilon in ((natural_log, 1.18), (no_kappa, 4.4), (no_bias_stream, None)):
        wrong = msgspec.structs.replace(right, noise_std=right.noise_std * factor)
        assert [c.holds for c in wrong.conditions()] == [False]
        if true_epsilon is not None:
            assert wrong.exact() == pytest.approx(true_epsilon, rel=0.01)


def test_theorem_under_replacement_holds_only_by_slack() -> None:
    def holds(epsilon: float, delta: float, relation: str) -> bool:
        """Return whether the theorem's condition holds for this budget."""
        (condition,) = calibrate_tree(Budget(epsilon, delta, relation), 400, "theorem").conditions()
        return condition.holds

    for epsilon in (0.01, 0.2, 1, 5, 100):
        for delta in (0.1, 1e-3, 1e-10, 1e-35):
            assert holds(epsilon, delta, "zero-out")
            assert holds(epsilon, delta, "replace")
    assert holds(2.4, 1e-40, "zero-out")
    assert not holds(2.4, 1e-40, "replace")
    tree = calibrate_tree(Budget(2.4, 1e-40), 400, "theorem")
    assert delta_of(2.4, tree.mu()) / 1e-40 == pytest.approx(2.5, abs=0.05)


@pytest.mark.parametrize(
    ("delta", "replaced", "zero_out"), [(0.1, 0.52, 2.0), (0.01, 0.12, 0.55), (0.001, 0.025, 0.15)]
)
def test_published_code_fails_from_these_budgets_on(
    delta: float, replaced: float, zero_out: float
) -> None:
    for relation, edge in (("replace", replaced), ("zero-out", zero_out)):
        actual = [
            calibrate_tree(Budget(edge * f, delta, relation), 400, "published-code").conditions()
            for f in (0.93, 1.04)
        ]
        assert [c[0].holds for c in actual] == [True, False]


def test_conditions_state_the_calculated_epsilon() -> None:
    (condition,) = calibrate_tree(Budget(5, 0.1), 400, "published-code").conditions()
    assert "11.88" in condition.text
    assert "at most 5" in condition.text
    assert not condition.holds
    (condition,) = calibrate_tree(Budget(1, 0.001), 400, "theorem").conditions()
    assert "0.6082" in condition.text
    assert "zero-out" in condition.text


@pytest.mark.parametrize("calibration", ["exact", "theorem", "published-code"])
def test_epsilon_without_releases_is_zero(calibration: str) -> None:
    tree = calibrate_tree(Budget(1, 0.01), 0, calibration)
    assert (tree.noise_std, tree.depth, tree.mu(), tree.exact()) == (0.0, 0, 0.0, 0.0)
    assert all(c.holds for c in tree.conditions())


def test_noise_stds_by_stream() -> None:
    tree = calibrate_tree(Budget(1, 0.01), 400)
    assert tree.noise_stds == {
        "bias": tree.noise_std,
        "covariance": tree.noise_std,
        "covariance_diagonal": pytest.approx(math.sqrt(2) * tree.noise_std),
    }


@pytest.mark.parametrize("name", sorted(MECHANISMS))
@pytest.mark.parametrize("relation", ["replace", "zero-out"])
def test_registry(name: str, relation: str) -> None:
    budget = Budget(1, 1e-5, relation)
    needing_users = ("vector-sum", "vector-batches", "secure-sum")
    size = {"users": 50, "dimension": 3} if name in needing_users else {}
    if name == "shuffled-points":
        size = {"users": 50}
    calibrated = calibrate(name, budget, 40, **size)
    assert isinstance(calibrated, Calibrated)
    assert set(msgspec.to_builtins(calibrated)) == {
        *("mechanism", "epsilon", "delta", "relation", "releases", "noise_std", "mu", "source")
    }
    assert (calibrated.mechanism, calibrated.relation, calibrated.releases) == (name, relation, 40)
    if name in ("gaussian", "gaussian-tree", "honaker", "toeplitz"):
        assert calibrated.mu == pytest.approx(mu_of(1, 1e-5))
    with pytest.raises(InputError, match="releases must be an integer >= 1, got 0"):
        calibrate(name, budget, 0, **size)


def test_gaussian_of_one_sum() -> None:
    zero_out = calibrate("gaussian", Budget(1, 1e-5, "zero-out"))
    assert zero_out.noise_std == pytest.approx(3.7306, abs=1e-4)
    assert calibrate("gaussian", Budget(1, 1e-5)).noise_std == pytest.approx(2 * zero_out.noise_std)
    assert calibrate("gaussian", Budget(1, 1e-5, "zero-out"), 9).noise_std == pytest.approx(
        3 * zero_out.noise_std
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: calibrate_tree(Budget(1, 0), 4), "delta must be > 0 and < 1, got 0.0"),
        (lambda: calibrate_tree(Budget(1, 0.1), -1), "releases must be an integer >= 0, got -1"),
        (lambda: calibrate_tree(Budget(1, 0.1), 4, "exakt"), 'did you mean "exact"?'),
        (
            lambda: calibrate_tree(Budget(1, 0.1), 4, "theorem", "goe2"),
            'layout must be "iid" when calibration is "theorem", got "goe2"',
        ),
        (lambda: calibrate_tree(Budget(1, 0.1, unit="silo"), 4), "unit must be one of"),
        (lambda: calibrate("gausian-tree", Budget(1, 0.1)), 'did you mean "gaussian-tree"?'),
        (lambda: calibrate("vector-sum", Budget(1, 0.1)), "vector-sum needs users"),
        (lambda: calibrate("gaussian", Budget(1, 0)), "delta must be > 0 and < 1, got 0.0"),
        (lambda: calibrate_tree(Budget(1, 0.1), 4).mu("swap"), "relation must be one of"),
    ],
)
def test_errors_name_the_bad_argument(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)


def test_every_mechanism_of_the_catalogue_is_described() -> None:
    assert set(catalogue.BUILTIN) == set(catalogue.SUMMARIES) == set(catalogue.MEANINGS)
    assert set(catalogue.SCALED) | set(catalogue.NEEDS) <= set(catalogue.BUILTIN)
