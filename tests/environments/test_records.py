"""Records as arrays, and the two codings of an action's features."""

from __future__ import annotations

import numpy as np
import pytest

import fastfed
from fastfed import InputError
from fastfed.environments import Classification

DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(30, 4))
Y = np.arange(30) % 3
SILO = ["b"] * 8 + ["a"] * 12 + ["b"] * 10


def rows(environment, query):
    """Return (features, expected rewards) of the actions of a query."""
    pool = environment.pool(environment.natural_silos())
    return pool.rows(query), pool.means[pool.starts[query] : pool.starts[query + 1]]


def test_blocks_hold_the_record_in_the_action_s_own_block():
    environment = Classification.from_arrays(X, Y, SILO, norm=2.0)
    assert environment.natural_silos() == 2
    by_silo = [i for i in range(30) if SILO[i] == "b"] + [i for i in range(30) if SILO[i] == "a"]
    for query, record in enumerate(by_silo):
        z = np.append(X[record], 1.0)
        z /= max(2.0, np.linalg.norm(z))
        x, means = rows(environment, query)
        expected = np.kron(np.eye(3), z)
        np.testing.assert_allclose(x, expected, atol=3e-6)
        assert np.linalg.norm(x.astype(np.float64), axis=1).max() <= 1.0
        assert means.tolist() == [float(a == Y[record]) for a in range(3)]


def test_a_public_norm_scales_each_record_independently():
    """With a public norm a record's features do not depend on any other record."""
    base = Classification.from_arrays(X, Y, SILO, norm=1.5)
    other = X.copy()
    other[29] *= 50.0
    moved = Classification.from_arrays(other, Y, SILO, norm=1.5)
    np.testing.assert_array_equal(rows(base, 3)[0], rows(moved, 3)[0])
    without_norm = (
        Classification.from_arrays(X, Y, SILO),
        Classification.from_arrays(other, Y, SILO),
    )
    assert not np.array_equal(rows(without_norm[0], 3)[0], rows(without_norm[1], 3)[0])
    notes = [" ".join(e.facts(2, 5).notes) for e in (base, without_norm[0])]
    assert "known without the data" in notes[0] and "taken as public" not in notes[0]
    assert "taken as public" in notes[1]


def test_a_csv_and_its_arrays_are_the_same_records(tmp_path):
    lines = ["u,v,kind,ward"]
    scaled = (X[:, :2] - X[:, :2].min(axis=0)) / np.ptp(X[:, :2], axis=0)
    lines += [
        f"{u!r},{v!r},{y},{w}" for (u, v), y, w in zip(X[:, :2].tolist(), Y, SILO, strict=True)
    ]
    path = tmp_path / "records.csv"
    path.write_text("\n".join(lines))
    for coding in ("blocks", "projection"):
        file = Classification(data=str(path), label="kind", silo="ward", coding=coding)
        arrays = Classification.from_arrays(scaled, Y, SILO, coding=coding)
        for query in (0, 17, 29):
            np.testing.assert_allclose(rows(file, query)[0], rows(arrays, query)[0], atol=1e-6)


def test_blocks_learn_what_a_projection_to_few_numbers_cannot():
    label = (X[:, 0] > 0).astype(int)
    x, y = np.tile(X, (12, 1)), np.tile(label, 12)
    regret = {}
    for coding, keys in (("blocks", {}), ("projection", {"dimension": 2})):
        r = fastfed.simulate(
            Classification.from_arrays(x, y, coding=coding, **keys),
            "fedlinucb", silos=2, horizon=180, batch_size=5, radius_multiplier=0.1, replicates=3,
        )  # fmt: skip
        regret[coding] = r.curves[0].final()["mean"]
    assert regret["blocks"] < 0.6 * regret["projection"]


def test_identity_follows_every_record_and_choice():
    def identity(x=X, y=Y, silo=SILO, **keys):
        return Classification.from_arrays(x, y, silo, **keys).describe()

    moved = X.copy()
    moved[4, 1] += 1e-9
    all_ = [identity(), identity(moved), identity(y=(Y + 1) % 3), identity(silo=SILO[::-1]),
            identity(norm=2.0), identity(coding="projection")]  # fmt: skip
    assert identity() == all_[0]
    assert len({str(one) for one in all_}) == len(all_)
    # Stored results of files keep their identity.
    assert "coding" not in Classification(data="digits").describe()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((X, Y[:3]), r"classes must have shape \(30,\), got \(3,\)"),
        ((np.where(X > 1, np.nan, X), Y), "features must be finite, got nan"),
        ((X, Y - 1), "classes must be integers from 0 to 999, got -1"),
        ((X, Y + 0.5), "classes must be integers from 0 to 999, got 0.5"),
        ((X, 0 * Y), "classes must hold at least 2 classes"),
        ((X[:0], Y[:0]), "features must hold at least one record"),
        ((X, Y, SILO[:4]), "silo must name one silo for each of 30 records"),
        ((X, Y, [None, *SILO[1:]]), "silo must be given for every record"),
        ((X, Y, [[1]] * 30), "silo must be a flat list of names"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        Classification.from_arrays(*arguments)


def test_keys_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="norm must be > 0, got 0"):
        Classification.from_arrays(X, Y, norm=0)
    with pytest.raises(InputError, match=r'coding must be one of .* did you mean "blocks"'):
        Classification.from_arrays(X, Y, coding="block")
    with pytest.raises(InputError, match="dimension needs coding"):
        Classification.from_arrays(X, Y, coding="blocks", dimension=5)
    with pytest.raises(
        InputError, match="silos must be the 2 values of the silo column 'silo', got 3"
    ):
        Classification.from_arrays(X, Y, SILO).pool(3)
    with pytest.raises(InputError, match="silos must be at most the 30 records, got 31"):
        Classification.from_arrays(X, Y).pool(31)
    with pytest.raises(InputError, match="silos is required"):
        Classification.from_arrays(X, Y).pool(None)
