"""Tests of sealed noise, the ledger and the store: writes are durable and happen once."""

import math
import os
import sqlite3
import stat

import numpy as np
import pytest

pytest.importorskip("cryptography")

import federation
from scipy import stats

from fastfed import InputError
from fastfed._sampling import Uniforms
from fastfed.deployment import store as store_module
from fastfed.deployment.charges import charge_of
from fastfed.deployment.ledger import Charge, Ledger, OverBudget
from fastfed.deployment.seal import SealedNoise, _Stream, hidden_by, make_secret, read_secret
from fastfed.deployment.store import Conflict, MemoryStore, SqliteStore, Write
from fastfed.privacy.accounting.gdp import gaussian_epsilon
from fastfed.privacy.sensitivity import joint_sensitivity, user_sensitivity
from fastfed.protocols.release import prefix_noise

SECRET, DIGEST = b"k" * 32, b"d" * 32

# ---- noise ---------------------------------------------------------------------------------------


def node_noise(
    node=1, sums=b"sums", silo=0, secret=SECRET, plan=DIGEST, owner="silo0", dimension=4
):
    """Return the sealed noise of a tree node; each argument is a part of its key."""
    noise = SealedNoise(secret, plan, owner)
    noise.set_hidden_sums(node, sums)
    return noise.ideal(silo, node, dimension)


def test_the_same_sums_have_the_same_noise_to_any_precision():
    first, second = node_noise(), node_noise()
    assert np.array_equal(first.values, second.values)
    # Further bits do not depend on the order of requests.
    late, early = first.interval(3, 300), first.interval(0, 100)
    assert second.interval(0, 100) == early and second.interval(3, 300) == late


@pytest.mark.parametrize(
    "change",
    [
        {"node": 2},
        {"sums": b"other"},
        {"silo": 1},
        {"secret": b"K" * 32},
        {"plan": b"D" * 32},
        {"owner": "silo1"},
    ],
    ids=lambda c: next(iter(c)),
)
def test_any_other_part_of_the_key_gives_other_noise(change):
    assert not np.isin(node_noise().values, node_noise(**change).values).any()


def test_noise_for_different_sums_is_independent_and_normal():
    rows = np.array(
        [node_noise(sums=bytes([i, j]), dimension=12).values for i in range(40) for j in (0, 1)]
    )
    assert stats.kstest(rows.ravel(), "norm").pvalue > 1e-4
    pairs = np.array([np.corrcoef(rows[2 * i], rows[2 * i + 1])[0, 1] for i in range(40)])
    # A correlation of 90 pairs has a standard deviation of about 1 / sqrt(90).
    assert abs(pairs.mean()) < 5 / math.sqrt(40 * 90)


def test_noise_is_refused_before_its_sums_are_known():
    with pytest.raises(InputError, match="before its sums"):
        SealedNoise(SECRET, DIGEST, "silo0").ideal(0, 1, 2)


def test_coins_and_pads_are_functions_of_the_hidden_sums_too():
    noise, other = (SealedNoise(SECRET, DIGEST, "silo0") for _ in "ab")
    for each in (noise, other):
        each.set_hidden_sums(3, b"x")
    trials = (10**20, 10**20, 2 * 10**20)
    coins = noise.coins(0, 3, 2, trials)
    assert np.array_equal(coins, other.coins(0, 3, 2, trials))
    assert np.abs(coins.view(np.int64)).max() < 6e10
    pad, seed = noise.pad(0, 3, 5)
    assert np.array_equal(pad, other.pad(0, 3, 5)[0]) and seed == other.pad(0, 3, 5)[1]
    assert len(set(pad.tolist()) | set(coins.tolist())) == 10


def test_streams_never_repeat_what_they_gave():
    stream, whole = _Stream(b"q" * 32), _Stream(b"q" * 32)
    assert b"".join(stream(n) for n in (3, 5000, 1, 9000)) == whole(14004)
    uniforms = Uniforms(2, _Stream(b"q" * 32))
    assert uniforms.prefix(0, 128)[0] >> 64 == int(uniforms.random_u64[0])


def test_what_a_node_hides_is_its_own_leaves():
    leaves = np.arange(8.0).reshape(4, 2)
    tree = federation.deployed("silo-ldp").plan
    assert hidden_by(tree, 3, leaves[:3]) == {3: leaves[2].tobytes()}
    assert hidden_by(tree, 4, leaves) == {4: leaves.sum(axis=0).tobytes()}
    # A record that moves from one leaf to another does not change the node above both leaves.
    moved = leaves.copy()
    moved[2] -= 1.0
    moved[3] += 1.0
    assert hidden_by(tree, 4, moved) == hidden_by(tree, 4, leaves)
    factorised = federation.deployed("secure-sum").plan
    assert hidden_by(factorised, 4, moved) != hidden_by(factorised, 4, leaves)
    honaker = federation.deployed(system={"batch_size": 5, "release": "honaker"}).plan
    actual = hidden_by(honaker, 4, leaves)
    assert list(actual.values()) == [
        leaves[4 - n :].sum(axis=0).tobytes() for n in (1, 2, 4)
    ] and list(actual) == [5, 6, 7]


def test_a_secret_is_written_once_and_read_by_its_owner_alone(tmp_path):
    path = tmp_path / "secret"
    secret = make_secret(path)
    assert read_secret(path) == secret and stat.S_IMODE(os.stat(path).st_mode) == 0o400
    with pytest.raises(InputError, match="never replaced"):
        make_secret(path)
    path.chmod(0o440)
    with pytest.raises(InputError, match="read by others"):
        read_secret(path)


# ---- data-dependent delay ------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["iid", "goe1", "goe2"])
@pytest.mark.parametrize("ratio", [0.3, 0.7, 1.0, 2.5])
def test_replacing_costs_at_least_sqrt_2_times_zeroing_out(layout, ratio):
    """The inequality behind late records (docs/deployment.md): replace^2 >= 2 zero-out^2."""
    for d in (2, 5):
        replace = user_sensitivity("replace", layout, d, 1.0, ratio)
        zero = joint_sensitivity("zero-out", layout, d, 1.0, ratio)
        assert replace**2 >= 2.0 * zero**2 * (1.0 - 1e-12)


@pytest.mark.parametrize("release", ["tree", "toeplitz", "factorised", "honaker"])
def test_a_record_that_comes_late_costs_no_more_than_the_certificate_says(release):
    """Remove z from leaf j and add z' to leaf j'; compare the shift with the plan's mu."""
    plan = federation.deployed(system={"batch_size": 5, "release": release}, batches=7).plan
    rng = np.random.default_rng(1)
    size, d = plan.releases, plan.dimension
    stds = np.concatenate([np.full(d, plan.noise_std.bias), [0, 0, 0]])
    stds[d:] = [plan.noise_std.diagonal, plan.noise_std.off_diagonal, plan.noise_std.diagonal]
    ends = range(1, size + 1)
    if release == "tree":
        encoder = np.array([[float(k - (k & -k) < leaf <= k) for leaf in ends] for k in ends])
    else:
        # Prefixes with noise T z are, up to a change of coordinates, (T T')^(-1/2) A gamma + z.
        terms = [prefix_noise(plan).terms(k) for k in ends]
        nodes = sorted({node for row in terms for node in row})
        mixed = np.array([[float(row.get(node, 0)) for node in nodes] for row in terms])
        encoder = np.linalg.solve(np.linalg.cholesky(mixed @ mixed.T), np.tri(size))
    total = math.sqrt(sum(charge_of(plan, DIGEST, "d", k).mu2 for k in range(1, size + 1)))

    def record(angle, y):
        """Return what a record adds to the sums, in standard deviations."""
        x = np.array([math.cos(angle), math.sin(angle)])
        return np.array([*(x * y), x[0] ** 2, x[0] * x[1], x[1] ** 2]) / stds

    worst = 0.0
    for _ in range(3000):
        angles, ys = rng.uniform(0, 2 * math.pi, 2), rng.choice([0.0, 1.0, -1.0], 2)
        # Plans clip rewards to [0, 1]; the account assumes only |y| <= 1.
        leaf, late = rng.integers(0, size, 2)
        change = np.outer(encoder[:, late], record(angles[1], ys[1])) - np.outer(
            encoder[:, leaf], record(angles[0], ys[0])
        )
        worst = max(worst, float(np.linalg.norm(change)))
    assert 0.6 * total < worst <= total * (1.0 + 1e-9)


# ---- the ledger ----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["silo-ldp", "central", "secure-sum"])
@pytest.mark.parametrize("batches", [1, 4, 7])
def test_charges_of_all_releases_add_up_to_the_plan_and_none_is_negative(protocol, batches):
    plan = federation.deployed(protocol, batches=batches)
    charges = [charge_of(plan.plan, plan.digest, "d", k) for k in range(1, batches + 1)]
    assert all(c.mu2 >= 0.0 and c.failure >= 0.0 for c in charges) and charges[0].mu2 > 0.0
    mu, failure = math.sqrt(sum(c.mu2 for c in charges)), sum(c.failure for c in charges)
    actual = gaussian_epsilon(mu, 1e-6 - failure)
    assert actual == pytest.approx(plan.certificate.exact.epsilon, rel=1e-9)
    assert charge_of(plan.plan, plan.digest, "d", -1)[3:5] == pytest.approx((mu**2, failure))


def test_a_plan_that_ends_early_has_cost_what_a_shorter_one_would():
    """The first k releases cost as much as a plan with k releases and equal noise."""
    plan = federation.deployed(batches=7).plan
    spent = [sum(charge_of(plan, DIGEST, "d", k).mu2 for k in range(1, n + 1)) for n in range(1, 8)]
    nodes = [n.bit_length() for n in range(1, 8)]
    assert spent == pytest.approx([spent[0] * n for n in nodes])


def test_the_ceiling_holds_over_plans_and_restarts(tmp_path):
    path = str(tmp_path / "ledger")
    ledger = Ledger(path)
    with pytest.raises(OverBudget):
        ledger.charge(Charge("d", b"plan", 1, 0.01))
    ledger.set_ceiling("d", 1.0, 1e-6)
    ledger.charge(Charge("d", b"plan", 1, 0.03))
    ledger.charge(Charge("d", b"plan", 1, 0.03))
    ledger.charge(Charge("d", b"other", 1, 0.02))
    ledger.close()
    ledger = Ledger(path)
    assert ledger.epsilon("d") == pytest.approx(gaussian_epsilon(math.sqrt(0.05), 1e-6))
    with pytest.raises(OverBudget, match="ceiling of dataset"):
        ledger.charge(Charge("d", b"third", 1, 0.02))
    assert len(ledger.charges("d")) == 2
    ledger.charge(Charge("d", b"third", 1, 0.005))
    with pytest.raises(InputError, match="another report"):
        ledger.charge(Charge("d", b"plan", 1, 0.03, 0.0, b"x"))
    with pytest.raises(InputError, match="what was spent"):
        ledger.set_ceiling("d", 0.5, 1e-6)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_two_processes_cannot_both_spend_the_rest(tmp_path):
    path = str(tmp_path / "ledger")
    first, second = Ledger(path), Ledger(path)
    first.set_ceiling("d", 1.0, 1e-6)
    assert first.allows(Charge("d", b"a", 1, 0.04)) and second.allows(Charge("d", b"b", 1, 0.04))
    first.charge(Charge("d", b"a", 1, 0.04))
    with pytest.raises(OverBudget):
        second.charge(Charge("d", b"b", 1, 0.04))


# ---- the store -----------------------------------------------------------------------------------

WRITES = [Write("a", "1", b"x"), Write("b", "1", b"y"), Write("a", "2", b"")]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_write_is_kept_once_and_never_changed(kind, tmp_path):
    store = MemoryStore() if kind == "memory" else SqliteStore(str(tmp_path / "store"))
    assert [store.write(w) for w in WRITES] == [True] * 3
    assert not store.write(WRITES[1])
    with pytest.raises(Conflict):
        store.write(Write("b", "1", b"z"))
    assert list(store.writes()) == WRITES


def test_a_store_is_durable_private_and_open_in_one_process_at_a_time(tmp_path, monkeypatch):
    path = str(tmp_path / "store")
    store, synced = SqliteStore(path), []
    monkeypatch.setattr(
        store_module, "_sync_content", lambda file: synced.append(os.fstat(file).st_size)
    )
    for write in WRITES:
        store.write(write)
    # Each write is synced after SQLite has appended its pages.
    assert len(synced) == 3 and os.path.getsize(f"{path}-wal") == synced[-1] > synced[0] > 0
    db = store._db
    # SQLite itself syncs when it copies its write-ahead log to the file.
    assert db.execute("PRAGMA synchronous").fetchone() == (1,)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with pytest.raises(InputError, match="in use by another process"):
        SqliteStore(path)
    head = store.head
    store.close()
    reopened = SqliteStore(path)
    assert list(reopened.writes()) == WRITES and reopened.head == head


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE writes SET value = x'00' WHERE number = 2",
        "DELETE FROM writes WHERE number = 1",
        "UPDATE writes SET key = '9' WHERE number = 3",
    ],
)
def test_a_log_that_was_changed_is_noticed(damage, tmp_path):
    path = str(tmp_path / "store")
    store = SqliteStore(path)
    for write in WRITES:
        store.write(write)
    store.close()
    db = sqlite3.connect(path)
    db.execute(damage)
    db.commit()
    db.close()
    with pytest.raises(InputError, match="broken"):
        list(SqliteStore(path).writes())
