"""Losses of experts: what the six adversaries promise, and what they really serve."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import fastfed
from fastfed import InputError
from fastfed.cli import cli
from fastfed.environments import ENVIRONMENTS, Adversary, environment_from_spec
from fastfed.environments.base import best_expert, check_exact_sums
from fastfed.environments.losses import square_loss, square_minimum
from fastfed.simulation.experiment import make_experiment

UNIT = 2.0**-24


def rows(adversary: Adversary, silos: int, horizon: int) -> np.ndarray:
    """Return what every expert loses, (m, T, d)."""
    return np.array(
        [[adversary.losses.row(i, t) for t in range(1, horizon + 1)] for i in range(silos)]
    )


def served(environment: Any, silos: int, horizon: int, replicate: int = 0, seed: int = 0) -> Any:
    """Return the losses (silos, rounds, experts) that an environment serves."""
    return rows(environment.open(seed, replicate, silos), silos, horizon)


def uneven(seed: int, replicate: int, silo: int, round: int) -> np.ndarray:
    """Return losses of three experts that depend on all parts of the key."""
    return np.random.default_rng((seed, replicate, silo, round)).uniform(size=3)


def bowl(
    seed: int, replicate: int, silo: int, round: int, x: np.ndarray
) -> tuple[float, np.ndarray]:
    """Return the loss |x - c|^2 / 2 + <noise, x>, and its gradient; the noise has mean zero."""
    draws = np.random.default_rng((seed, replicate, silo, round)).uniform(-0.1, 0.1, 3)
    away = x - np.array([0.5, 0.3, 0.2])
    return float(away @ away / 2 + draws @ x), away + draws


ARRAY = np.random.default_rng(1).uniform(size=(12, 3))
ARRAYS = np.random.default_rng(2).uniform(size=(4, 12, 3))
OPTIMUM = [0.5, 0.3, 0.2]

#: Valid arguments of each environment, by its kind.
MADE: dict[str, dict[str, Any]] = {
    "stochastic-losses": {"experts": 3},
    "oblivious-losses": {"losses": ARRAYS},
    "realizable-losses": {"experts": 3},
    "near-realizable-losses": {"experts": 3, "optimal_loss": 2},
    "lower-bound-losses": {"experts": 3},
    "gradient-losses": {"function": bowl, "experts": 3, "optimum": OPTIMUM},
}


def make(kind: str, **keys: Any) -> Any:
    """Return the environment of a spec's table; a key whose value is `...` is left out."""
    arguments = {**MADE[kind], **keys}
    return environment_from_spec(
        {"kind": kind, **{k: v for k, v in arguments.items() if v is not ...}}
    )


FUNCTION = {"losses": ..., "function": uneven, "experts": 3}

# -- Keys ----------------------------------------------------------------

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *(
        (kind, {"experts": bad}, sentence)
        for kind in MADE
        if kind != "oblivious-losses"
        for bad, sentence in (
            (1, "experts must be an integer >= 2 and <= 16777216, got 1"),
            (2**24 + 1, "experts must be .* got 16777217"),
            (3.0, "experts must be an integer, got 3.0"),
            (True, "experts must be an integer, got True"),
            ("3", "experts must be an integer, got '3'"),
            (..., f'environment.experts is required for kind = "{kind}"'),
        )
    ),
    *(
        (kind, {"expert": 3}, f'unknown key "expert" for environment "{kind}"; did you mean')
        for kind in MADE
    ),
    ("stochastic-losses", {"mean": 1.5}, "mean must be >= 0 and <= 1, got 1.5"),
    ("stochastic-losses", {"mean": -0.1}, "mean must be >= 0 and <= 1, got -0.1"),
    ("stochastic-losses", {"mean": np.nan}, "mean must be .*got nan"),
    ("stochastic-losses", {"mean": "half"}, "mean must be a number, got 'half'"),
    ("stochastic-losses", {"gap": 0.6}, r"gap must be at most mean \(0.5\), got 0.6"),
    ("stochastic-losses", {"gap": -0.1}, "gap must be >= 0 and <= 1, got -0.1"),
    ("stochastic-losses", {"loss": "square"}, 'loss must be one of "linear", "quadratic", got'),
    ("stochastic-losses", {"loss": "quadratics"}, 'did you mean "quadratic"'),
    ("realizable-losses", {"mean": 1.01}, "mean must be >= 0 and <= 1, got 1.01"),
    ("realizable-losses", {"gap": 0.1}, 'unknown key "gap" for environment "realizable-losses"'),
    ("realizable-losses", {"lost": 2}, 'unknown key "lost"'),
    ("near-realizable-losses", {"optimal_loss": ...}, "environment.optimal_loss is required"),
    ("near-realizable-losses", {"optimal_loss": -1}, "optimal_loss must be an integer >= 0"),
    ("near-realizable-losses", {"optimal_loss": 1.5}, "optimal_loss must be an integer, got 1.5"),
    ("near-realizable-losses", {"mean": 2}, "mean must be >= 0 and <= 1, got 2"),
    ("lower-bound-losses", {"theorem": "2.5"}, 'theorem must be one of "2.4", "2.7", got'),
    ("lower-bound-losses", {"theorem": 2.4}, 'theorem must be one of "2.4", "2.7", got 2.4'),
    ("lower-bound-losses", {"burst": 4}, 'theorem = "2.7" needs burst'),
    ("lower-bound-losses", {"theorem": "2.7"}, "theorem = .2.7. needs burst"),
    ("lower-bound-losses", {"theorem": "2.7", "burst": 0}, "burst must be an integer >= 1"),
    ("lower-bound-losses", {"theorem": "2.7", "burst": 2.0}, "burst must be an integer, got 2.0"),
    ("oblivious-losses", {"losses": ...}, "give either losses, an array or a .npy file, or func"),
    ("oblivious-losses", {"function": uneven}, "give either losses, an array or a .npy file, or"),
    ("oblivious-losses", {"experts": 3}, "experts is only for function"),
    ("oblivious-losses", {"state": [1.0]}, "state is only for function"),
    ("oblivious-losses", {"optimal_loss": 1}, "optimal_loss is only for function"),
    (
        "oblivious-losses",
        {"common": True},
        r"common is only for function: losses of shape \(T, d\)",
    ),
    ("oblivious-losses", {"common": "yes"}, "common must be true or false, got 'yes'"),
    ("oblivious-losses", {**FUNCTION, "experts": ...}, "experts is required with function"),
    ("oblivious-losses", {**FUNCTION, "experts": 1}, "experts must be an integer >= 2"),
    ("oblivious-losses", {**FUNCTION, "function": 3}, "function must be a numba.cfunc, a callable"),
    ("oblivious-losses", {**FUNCTION, "function": "x"}, 'function must be "module:name", got "x"'),
    ("oblivious-losses", {**FUNCTION, "function": "no_such:f"}, "cannot be imported: No module"),
    ("oblivious-losses", {**FUNCTION, "function": "math:nil"}, 'module "math" has no "nil"'),
    ("oblivious-losses", {**FUNCTION, "state": [1.0]}, "state is only for a numba.cfunc"),
    ("oblivious-losses", {**FUNCTION, "optimal_loss": -1}, "optimal_loss must be an integer >= 0"),
    ("oblivious-losses", {**FUNCTION, "optimal_loss": 0.5}, "optimal_loss must be an integer, got"),
    ("gradient-losses", {"function": ...}, "environment.function is required"),
    ("gradient-losses", {"function": None}, "function must be a numba.cfunc, a callable or"),
    ("gradient-losses", {"optimum": ...}, "environment.optimum is required"),
    ("gradient-losses", {"optimum": [0.5, 0.5]}, r"optimum must have shape \(3,\), got \(2,\)"),
    ("gradient-losses", {"optimum": [0.5, 0.6, -0.1]}, "optimum must hold weights >= 0 that add"),
    ("gradient-losses", {"optimum": [0.5, 0.4, 0.2]}, "optimum must hold weights >= 0 that add"),
    ("gradient-losses", {"optimum": [0.5, 0.5, np.nan]}, "optimum must be finite, got nan"),
    ("gradient-losses", {"lipschitz": 0.0}, "lipschitz must be > 0, got 0.0"),
    ("gradient-losses", {"lipschitz": np.inf}, "lipschitz must be .*got inf"),
    ("gradient-losses", {"smoothness": -1.0}, "smoothness must be >= 0, got -1.0"),
    ("gradient-losses", {"spread": 0.0}, "spread must be > 0 and <= 2, got 0.0"),
    ("gradient-losses", {"spread": 2.1}, "spread must be > 0 and <= 2, got 2.1"),
    ("gradient-losses", {"state": [1.0]}, "state is only for a numba.cfunc: a Python function can"),
]


@pytest.mark.parametrize(("kind", "keys", "message"), REFUSED)
def test_every_error_is_one_sentence(kind, keys, message):
    with pytest.raises(InputError, match=message) as error:
        make(kind, **keys)
    assert "\n" not in str(error.value)


def test_all_six_are_listed():
    listed = {kind for kind in ENVIRONMENTS if kind.endswith("-losses")}
    assert listed == set(MADE)
    for kind, (cls, summary) in ENVIRONMENTS.items():
        if kind in MADE:
            assert cls.kind == make(kind).kind == kind and "loss" in summary
            assert getattr(fastfed.environments, cls.__name__) is cls


def test_an_unknown_kind():
    with pytest.raises(InputError, match='unknown environment "realisable-losses"; did you mean'):
        environment_from_spec({"kind": "realisable-losses", "experts": 3})


# -- Bad arrays and files --------------------------------------------------------------------------

BAD_ARRAYS: list[tuple[Any, str]] = [
    (np.full((3, 2), np.nan), r"losses must be finite, got nan at index \(0, 0\)"),
    (np.full((3, 2), np.inf), "losses must be finite, got inf"),
    (np.full((3, 2), 1.1), r"losses must be in \[0, 1\], got 1.1 to 1.1"),
    (np.full((3, 2), -1e-9), r"losses must be in \[0, 1\], got -1e-09 to -1e-09"),
    (np.zeros(3), r"losses must have shape \(T, d\) or \(m, T, d\), got \(3,\)"),
    (np.zeros((1, 2, 3, 4)), r"losses must have shape .* got \(1, 2, 3, 4\)"),
    (np.zeros((0, 3)), r"losses must have shape .* got \(1, 0, 3\)|\(0, 3\)"),
    (np.zeros((2, 0, 3)), r"losses must have shape .* got \(2, 0, 3\)"),
    (np.zeros((3, 1)), "experts must be an integer >= 2 .*, got 1"),
    (np.zeros((3, 2)) + 0j, "losses must be an array of numbers"),
    ([["a", "b"]], "losses must be an array of numbers"),
    ([[0.0, 1.0], [0.0]], "losses must be an array of numbers"),
    (0.5, r"losses must have shape .*, got \(\)"),
    ({}, "losses must be"),
]


@pytest.mark.parametrize(("losses", "message"), BAD_ARRAYS)
def test_bad_arrays(losses, message, tmp_path):
    with pytest.raises(InputError, match=message) as error:
        make("oblivious-losses", losses=losses)
    assert "\n" not in str(error.value)
    if isinstance(losses, np.ndarray):
        np.save(tmp_path / "bad.npy", losses)
        with pytest.raises(InputError, match=message):
            make("oblivious-losses", losses=str(tmp_path / "bad.npy"))


def write_bad(path: Path, fault: str) -> None:
    """Write a file that holds no losses."""
    if fault == "empty":
        path.write_bytes(b"")
    elif fault == "text":
        path.write_text("0.5 0.5\n")
    elif fault == "zip":
        path.write_bytes(b"PK\x03\x04 and no more")
    elif fault == "archive":
        with path.open("wb") as file:
            np.savez(file, losses=np.zeros((3, 2)))
    elif fault == "objects":
        np.save(path, np.array([None, {}], dtype=object), allow_pickle=True)
    elif fault == "folder":
        path.mkdir()
    elif fault.startswith("cut"):
        np.save(path, np.zeros((4, 3)))
        path.write_bytes(path.read_bytes()[: -8 if fault == "cut" else int(fault[4:])])


@pytest.mark.parametrize(
    "fault",
    ["missing", "empty", "text", "zip", "archive", "objects", "folder", "cut", "cut-60", "cut-7"],
)
def test_bad_files(fault, tmp_path):
    """Check that every bad file gives one sentence."""
    path = tmp_path / "losses.npy"
    write_bad(path, fault)
    with pytest.raises(InputError, match=r"losses .*(cannot be read|must be)") as error:
        make("oblivious-losses", losses=str(path))
    assert "\n" not in str(error.value)


def test_a_file_gives_the_losses_of_its_array(tmp_path):
    np.save(tmp_path / "a.npy", ARRAYS)
    np.save(tmp_path / "b.npy", ARRAYS.astype(np.float32))
    by_path, by_text = (
        make("oblivious-losses", losses=p) for p in (tmp_path / "a.npy", str(tmp_path / "a.npy"))
    )
    array = make("oblivious-losses")
    assert by_path.describe() == by_text.describe() == array.describe()
    np.testing.assert_array_equal(served(by_path, 4, 12), served(array, 4, 12))
    single = make("oblivious-losses", losses=str(tmp_path / "b.npy"))
    assert np.abs(served(single, 4, 12) - ARRAYS).max() < 2.0**-23
    nested = make("oblivious-losses", losses=ARRAYS.tolist())
    assert nested.describe() == array.describe()


def test_a_file_beside_its_spec(tmp_path, monkeypatch):
    """Check that the path is relative to the spec, wherever the command is run."""
    (tmp_path / "specs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    np.save(tmp_path / "specs" / "mine.npy", ARRAY)
    spec = tmp_path / "specs" / "mine.toml"
    spec.write_text(
        'name = "mine"\nhorizon = 12\nsilos = 2\n'
        '[environment]\nkind = "oblivious-losses"\nlosses = "mine.npy"\n'
        '[[curve]]\nlabel = "a"\nalgorithm = "hedge"\n'
    )
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = CliRunner().invoke(cli, ["privacy", str(spec)])
    assert result.exit_code == 0, result.output


# -- What is served, against the facts -------------------------------------------------------------

FITTING: list[tuple[str, dict[str, Any]]] = [
    ("stochastic-losses", {}),
    ("stochastic-losses", {"mean": 1.0, "gap": 1.0}),
    ("stochastic-losses", {"loss": "quadratic", "mean": 0.9, "gap": 0.05}),
    ("oblivious-losses", {}),
    ("oblivious-losses", {"losses": ARRAY}),
    ("oblivious-losses", FUNCTION),
    ("realizable-losses", {}),
    ("realizable-losses", {"mean": 1.0}),
    ("near-realizable-losses", {}),
    ("lower-bound-losses", {}),
    ("lower-bound-losses", {"theorem": "2.7", "burst": 5}),
    ("gradient-losses", {}),
]


def points(d: int) -> np.ndarray:
    """Return points of the simplex: corners, middle and ten random ones."""
    draw = np.random.default_rng(0)
    return np.concatenate([np.eye(d), np.full((1, d), 1 / d), draw.dirichlet(np.ones(d), 10)])


def value_and_gradient(adversary: Adversary, silo: int, round: int, x: np.ndarray) -> Any:
    """Return the loss at x and its gradient, from rows where there are any."""
    losses = adversary.losses
    if not losses.has_rows:
        return losses.value(silo, round, x)
    row = losses.row(silo, round)
    if losses.quadratic:
        return 0.5 * float(row @ x) ** 2, row * float(row @ x)
    return float(row @ x), row


@pytest.mark.parametrize(("kind", "keys"), FITTING)
def test_facts_hold_for_what_is_served(kind, keys):
    """Check Lipschitz constant, spread, smoothness and range of every loss at several points."""
    environment = make(kind, **keys)
    facts = environment.facts(4, 12)
    opened_environment = environment.open(3, 1, 4)
    assert (
        facts.dimension == opened_environment.losses.experts == 3
        and opened_environment.losses.silos == 4
    )
    assert facts.linear == (
        opened_environment.losses.has_rows and not opened_environment.losses.quadratic
    )
    x = points(3)
    low, high, seen = np.inf, -np.inf, 0.0
    tolerance = 1e-12
    for silo, t in itertools.product(range(4), range(1, 13)):
        actual = [value_and_gradient(opened_environment, silo, t, p) for p in x]
        values, gradients = np.array([f[0] for f in actual]), np.array([f[1] for f in actual])
        low, high = min(low, gradients.min()), max(high, gradients.max())
        assert np.abs(gradients).max() <= facts.lipschitz + tolerance
        assert values.max() - values.min() <= facts.loss_range + tolerance
        for i, j in itertools.combinations(range(len(x)), 2):
            moved = np.abs(x[i] - x[j]).sum()
            assert np.abs(gradients[i] - gradients[j]).max() <= facts.smoothness * moved + tolerance
            # Convex: above its tangents.
            assert values[j] >= values[i] + gradients[i] @ (x[j] - x[i]) - tolerance
        seen = max(seen, np.abs(gradients).max())
        if facts.linear:
            assert (gradients >= 0).all() and (gradients <= 1).all()
    assert high - low <= facts.spread + tolerance
    assert seen > 0.1
    if facts.optimal_loss is not None:
        lost = rows(opened_environment, 4, 12).sum(axis=1)
        assert lost.max(axis=0).min() <= facts.optimal_loss
    if facts.iid:
        assert (
            opened_environment.suboptimality is not None or opened_environment.optimum is not None
        )


@pytest.mark.parametrize(("kind", "keys"), FITTING)
def test_sums_and_gradients_are_those_of_rows(kind, keys):
    """Compare sums in integer units, for several numbers of threads and splits of the rounds."""
    opened_environment = make(kind, **keys).open(3, 1, 4)
    x = points(3)[-1]
    order = np.array([np.random.default_rng(i).permutation(12)[:5] + 1 for i in range(4)])
    actual = opened_environment.losses.gradients(order, x)
    expected = [
        sum(value_and_gradient(opened_environment, i, int(t), x)[1] for t in order[i])
        for i in range(4)
    ]
    np.testing.assert_allclose(actual, expected, atol=1e-12)
    np.testing.assert_array_equal(actual, opened_environment.losses.gradients(order, x, 3))
    if not opened_environment.losses.has_rows:
        return
    table = rows(opened_environment, 4, 12)
    edges = np.array([0, 1, 5, 6, 12])
    parts = [table[:, a:b].sum(axis=(0, 1)) for a, b in itertools.pairwise(edges)]
    for threads in (1, 3):
        sums = opened_environment.losses.sums(edges, threads)
        assert sums.dtype == np.int64
        np.testing.assert_array_equal(sums * opened_environment.losses.unit, parts)


def test_facts_of_each_environment():
    """Compare with the docstrings of the environments."""
    facts_of = {
        (kind, i): make(kind, **keys).facts(4, 12) for i, (kind, keys) in enumerate(FITTING)
    }
    promised = [facts.optimal_loss for facts in facts_of.values()]
    assert promised == [None] * 6 + [0.0, 0.0, 2.0, None, 0.0, None]
    assert [facts.iid for facts in facts_of.values()] == [True] * 3 + [False] * 8 + [True]
    assert make("oblivious-losses", **FUNCTION, optimal_loss=3).facts(1, 9).optimal_loss == 3.0
    assert any("trust" in n for n in make("oblivious-losses", **FUNCTION).facts(1, 9).notes)
    assert any("trust" in n for n in make("gradient-losses").facts(1, 9).notes)
    narrow = make("gradient-losses", lipschitz=3.0, spread=0.5, smoothness=7.0).facts(1, 9)
    assert (narrow.lipschitz, narrow.spread, narrow.smoothness) == (3.0, 0.5, 7.0)
    wide = make("gradient-losses", lipschitz=3.0).facts(1, 9)
    assert (wide.spread, wide.loss_range, wide.linear) == (6.0, 6.0, False)


# -- Identity --------------------------------------------------------------------------------------

DIFFERENT: list[tuple[str, dict[str, Any]]] = [
    *FITTING,
    ("stochastic-losses", {"experts": 4}),
    ("stochastic-losses", {"mean": 0.6}),
    ("stochastic-losses", {"gap": 0.2}),
    ("realizable-losses", {"experts": 4}),
    ("realizable-losses", {"mean": 0.25}),
    ("near-realizable-losses", {"optimal_loss": 3}),
    ("near-realizable-losses", {"mean": 0.9}),
    ("lower-bound-losses", {"experts": 4}),
    ("lower-bound-losses", {"theorem": "2.7", "burst": 6}),
    ("oblivious-losses", {"losses": ARRAY[None].repeat(2, axis=0)}),
    ("oblivious-losses", {"losses": np.clip(ARRAY + 2 * UNIT, 0, 1)}),
    ("oblivious-losses", {**FUNCTION, "common": True}),
    ("oblivious-losses", {**FUNCTION, "optimal_loss": 4}),
    ("oblivious-losses", {**FUNCTION, "function": lambda *key: uneven(*key) / 2}),
    ("gradient-losses", {"lipschitz": 2.0}),
    ("gradient-losses", {"smoothness": 2.0}),
    ("gradient-losses", {"spread": 1.5}),
    ("gradient-losses", {"optimum": [0.2, 0.3, 0.5]}),
    ("gradient-losses", {"function": lambda *key: bowl(*key)}),
]


def test_descriptions_identify_losses():
    """Check that equal descriptions mean equal losses; all descriptions are plain data."""
    seen: dict[str, int] = {}
    for position, (kind, keys) in enumerate(DIFFERENT):
        text = json.dumps(make(kind, **keys).describe(), sort_keys=True)
        assert text == json.dumps(make(kind, **keys).describe(), sort_keys=True)
        assert seen.setdefault(text, position) == position, (kind, keys, seen[text])
        assert json.loads(text)["kind"] == kind


@pytest.mark.parametrize(("kind", "keys"), FITTING)
def test_losses_are_a_function_of_their_key(kind, keys):
    """Query losses in several orders; seeds and replicates differ if the losses are random."""
    x = points(3)[-1]

    def losses(seed: int, replicate: int) -> np.ndarray:
        opened_environment = make(kind, **keys).open(seed, replicate, 4)
        return np.array(
            [
                value_and_gradient(opened_environment, i, t, x)[1]
                for i in range(4)
                for t in range(1, 13)
            ]
        )

    first = losses(0, 0)
    np.testing.assert_array_equal(first, losses(0, 0))
    opened_environment = make(kind, **keys).open(0, 0, 4)
    backwards = [
        value_and_gradient(opened_environment, i, t, x)[1]
        for i in reversed(range(4))
        for t in reversed(range(1, 13))
    ]
    np.testing.assert_array_equal(first, backwards[::-1])
    fixed = "losses" in MADE[kind] and keys.get("losses") is not ...
    others = [losses(s, r) for s, r in ((1, 0), (2, 0), (3, 0), (0, 1), (0, 2), (0, 3))]
    assert any((first != other).any() for other in others[:3]) != fixed
    assert any((first != other).any() for other in others[3:]) != fixed


def test_a_changed_array_does_not_change_the_losses():
    losses = ARRAYS.copy()
    environment = make("oblivious-losses", losses=losses)
    before, described = served(environment, 4, 12), environment.describe()
    losses[:] = 0.0
    np.testing.assert_array_equal(served(environment, 4, 12), before)
    assert environment.describe() == described


# -- The best expert -------------------------------------------------------------------------------


def best_of(environment: Any, replicate: int, seed: int = 0) -> int:
    """Return the expert with the least losses at three clients in 40 rounds."""
    return int(served(environment, 3, 40, replicate, seed).sum(axis=(0, 1)).argmin())


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("stochastic-losses", {"mean": 0.9, "gap": 0.8}),
        ("realizable-losses", {"mean": 0.9}),
        ("near-realizable-losses", {"mean": 0.9, "optimal_loss": 5}),
        ("lower-bound-losses", {"theorem": "2.7", "burst": 9}),
    ],
)
def test_the_best_expert_differs_between_replicates(kind, keys):
    environment = make(kind, **keys, experts=5)
    actual = [best_of(environment, replicate) for replicate in range(60)]
    assert actual == [best_expert(0, replicate, 5) for replicate in range(60)]
    assert set(actual) == set(range(5))
    assert actual != [best_of(environment, replicate, seed=1) for replicate in range(60)]


@pytest.mark.parametrize("experts", [2, 3, 7])
def test_the_best_expert_is_uniform(experts):
    """Check that in 4 000 replicates each share is within five standard errors of 1/d."""
    counts = np.bincount(
        [best_expert(s, r, experts) for s in range(8) for r in range(500)], minlength=experts
    )
    p = 1 / experts
    assert np.abs(counts - 4000 * p).max() < 5 * np.sqrt(4000 * p * (1 - p))


def test_the_first_guess_knows_nothing_of_the_best_expert():
    """The guess and the best expert use one seed; a shared draw would make them equal."""
    from fastfed.experts.plan import start_expert

    d = 4
    table = np.zeros((d, d))
    for seed, replicate in itertools.product(range(8), range(500)):
        start = start_expert(d, fastfed.parties.SeededNoise(seed, replicate))
        table[best_expert(seed, replicate, d), start] += 1
    p = 1 / d**2
    assert np.abs(table - 4000 * p).max() < 5 * np.sqrt(4000 * p * (1 - p))


# -- Each kind -------------------------------------------------------------------------------------


def test_coins_have_their_chances():
    """Check 20 000 coins for each expert to within five standard errors."""
    environment = make("stochastic-losses", experts=4, mean=0.7, gap=0.3)
    opened_environment = environment.open(2, 0, 20)
    best = best_expert(2, 0, 4)
    totals = opened_environment.losses.sums(np.array([0, 1000]))[0] / 20_000
    expected = np.full(4, 0.7)
    expected[best] = 0.4
    assert np.abs(totals - expected).max() < 5 * np.sqrt(0.25 / 20_000)
    table = rows(opened_environment, 20, 200) - expected
    assert set(np.unique(rows(opened_environment, 2, 20))) == {0.0, 1.0}
    for a, b in (
        (table[:-1], table[1:]),
        (table[:, :-1], table[:, 1:]),
        (table[..., :-1], table[..., 1:]),
    ):
        assert abs((a * b).mean()) < 5 * 0.25 / np.sqrt(a.size)


def test_losses_with_mean_0_or_1_are_constant():
    for mean, gap in ((1.0, 0.0), (0.0, 0.0), (1.0, 1.0)):
        table = served(make("stochastic-losses", mean=mean, gap=gap), 3, 200)
        expected = np.full(3, mean)
        expected[best_expert(0, 0, 3)] = mean - gap
        np.testing.assert_array_equal(table, np.broadcast_to(expected, table.shape))


@pytest.mark.parametrize("loss", ["linear", "quadratic"])
def test_pseudo_regret_is_against_the_law(loss):
    """Compare with the mean of 30 000 losses, minus the expected loss of the best point."""
    environment = make("stochastic-losses", loss=loss, experts=4, mean=0.6, gap=0.35)
    opened_environment = environment.open(1, 0, 10)
    assert opened_environment.suboptimality is not None
    g = rows(opened_environment, 10, 3000).reshape(-1, 4)
    means = np.full(4, 0.6)
    means[best_expert(1, 0, 4)] = 0.25
    grid = np.array([p for p in itertools.product(np.linspace(0, 1, 21), repeat=3) if sum(p) <= 1])
    simplex = np.column_stack([grid, 1 - grid.sum(axis=1)])
    if loss == "linear":
        law, least = simplex @ means, means.min()
    else:
        law, least = np.array([square_loss(means, p) for p in simplex]), square_minimum(means)
    assert least <= law.min() + 1e-12 and law.min() - least < 2e-3
    for x, expected in zip(simplex[::97], law[::97], strict=True):
        draws = g @ x if loss == "linear" else 0.5 * (g @ x) ** 2
        assert abs(draws.mean() - expected) < 5 * draws.std() / np.sqrt(len(draws)) + 1e-12
        assert opened_environment.suboptimality(x) == pytest.approx(expected - least, abs=1e-8)


@pytest.mark.parametrize("mean", [0.0, 0.3, 1.0])
def test_the_realizable_expert_never_loses(mean):
    for replicate in range(5):
        table = served(make("realizable-losses", experts=4, mean=mean), 3, 300, replicate)
        best = best_expert(0, replicate, 4)
        assert table[..., best].sum() == 0.0
        others = np.delete(table, best, axis=2)
        assert abs(others.mean() - mean) < 5 * np.sqrt(mean * (1 - mean) / others.size) + 1e-12
        if 0 < mean < 1:
            assert (table[0] != table[1]).any()


@pytest.mark.parametrize(("lost", "horizon"), [(0, 50), (1, 50), (7, 50), (25, 50), (40, 50)])
def test_the_near_realizable_expert_loses_in_exactly_the_declared_rounds(lost, horizon):
    environment = make("near-realizable-losses", experts=4, optimal_loss=lost, mean=0.8)
    for replicate in range(3):
        table = served(environment, 3, horizon, replicate)
        best_losses = table[..., best_expert(0, replicate, 4)]
        # In rounds 2, 4, ..., 2 L* at every client, as far as there are rounds.
        expected = [float(t % 2 == 0 and t <= 2 * lost) for t in range(1, horizon + 1)]
        np.testing.assert_array_equal(best_losses, [expected] * 3)
        assert (best_losses.sum(axis=1) == min(lost, horizon // 2)).all()
    assert environment.facts(3, horizon).optimal_loss == float(lost)


def test_near_realizable_with_optimal_loss_0_is_realizable():
    lossless = served(make("near-realizable-losses", optimal_loss=0), 3, 60)
    np.testing.assert_array_equal(lossless, served(make("realizable-losses"), 3, 60))
    # The coins of the other experts do not depend on the losses of the best one.
    other = served(make("near-realizable-losses", optimal_loss=9), 3, 60)
    best = best_expert(0, 0, 3)
    np.testing.assert_array_equal(np.delete(lossless, best, 2), np.delete(other, best, 2))


def test_theorem_2_4_is_the_same_at_all_clients():
    table = served(make("lower-bound-losses", experts=5), 4, 400)
    for silo in range(1, 4):
        np.testing.assert_array_equal(table[0], table[silo])
    assert set(np.unique(table)) == {0.0, 1.0}
    # 2 000 fair coins, and no expert that is better.
    assert abs(table[0].mean() - 0.5) < 5 * 0.5 / np.sqrt(2000)
    assert np.abs(table[0].mean(axis=0) - 0.5).max() < 5 * 0.5 / np.sqrt(400)
    more = served(make("lower-bound-losses", experts=5), 1, 400)
    np.testing.assert_array_equal(more[0], table[0])


@pytest.mark.parametrize("burst", [1, 5, 40])
def test_theorem_2_7_is_a_burst(burst):
    environment = make("lower-bound-losses", experts=4, theorem="2.7", burst=burst)
    for replicate in range(4):
        table = served(environment, 3, 30, replicate)
        best = best_expert(0, replicate, 4)
        expected = np.zeros((30, 4))
        expected[:burst] = 1.0
        expected[:, best] = 0.0
        np.testing.assert_array_equal(table, [expected] * 3)


def test_arrays_are_served_as_they_are():
    one, each = make("oblivious-losses", losses=ARRAY), make("oblivious-losses")
    assert (one.natural_silos(), each.natural_silos()) == (None, 4)
    np.testing.assert_allclose(served(one, 6, 12), [ARRAY] * 6, atol=UNIT / 2)
    np.testing.assert_allclose(served(each, 4, 12), ARRAYS, atol=UNIT / 2)
    # Losses of one client are served to any number of clients.
    alone = make("oblivious-losses", losses=ARRAYS[:1])
    assert alone.natural_silos() is None
    np.testing.assert_array_equal(served(alone, 2, 12)[1], served(each, 4, 12)[0])


def test_losses_are_multiples_of_a_unit():
    given = np.array([[0.0, 1.0, UNIT, 1.5 * UNIT, 0.4 * UNIT, 1 / 3]])
    (table,) = served(make("oblivious-losses", losses=given), 1, 1)
    units = table[0] / UNIT
    assert units.tolist() == [0.0, 2.0**24, 1.0, 2.0, 0.0, round(2**24 / 3)]
    assert (
        make("oblivious-losses", losses=given).describe()
        == make("oblivious-losses", losses=table).describe()
    )
    whole = make("oblivious-losses", losses=np.array([[0, 1], [1, 0]]))
    assert served(whole, 1, 2)[0].tolist() == [[0.0, 1.0], [1.0, 0.0]]
    # Functions too, so that their sums do not depend on order.
    (table,) = served(make("oblivious-losses", **FUNCTION), 1, 20)
    assert (table / UNIT == np.rint(table / UNIT)).all()
    exact = [uneven(0, 0, 0, t) for t in range(1, 21)]
    np.testing.assert_allclose(table, exact, atol=UNIT / 2 * (1 + 1e-9))


def test_silos_and_rounds_of_an_array():
    keys: dict[str, Any] = {"algorithm": "hedge", "replicates": 1}
    each = make("oblivious-losses")
    results = fastfed.simulate(each, horizon=12, checkpoints=12, **keys).curves[0]
    assert results.silos == 4 and results.dimension == 3
    with pytest.raises(InputError, match="silos must be 4 for these data, got 5"):
        fastfed.simulate(each, horizon=12, silos=5, **keys)
    with pytest.raises(
        InputError, match="horizon must be at most 12, the rounds of losses, got 13"
    ):
        fastfed.simulate(each, horizon=13, **keys)
    with pytest.raises(InputError, match="silos is required"):
        fastfed.simulate(make("oblivious-losses", losses=ARRAY), horizon=12, **keys)
    assert fastfed.simulate(each, horizon=5, **keys).horizon == 5


def test_regret_is_against_the_best_expert_in_hindsight():
    """Compare at every checkpoint with the best expert of the rounds so far."""
    for losses in (ARRAY, ARRAYS):
        environment = make("oblivious-losses", losses=losses)
        curve = fastfed.simulate(
            environment, "hedge", horizon=12, silos=4, checkpoints=12, learning_rate=2.0
        ).curves[0]
        table = np.rint(np.broadcast_to(losses, (4, 12, 3)) / UNIT) * UNIT
        x, total, lost, expected = np.full(3, 1 / 3), np.zeros(3), 0.0, []
        for t in range(12):
            if t:
                weights = np.exp(-2.0 * (total - total.min()) / 4)
                x = weights / weights.sum()
            lost += float(table[:, t].sum(axis=0) @ x)
            total += table[:, t].sum(axis=0)
            expected.append(lost - total.min())
        np.testing.assert_allclose(curve.group_regret[0], expected, atol=1e-9)


@pytest.mark.parametrize("kind", list(MADE))
def test_sums_that_float64_cannot_hold_exactly_are_refused(kind):
    """Check sums above 2^53 units, which float64 does not hold exactly."""
    if kind == "gradient-losses":
        assert make(kind).facts(2**31, 2**32 - 2).dimension == 3
        return
    environment = make(kind, **(FUNCTION if kind == "oblivious-losses" else {}))
    most = 2**29 if kind == "oblivious-losses" else 2**53
    horizon = 2**22
    assert environment.facts(most // horizon, horizon).dimension == 3
    with pytest.raises(InputError, match="silos times horizon must be at most "):
        environment.facts(most // horizon + 1, horizon)
    check_exact_sums(2, 2**52, 1.0)
    with pytest.raises(InputError, match=r"at most 5\.37e\+08 for these losses, got 5\.37e\+09"):
        check_exact_sums(10, 2**29, UNIT)


# -- Functions -------------------------------------------------------------------------------------


def test_a_plain_function_is_called_with_its_key():
    keys_seen: list[tuple[int, ...]] = []

    def losses_of(seed: int, replicate: int, silo: int, round: int) -> list[float]:
        keys_seen.append((seed, replicate, silo, round))
        return [silo / 8, round / 16, 1.0]

    environment = make("oblivious-losses", **{**FUNCTION, "function": losses_of})
    table = served(environment, 2, 3, replicate=5, seed=9)
    assert keys_seen == [(9, 5, i, t) for i in range(2) for t in range(1, 4)]
    assert table[1, 2].tolist() == [1 / 8, 3 / 16, 1.0]
    keys_seen.clear()
    common = make("oblivious-losses", **{**FUNCTION, "function": losses_of}, common=True)
    table = served(common, 2, 3)
    assert {key[2] for key in keys_seen} == {0}
    np.testing.assert_array_equal(table[0], table[1])


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        ([0.0, 1.0], r"losses must have shape \(3,\), got \(2,\)"),
        ([0.0, 1.0, 1.5], r"losses must be in \[0, 1\], got 0 to 1.5"),
        ([0.0, -0.5, 1.0], r"losses must be in \[0, 1\], got -0.5 to 1"),
        ([0.0, np.nan, 1.0], "losses must be finite, got nan"),
        ("no", "losses must be an array of numbers"),
        (None, "losses must"),
    ],
)
def test_what_a_function_returns_is_checked(returned, sentence):
    """Check every driver; a note names the round."""
    environment = make("oblivious-losses", **{**FUNCTION, "function": lambda *key: returned})
    for driver in ("compiled", "step"):
        with pytest.raises(InputError, match=sentence) as error:
            fastfed.simulate(environment, "hedge", horizon=5, silos=2, driver=driver)
        assert any("in the environment's function" in note for note in error.value.__notes__)


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (0.5, r"function must return \(loss, gradient\)"),
        ((0.5, [0.0, 1.0]), r"gradient must have shape \(3,\), got \(2,\)"),
        ((0.5, [0.0, 1.0, np.inf]), "gradient must be finite, got inf"),
        ((np.nan, [0.0, 1.0, 0.0]), "loss must be finite, got nan"),
        (("a", [0.0, 1.0, 0.0]), "loss must be a number, got 'a'"),
    ],
)
def test_what_a_gradient_function_returns_is_checked(returned, sentence):
    environment = make("gradient-losses", function=lambda *key: returned)
    for driver in ("compiled", "step"):
        with pytest.raises(InputError, match=sentence):
            fastfed.simulate(
                environment, "fed-dp-ope-stoch", horizon=40, silos=2, noise="none", driver=driver
            )


def test_a_failing_function_says_where():
    def failing(seed: int, replicate: int, silo: int, round: int) -> np.ndarray:
        if (silo, round) == (1, 3):
            raise KeyError("my own")
        return np.zeros(3)

    environment = make("oblivious-losses", **{**FUNCTION, "function": failing})
    with pytest.raises(KeyError, match="my own") as error:
        fastfed.simulate(environment, "follow-the-leader", horizon=5, silos=2)
    assert "silo 1, round 3" in error.value.__notes__[0]


def test_regret_of_gradient_losses_is_against_the_optimum():
    """Compare with a calculation by hand, in which x_1 is used in all rounds."""
    environment = make("gradient-losses")
    curve = fastfed.simulate(
        environment, "fed-dp-ope-stoch", horizon=3, silos=2, checkpoints=3, noise="none"
    ).curves[0]
    x, total, expected = np.full(3, 1 / 3), 0.0, []
    for t in range(1, 4):
        for i in range(2):
            total += bowl(0, 0, i, t, x)[0] - bowl(0, 0, i, t, np.array(OPTIMUM))[0]
        expected.append(total)
    np.testing.assert_allclose(curve.group_regret[0], expected, atol=1e-12)


def test_gradient_losses_are_learnt():
    environment = make("gradient-losses", lipschitz=1.1)
    curves = [
        {"label": "plain", "algorithm": "fed-dp-ope-stoch", "noise": "none", "batch": "largest"},
        {"label": "quiet", "algorithm": "fed-dp-ope-stoch", "epsilon": 500.0, "batch": "largest"},
    ]
    results = fastfed.simulate(environment, horizon=500, silos=3, replicates=3, curves=curves)
    start = 0.5 * float(((np.full(3, 1 / 3) - OPTIMUM) ** 2).sum()) * 3 * 500
    for curve in results.curves:
        assert curve.mean[-1] < 0.6 * start
    step = fastfed.simulate(
        environment, horizon=500, silos=3, replicates=1, curves=curves, driver="step"
    )
    for a, b in zip(results.curves, step.curves, strict=True):
        np.testing.assert_array_equal(a.group_regret[:1], b.group_regret)
    assert results["quiet"].certificate["status"] == "proven"
    assert any("taken on trust" in c for c in results["quiet"].certificate["caveats"])


def test_compiled_functions():
    """Check that numba.cfuncs with a state give the losses of plain functions."""
    numba = pytest.importorskip("numba")
    state = np.array([0.25, 0.5])

    @numba.cfunc(fastfed.environments.losses_signature())
    def coded(state, seed, replicate, silo, round, loss):
        loss[0] = state[0]
        loss[1] = state[1] * (round % 2)
        loss[2] = silo / 4
        return 0

    def plain(seed: int, replicate: int, silo: int, round: int) -> list[float]:
        return [0.25, 0.5 * (round % 2), silo / 4]

    compiled = fastfed.environments.ObliviousLosses(function=coded, experts=3, state=state)
    called = fastfed.environments.ObliviousLosses(function=plain, experts=3)
    np.testing.assert_array_equal(served(compiled, 4, 9), served(called, 4, 9))
    assert compiled.describe() != called.describe()
    other = fastfed.environments.ObliviousLosses(function=coded, experts=3, state=state + 0.125)
    assert other.describe() != compiled.describe()

    @numba.cfunc(fastfed.environments.gradient_signature())
    def slope(state, seed, replicate, silo, round, x, gradient):
        for n in range(3):
            gradient[n] = x[n] * state[0]
        return 0.5 * state[0] * (x[0] ** 2 + x[1] ** 2 + x[2] ** 2)

    keys = {"experts": 3, "optimum": [1 / 3] * 3}
    environment = (
        fastfed.environments.GradientLosses(function=slope, state=state, **keys)
        .open(0, 0, 2)
        .losses
    )
    value, gradient = environment.value(0, 1, np.array([0.5, 0.5, 0.0]))
    assert value == pytest.approx(0.0625) and gradient.tolist() == [0.125, 0.125, 0.0]


@pytest.mark.parametrize("bad_value", [-1.0, 1.5, np.nan, None])
def test_a_compiled_function_that_fails(bad_value):
    numba = pytest.importorskip("numba")
    fails, value = bad_value is None, 0.0 if bad_value is None else bad_value

    @numba.cfunc(fastfed.environments.losses_signature())
    def coded(state, seed, replicate, silo, round, loss):
        for n in range(3):
            loss[n] = value
        return -1 if fails else 0

    environment = fastfed.environments.ObliviousLosses(function=coded, experts=3)
    sentence = "reported a failure" if bad_value is None else r"returned a number outside \[0, 1\]"
    for driver in ("compiled", "step"):
        with pytest.raises(RuntimeError, match=sentence):
            fastfed.simulate(environment, "hedge", horizon=5, silos=2, driver=driver)


def test_numbers_of_the_environment_in_a_curve_change_its_losses():
    for kind, keys in (
        ("stochastic-losses", {"mean": 0.9, "gap": 0.2, "experts": 7}),
        ("realizable-losses", {"mean": 0.9}),
    ):
        curves = [
            {"label": "base", "algorithm": "hedge"},
            {"label": "changed", "algorithm": "hedge", **keys},
        ]
        run = {"horizon": 30, "silos": 2, "checkpoints": 5}
        results = fastfed.simulate(make(kind), curves=curves, **run)
        separate = fastfed.simulate(dataclasses.replace(make(kind), **keys), "hedge", **run)
        np.testing.assert_array_equal(
            results["changed"].group_regret, separate.curves[0].group_regret
        )
        assert (results["changed"].group_regret != results["base"].group_regret).any()


def losses_of(clients: str, **keys: Any) -> fastfed.environments.ObliviousLosses:
    """Return an environment of the same losses, given once, for each client, or by a function."""
    table = (np.random.default_rng(4).random((64, 4)) < 0.5).astype(float)
    if clients == "function":
        return fastfed.environments.ObliviousLosses(
            function=lambda seed, replicate, silo, t: table[t - 1], experts=4, **keys
        )
    given = table if clients == "shared" else np.repeat(table[None], 20, axis=0)
    return fastfed.environments.ObliviousLosses(losses=given, **keys)


@pytest.mark.parametrize(
    ("clients", "keys", "uses"),
    [
        ("shared", {}, 20),
        ("each", {}, 1),  # equal rows are not detected, because this would look at the data
        ("each", {"multiplicity": 3}, 3),
        ("shared", {"multiplicity": 2}, 40),
        ("function", {}, 1),
        ("function", {"common": True}, 20),
        ("function", {"common": True, "multiplicity": 2}, 40),
    ],
)
def test_how_often_a_record_is_used_is_declared(clients, keys, uses):
    environment = losses_of(clients, **keys)
    assert environment.facts(20, 64).multiplicity == uses
    assert ("multiplicity" in environment.describe()) == ("multiplicity" in keys)


def test_losses_common_to_all_clients_count_once_per_client():
    uses = {
        kind: make(kind).facts(20, 10).multiplicity
        for kind in ("stochastic-losses", "realizable-losses", "lower-bound-losses")
    }
    assert uses == {"stochastic-losses": 1, "realizable-losses": 1, "lower-bound-losses": 20}
    with pytest.raises(InputError, match="multiplicity must be an integer >= 1 and"):
        losses_of("each", multiplicity=0)


@pytest.mark.parametrize("curve", [
    {"algorithm": "fed-svt", "epsilon": 1.0, "optimal_loss": 30.0, "switches": 1},
    {"algorithm": "fed-svt", "epsilon": 0.01, "delta": 1e-6, "optimal_loss": 30.0},
    {"algorithm": "fed-dp-ope-stoch", "epsilon": 1.0, "batch": "largest", "smoothness": 1e6},
    {"algorithm": "fed-dp-ope-stoch", "epsilon": 1.0, "batch": "largest", "smoothness": 1e6,
     "protect": "messages"},
    {"algorithm": "fed-dp-ope-stoch", "epsilon": 1.0, "batch": "largest", "smoothness": 1e6,
     "noise": "central"},
])  # fmt: skip
def test_a_loss_common_to_all_clients_costs_epsilon_for_each(curve):
    """Check epsilon if 20 clients share one row; an earlier version stated 1."""
    shared, each = (
        fastfed.simulate(losses_of(clients), curves=[curve], silos=20, horizon=64)
        .curves[0].certificate for clients in ("shared", "each")
    )  # fmt: skip
    assert each["status"] == shared["status"] == "proven"
    assert each["exact"]["epsilon"] <= curve["epsilon"] * (1 + 1e-9)
    assert shared["exact"]["epsilon"] >= 20 * each["exact"]["epsilon"] * (1 - 1e-9) > 0.0
    (claim,) = [c["text"] for c in shared["conditions"] if not c["holds"]]
    assert claim.startswith("the proven epsilon of 20 losses replaced together, ")
    assert any("one record can be behind 20 losses" in c for c in shared["caveats"])
    item_claims = [also for also in shared["also"] if also["unit"] == "item"]
    assert [also["exact"] for also in item_claims] == [each["exact"]]
    assert "neighbours differ in one loss of one client" in item_claims[0]["model"]


def test_one_row_that_20_clients_meet_moves_a_choice_beyond_the_claim():
    """Compute the likelihood ratio of one choice: above the claim, below the account."""
    curve = {"algorithm": "fed-svt", "epsilon": 1.0, "optimal_loss": 0.0, "switches": 1}
    (experiment,) = make_experiment(
        name="x", environment=losses_of("shared"), curves=[curve], silos=20, horizon=64
    ).curves
    plan, stated = experiment.system.plan, experiment.system.certificate
    row, other = 20.0 * np.array([0.0, 1, 1, 1]), 20.0 * np.array([1.0, 0, 0, 0])
    ratio = np.abs(
        plan.noise.choices.log_probabilities(row) - plan.noise.choices.log_probabilities(other)
    ).max()
    assert 6.0 < ratio <= stated.exact.epsilon == pytest.approx(20.0)
