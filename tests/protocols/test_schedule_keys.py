"""Keys of schedules, releases, centres and bonuses: what is refused, and what old stores keep."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import numpy as np
import pytest

from fastfed._validate import InputError
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.system import Config
from fastfed.environments import FixedSet, Sphere
from fastfed.simulation import dispatch
from fastfed.simulation.experiment import LATER, Experiment, make_experiment
from fastfed.simulation.systems import ALGORITHMS

BUDGET: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-3}
PRIVATE = {"algorithm": "private-fedlinucb", **BUDGET}
VECTOR = {**PRIVATE, "protocol": "shuffle-vector"}
JOINT = {"algorithm": "linucb-jdp", **BUDGET}
FEDUCB = {"algorithm": "feducb", **BUDGET}
PEERS = {"algorithm": "feducb-decentralized", "graph": "line", "schedule": "fixed", **BUDGET}
ROBIN = {"algorithm": "robin", "diversity": 0.2, "initial_phases": 2, **BUDGET}
PUBLIC = {"algorithm": "fedlinucb"}
GROWING = {"batch_size": "growing"}
CENTRED = {"batch_size": 5, "reward_centre": 0.5}


def experiment(curve: dict[str, Any], intercept: float = 1.0) -> Experiment:
    """Return an experiment with one curve."""
    algorithm = curve["algorithm"]
    silos = 1 if algorithm.startswith("linucb") else 30 if algorithm == "robin" else 2
    return make_experiment(
        name="keys", environment=Sphere(3, 5, intercept=intercept),
        curves=[{"label": "a", **curve}], horizon=40, silos=silos, seed=1, checkpoints=2,
    )  # fmt: skip


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({**PUBLIC, "batch_size": "grow"}, 'did you mean "growing"'),
    ({**PUBLIC, "batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
    ({**PUBLIC, "batch_size": 41}, r"batch_size must be <= horizon \(40\), got 41"),
    ({**PUBLIC, "batch_size": 5, "batch_first": 2}, 'batch_first belongs to batch_size "growing"'),
    ({**PUBLIC, "batch_size": 5, "batch_ratio": 2.0},
     'batch_ratio belongs to batch_size "growing", got 2'),
    ({**PUBLIC, **GROWING, "batch_first": 0}, "batch_first must be an integer >= 1, got 0"),
    ({**PUBLIC, **GROWING, "batch_first": 41}, r"batch_first must be <= horizon \(40\), got 41"),
    ({**PUBLIC, **GROWING, "batch_ratio": 0.9}, r"batch_ratio must be >= 1, got 0\.9"),
    ({**PUBLIC, **GROWING, "batch_ratio": float("inf")}, "batch_ratio must be"),
    ({**PUBLIC, **GROWING, "release_rounds": [3]}, "either batch_size or release_rounds, not both"),
    ({**PUBLIC, "batch_size": 5, "release_rounds": [3]}, "either batch_size or release_rounds"),
    ({**PUBLIC, "release_rounds": []}, "release_rounds must hold at least one round, got none"),
    ({**PUBLIC, "release_rounds": [0, 3]}, "release_rounds must be an integer >= 1, got 0"),
    ({**PUBLIC, "release_rounds": [3, 3]}, r"release_rounds must increase .*, got \(3, 3\)"),
    ({**PUBLIC, "release_rounds": [3, 2]}, r"release_rounds must increase .*, got \(3, 2\)"),
    ({**PUBLIC, "release_rounds": [3, 41]}, r"between 1 and the horizon \(40\)"),
    ({**PUBLIC, "release_rounds": [3.5]}, r"release_rounds\[0\] must be an integer, got 3.5"),
    ({**PUBLIC, "release_rounds": 5}, "release_rounds must be a list, got 5"),
    ({**VECTOR, **GROWING, "release": "tree"}, 'batches of different lengths need release "flat"'),
    ({**VECTOR, "release_rounds": [3], "release": "tree"},
     'batches of different lengths need release "flat"'),
    ({**VECTOR, **GROWING, "release": "flat", "returning": 2}, "returning must be 1 if batches"),
    ({**VECTOR, "batch_size": 5, "release": "factorised"}, "needs protocol silo-ldp or central"),
    ({**VECTOR, "batch_size": 5, "release": "tree", "covariance_ratio": 0.5},
     'belongs to release "flat"'),
    ({**VECTOR, "batch_size": 5, "release": "flat", "layout": "goe2"}, 'layout must be "iid"'),
    ({**PRIVATE, "batch_size": 5, "release": "flat"}, 'release "flat" needs protocol'),
    ({**PRIVATE, "batch_size": 5, "release": "factorised", "calibration": "theorem"},
     'calibration must be "exact" when release is "factorised"'),
    ({**PRIVATE, "batch_size": 5, "release": "factorised", "protocol": "silo-ldp-prefix"},
     "needs protocol silo-ldp or central"),
    ({**PRIVATE, "batch_size": 5, "base_rates": [0.2, 0.3]}, "base_rates needs reward_centre"),
    ({**PRIVATE, **CENTRED, "reward_centre": 0.0}, "reward_centre must be > 0 and < 1, got 0"),
    ({**PRIVATE, **CENTRED, "radius": "lemma-c2"}, 'reward_centre needs radius "direct"'),
    ({**PRIVATE, **CENTRED, "clip": False}, "reward_centre needs clip = true"),
    ({**PRIVATE, **CENTRED, "base_rates": [0.5]}, "base_rates must be a list of length 2, got"),
    ({**PRIVATE, **CENTRED, "base_rates": [0.7, 0.3]}, "low <= high"),
    ({**PRIVATE, **CENTRED, "base_rates": [0.2, 1.3]}, r"base_rates must be inside reward_range"),
    ({**JOINT, "release": "flat"}, "release must be one of"),
    ({**JOINT, "release": "factorised", "calibration": "theorem"}, 'release must be "tree"'),
    ({**JOINT, "release_rounds": [3], "batch_size": 2}, "either batch_size or release_rounds"),
    ({"algorithm": "linucb-sdp-vec", **BUDGET, **GROWING, "returning": 2}, "returning must be 1"),
    ({**FEDUCB, **GROWING}, 'batch_size belongs to schedule "fixed"'),
    ({**FEDUCB, "release_rounds": [3]}, 'release_rounds belongs to schedule "fixed"'),
    ({**FEDUCB, "communication": "MT", "release_rounds": [3]}, "it has no release_rounds"),
    ({**FEDUCB, "communication": "MT", **GROWING}, "batch_size must be 1, got growing"),
    ({**FEDUCB, "schedule": "fixed", **CENTRED}, 'reward_centre needs radius "direct"'),
    ({**FEDUCB, "schedule": "private-determinant", "radius": "direct", "bonus": 0.5},
     'bonus below 1 needs schedule "fixed"'),
    ({**PEERS, "batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
    ({**PEERS, "release_rounds": []}, "release_rounds must hold at least one round"),
    ({**PEERS, "release_rounds": [41]}, "release_rounds must increase"),
    ({**ROBIN, **GROWING}, "batch_size has no meaning for robin"),
    ({**ROBIN, "release_rounds": [3]}, "release_rounds has no meaning for robin"),
    ({"algorithm": "local-linucb", "release_rounds": [3]}, "has no meaning for local-linucb"),
    ({"algorithm": "local-linucb", "bonus": 0.5, "radius": "lemma-c2"}, "bonus below 1 needs"),
    ({"algorithm": "local-linucb", "saturation": 3.0}, "unknown key 'saturation'|saturation"),
    ({**PUBLIC, "batch_size": 5, "sieve": 0.5, "tie_bonus": 0.5}, "either sieve or tie_bonus"),
    ({**PRIVATE, "batch_size": 5, "release": "tree", "saturation": 3.0},
     'saturation needs release "factorised"'),
    ({"algorithm": "random", "release_rounds": [3]}, "release_rounds has no meaning for random"),
    ({"algorithm": "random", "reward_centre": 0.5}, "reward_centre has no meaning for random"),
]  # fmt: skip


@pytest.mark.parametrize(("curve", "message"), REFUSED)
def test_errors_about_keys_that_exclude_each_other_are_one_sentence(
    curve: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as actual:
        experiment(curve)
    text = str(actual.value)
    assert "\n" not in text and len(text) < 250


@pytest.mark.parametrize(
    "environment", [FixedSet(dimension=3, actions=5), Sphere(3, 5, basis_actions=True)]
)
def test_a_centre_needs_an_intercept(environment: Any) -> None:
    with pytest.raises(InputError, match="reward_centre needs an environment with an intercept"):
        make_experiment(
            name="x", environment=environment, curves=[{"label": "a", **PRIVATE, **CENTRED}],
            horizon=40, silos=2, seed=1, checkpoints=2,
        )  # fmt: skip
    with pytest.raises(InputError, match="basis_actions needs intercept = 1"):
        Sphere(3, 5, basis_actions=True, intercept=2.0)
    with pytest.raises(InputError, match="intercept must be >= 1"):
        Sphere(3, 5, intercept=0.5)


@pytest.mark.parametrize(
    "curve",
    [
        {**PUBLIC, "radius": "lemma-c2", "batch_size": 5},
        {"algorithm": "linucb", "radius": "lemma-a2"},
        {**FEDUCB, "schedule": "fixed", "batch_size": 5},
        {**ROBIN, "radius": "lemma-c2"},
    ],
)
def test_only_the_direct_radius_is_proven_for_a_longer_theta(curve: dict[str, Any]) -> None:
    """Check intercept kappa > 1, where ||theta*|| > 1, which only the direct radius allows.

    ||theta*||^2 = 1/2 + kappa/2 on this sphere; tau^2 = 2 kappa.
    """
    for intercept, holds in ((1.0, True), (8.0, False)):
        system = experiment(curve, intercept).curves[0].system
        norm = next(c for c in system.theory.conditions if "||theta*|| <= 1" in c.text)
        assert norm.holds == holds
        assert holds or not system.theory.proven
    direct = experiment({**PUBLIC, "batch_size": 5}, 8.0).curves[0].system
    assert direct.theory.proven and direct.theory.radius.tau == 4.0
    assert np.linalg.norm(Sphere(3, 5, intercept=8.0).theta(1, 0)) == pytest.approx(4.5**0.5)


# ---- old stores ----------------------------------------------------------------------------------

#: Curves that name none of the new keys, and the identities that they had before there were any.
OLD: dict[str, dict[str, Any]] = {
    "fedlinucb": {"batch_size": 5},
    "private-fedlinucb": {"batch_size": 5, **BUDGET, "release": "toeplitz"},
    "local-linucb": {},
    "random": {},
    "feducb": {"schedule": "fixed", "batch_size": 5, **BUDGET},
    "robin": {**BUDGET, "diversity": 0.2, "initial_phases": 2},
}
AGENTS: dict[str, dict[str, Any]] = {
    "linucb": {},
    "linucb-jdp": {**BUDGET, "release": "tree"},  # a default of then
    "linucb-ldp": {**BUDGET, "batch_size": 4},
    "linucb-sdp-vec": {**BUDGET, "batch_size": 4},
}


def earlier_keys(curves: dict[str, dict[str, Any]], silos: int, environment: Any) -> Experiment:
    """Return an experiment with the keys that an earlier version stored."""
    tables = [
        # The rule of then, which is no longer the default: the largest bound is chosen.
        {"label": name, "algorithm": name, **({} if name == "random" else {"sieve": 1.0}), **keys}
        for name, keys in curves.items()
    ]
    return make_experiment(
        name="old", environment=environment, curves=tables, horizon=40, silos=silos, seed=1,
        checkpoints=2,
    )  # fmt: skip


def test_the_identity_of_curves_without_the_new_keys_is_unchanged() -> None:
    """Check that old stores are found: digests are those of the version before these keys.

    Curves with noise under the direct radius have a revision now, and the rest is as it was.
    """

    def digest(experiment: Experiment) -> str:
        """Return a digest of the identity without its revisions."""
        identity = {k: v for k, v in experiment.identity().items() if k != "revisions"}
        text = msgspec.json.encode(identity, order="sorted")
        return hashlib.sha256(text).hexdigest()[:16]

    assert earlier_keys(OLD, 30, Sphere(3, 5)).identity()["revisions"] == {"private-fedlinucb": 2}
    assert digest(earlier_keys(OLD, 30, Sphere(3, 5))) == "d8602a1e4a36a080"
    assert digest(earlier_keys(OLD, 30, FixedSet(dimension=3, actions=5))) == "c288e2015eb98ad0"
    assert digest(earlier_keys(AGENTS, 1, Sphere(3, 5))) == "d4f424ad4a0e85a5"


def test_a_later_key_is_part_of_the_identity_only_if_it_changes_the_curve() -> None:
    plain = experiment({**PUBLIC, "batch_size": 5, "sieve": 1.0})
    curve = plain.identity()["curves"][0]
    assert not set(curve) & set(LATER)
    keys_with_defaults = [
        {**keys, **msgspec.structs.asdict(config)} if isinstance(config, Config) else keys
        for name in ALGORITHMS
        if issubclass(ALGORITHMS[name].config, Config) and name in OLD | AGENTS
        for keys in [{"sieve": 1.0, **(OLD | AGENTS)[name]}]
        for config in [_settled(name, keys)]
    ]
    assert len(keys_with_defaults) == len(OLD) + len(AGENTS)
    for keys in keys_with_defaults:
        assert all(keys[key] == value for key, value in LATER.items() if key in keys)
    experiments = [
        experiment({**PUBLIC, "batch_size": 5, **keys}, 1.0)
        for keys in ({"bonus": 0.5}, {"bonus": 0.5, "ledger": 2.0}, {"reward_centre": 0.5},
                     {"tie_bonus": 0.5}, {"sieve": 0.3}, {"sieve": 0.5},
                     {"reward_centre": 0.5, "base_rates": [0.4, 0.6]})
    ] + [
        experiment({**PUBLIC, **keys})
        for keys in (GROWING, {**GROWING, "batch_first": 2}, {**GROWING, "batch_ratio": 1.5},
                     {"release_rounds": [3, 9]}, {"release_rounds": [3, 10]})
    ] + [experiment({**PUBLIC, "batch_size": 5, "sieve": 1.0}, 2.0)]  # fmt: skip
    digests = {e.digest() for e in experiments}
    assert len(digests) == len(experiments) and plain.digest() not in digests
    assert experiment({**PUBLIC, "batch_size": 5, "bonus": 1.0}).digest() == plain.digest()
    default = experiment({**PUBLIC, "batch_size": 5})
    assert default.digest() == experiment({**PUBLIC, "batch_size": 5, "sieve": 0.3}).digest()


def _settled(name: str, keys: dict[str, Any]) -> Any:
    """Return a config with the defaults of a problem filled in."""
    silos = 1 if name.startswith("linucb") else 30
    entry = ALGORITHMS[name]
    known_keys = {k: v for k, v in keys.items() if (name, k) != ("random", "sieve")}
    return entry.settled(entry.check(known_keys), ProblemSpec(silos=silos, horizon=40, dimension=3))


# ---- keys drawn at random ------------------------------------------------------------------------


def random_curve(rng: np.random.Generator) -> dict[str, Any]:
    """Return a curve with some of the keys, fitting or not."""
    base = [PUBLIC, PRIVATE, VECTOR, JOINT, FEDUCB, PEERS, ROBIN,
            {"algorithm": "linucb"}, {"algorithm": "linucb-ldp", **BUDGET},
            {"algorithm": "linucb-sdp-vec", **BUDGET}, {"algorithm": "local-linucb"}]  # fmt: skip
    keys: dict[str, list[Any]] = {
        "batch_size": [1, 3, 40, "growing", "growing", "theorem"],
        "batch_first": [1, 5, 40],
        "batch_ratio": [1.0, 1.7, 50.0],
        "release_rounds": [[1], [40], [2, 7, 30], list(range(1, 41))],
        "release": ["tree", "factorised", "flat", "toeplitz"],
        "reward_centre": [0.5, 0.9],
        "base_rates": [[0.5, 0.5], [0.1, 0.9]],
        "bonus": [0.0, 0.4, 1.0],
        "ledger": [0.01, 1.0, 30.0],
        "sieve": [0.0, 0.5, 1.0],
        "tie_bonus": [0.5],
        "saturation": [0.0, 20.0],
        "lazy": [True, False],
        "radius": ["direct", "lemma-c2"],
        "schedule": ["fixed", "private-determinant"],
        "returning": [1, 3],
        "calibration": ["exact", "theorem"],
    }
    curve = dict(base[rng.integers(len(base))])
    allowed_keys = ALGORITHMS.choose(curve["algorithm"]).config.__struct_fields__
    for key, values in keys.items():
        if key in allowed_keys and rng.random() < (0.6 if key == "batch_size" else 0.1):
            curve[key] = values[rng.integers(len(values))]
    return curve


@pytest.mark.parametrize("seed", range(4))
def test_any_combination_of_keys_is_refused_or_runs(seed: int) -> None:
    """Check that no other error occurs, and that every run's certificate fits its plan."""
    rng = np.random.default_rng(seed)
    runs = 0
    for _ in range(40):
        curve = random_curve(rng)
        try:
            e = experiment(curve, [1.0, 3.0][rng.integers(2)])
        except InputError as refused:
            assert "\n" not in str(refused), curve
            continue
        system = e.curves[0].system
        (outcome,) = dispatch.run(
            e.environment.open(1, 0, e.silos), [system.plan], e.checkpoints, threads=1
        )
        assert np.isfinite(outcome.group_regret).all(), curve
        exact = system.certificate.exact
        if exact is not None and curve.get("calibration", "exact") == "exact":
            requested_epsilon = curve.get("epsilon", 0.0)
            assert exact.epsilon <= requested_epsilon * (1.0 + 1e-9), curve
        runs += 1
    assert runs >= 6


def test_a_problem_without_an_intercept_has_no_constant() -> None:
    spec = ProblemSpec(silos=2, horizon=40, dimension=2)
    with pytest.raises(InputError, match="an intercept"):
        ALGORITHMS.choose("fedlinucb").make({"batch_size": 5, "reward_centre": 0.5}, spec)
