"""The examples of docs/extending.md, installed beside fastfed: they run, and do what they say."""

import json
import math
import re
from pathlib import Path

import numpy as np
import plugins
import pytest
import test_drivers
from scipy import stats

import fastfed
from fastfed.bandits import ProblemSpec
from fastfed.privacy import Budget
from fastfed.simulation import dispatch
from fastfed.simulation.experiment import make_experiment
from fastfed.simulation.systems import ALGORITHMS, registries

PAGE = (plugins.EXAMPLES.parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")
KINDS = {
    "algorithm": ("algorithms", "noisy-batches", "fastfed-noisy-batches"),
    "mechanism": ("mechanisms", "staircase", "fastfed-staircase"),
    "environment": ("environments", "logistic", "fastfed-logistic"),
    "score": ("scores", "thompson", "fastfed-thompson"),
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder on the path of a child, with all four packages."""
    folder = tmp_path_factory.mktemp("packages")
    for example in KINDS:
        plugins.install(example, folder)
    return folder


def test_the_examples_are_these_and_each_is_whole():
    assert {p.name for p in plugins.EXAMPLES.iterdir() if p.is_dir()} == {*KINDS, "policy"}
    for example, (kind, name, _) in KINDS.items():
        text = (plugins.EXAMPLES / example / "README.md").read_text(encoding="utf-8")
        for command in (f"pip install ./examples/extending/{example}", f"fastfed list {kind}"):
            assert command in text
        assert name in text and f"examples/extending/{example}" in PAGE


def test_list_says_where_they_come_from(installed):
    listed = json.loads(plugins.fastfed(installed, "list", "--json").stdout)
    for kind, name, package in KINDS.values():
        (entry,) = [e for e in listed[kind] if e["package"] is not None]
        assert (entry["id"], entry["package"]) == (name, f"{package} 0.1.0")
        assert entry["summary"]


@pytest.mark.parametrize(
    "example",
    [
        "algorithm",
        pytest.param("environment", marks=pytest.mark.slow),
        pytest.param("score", marks=pytest.mark.slow),
    ],
)
def test_a_spec_runs_and_its_results_say_what_played(installed, example, tmp_path):
    spec, out = plugins.EXAMPLES / example / "spec.toml", tmp_path / "out"
    done = plugins.fastfed(installed, "run", spec, "-o", out)
    assert done.returncode == 0, done.stderr
    found = json.loads(plugins.fastfed(installed, "results", out, "--json").stdout)
    package = KINDS[example][2]
    used = [c["packages"] for c in found["curves"]]
    assert {example: f"{package} 0.1.0"} in used
    assert ({} in used) == (example != "environment")
    # What others play needs no package to be read.
    assert [c.packages for c in fastfed.load(out).curves] == used
    again = plugins.fastfed(installed, "run", spec, "-o", out)
    assert again.returncode == 0 and "nothing" in again.stderr


@pytest.mark.slow
def test_results_of_another_version_are_not_mixed(tmp_path):
    (tmp_path / "spec.toml").write_text(
        'name = "x"\nhorizon = 8\nsilos = 2\nenvironment = { kind = "logistic" }\n'
        '[[curve]]\nalgorithm = "local-linucb"\n',
        encoding="utf-8",
    )
    for version in ("0.1.0", "0.2.0"):
        folder = tmp_path / version
        folder.mkdir()
        plugins.install("environment", folder, version)
        done = plugins.fastfed(folder, "run", tmp_path / "spec.toml", "-o", tmp_path / "out")
    assert done.returncode == 2
    assert 'holds a different experiment ("x", different packages)' in done.stderr
    without = tmp_path / "without"
    without.mkdir()
    done = plugins.fastfed(without, "run", tmp_path / "spec.toml", "-o", tmp_path / "out")
    assert done.returncode == 2 and 'unknown environment "logistic"' in done.stderr


def test_they_are_used_together_from_python(installed):
    """One curve of algorithm, environment and score, by both drivers and with threads."""
    (installed / "together.py").write_text(
        """
import numpy as np
import fastfed
keys = dict(algorithm="noisy-batches", epsilon=5.0, delta=1e-5, batch_size=5, score="thompson",
            horizon=40, silos=3, replicates=2, seed=4)
environment = {"kind": "logistic", "dimension": 3, "actions": 6}
played = [fastfed.simulate(environment, **keys, **how).curves[0]
          for how in ({"threads": 1}, {"threads": 2}, {"driver": "step"})]
for other in played[1:]:
    np.testing.assert_array_equal(played[0].group_regret, other.group_regret)
print(sorted(played[0].packages.items()), played[0].certificate["status"])
made = fastfed.make_system("noisy-batches", horizon=40, dimension=3, epsilon=5.0, delta=1e-5,
                           batch_size=5, score="thompson")
print(made.plan.score is not None, made.deployed_certificate.status)
print(fastfed.privacy.calibrate("staircase", fastfed.privacy.Budget(1.0, 0.0)).noise_std)
""",
        encoding="utf-8",
    )
    done = plugins.python(installed, "together.py")
    assert done.returncode == 0, done.stderr
    used, deployed, std = done.stdout.splitlines()
    assert (
        used
        == str(
            [
                ("algorithm", "fastfed-noisy-batches 0.1.0"),
                ("environment", "fastfed-logistic 0.1.0"),
                ("score", "fastfed-thompson 0.1.0"),
            ]
        )
        + " proven"
    )
    assert deployed == "True proven"
    assert float(std) == pytest.approx(
        2.0 * plugins.module("mechanism", "staircase").noise_std(1.0)
    )


# ---- the algorithm ------------------------------------------------------------------------------


@pytest.fixture
def noisy(monkeypatch):
    entry = plugins.module("algorithm", "noisy_batches").ALGORITHM
    monkeypatch.setitem(ALGORITHMS.builtin, "noisy-batches", entry)
    return entry


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize(
    ("silos", "horizon", "batch_size"), [(3, 40, 8), (2, 37, 6), (2, 17, 1), (1, 6, 2), (2, 9, 9),
                                        (2, 30, "growing")],
)  # fmt: skip
def test_noisy_batches_play_alike_in_both_drivers(noisy, lazy, silos, horizon, batch_size):
    e = make_experiment(
        name="x",
        environment=fastfed.environments.Sphere(dimension=3, actions=5),
        curves=[{"algorithm": "noisy-batches", "epsilon": 20.0, "delta": 0.01, "lazy": lazy,
                 "batch_size": batch_size}],
        horizon=horizon,
        silos=silos,
        seed=7,
        checkpoints=5,
    )  # fmt: skip
    (fast,), (readable,) = test_drivers.both(e)
    test_drivers.same(fast, readable)


def test_noisy_batches_add_one_noise_for_every_batch_and_silo(noisy):
    """Of constant noise 1 (standard normals all 1), and the law that the theory is told."""
    setting = ProblemSpec(silos=3, horizon=20, dimension=2)
    keys = {"epsilon": 2.0, "delta": 1e-5, "batch_size": 4}
    system = noisy.make(keys, setting)

    class Ones(fastfed.parties.SeededNoise):
        def node(self, silo, node, dimension):
            return np.ones(dimension + dimension * (dimension + 1) // 2)

    silos = [fastfed.parties.Silo(system.plan, i, Ones(0)) for i in range(3)]
    server = fastfed.parties.Server(system.plan, Ones(0))
    for round in range(1, 21):
        for silo in silos:
            silo.select(np.zeros((1, 2)))
            silo.observe(0.0)
        if round % 4 == 0:
            broadcast = server.combine([silo.report() for silo in silos])
            for silo in silos:
                silo.receive(broadcast)
            noises, std = 3 * round // 4, system.plan.noise_std
            expected = noises * np.array(
                [std.bias] * 2 + [std.diagonal, std.off_diagonal, std.diagonal]
            )
            np.testing.assert_allclose(broadcast.values, expected, rtol=1e-12)
    assert broadcast.release == 5


def test_noisy_batches_are_certified_as_one_release(noisy):
    setting = ProblemSpec(silos=3, horizon=200, dimension=2)
    keys = {"epsilon": 2.0, "delta": 1e-5, "batch_size": 4}
    system = noisy.make(keys, setting)
    tree = ALGORITHMS["private-fedlinucb"].make(
        {**keys, "release": "tree", "covariance_ratio": 1.0}, setting
    )
    assert system.certificate.status == "proven"
    assert 1.999 < system.certificate.exact.epsilon <= 2.0
    # The tree has 6 levels, each as noisy as six releases of everybody are.
    ratio = tree.plan.noise_std.bias / system.plan.noise_std.bias
    assert ratio == pytest.approx(math.sqrt(6.0), rel=1e-6)
    eager = noisy.make({**keys, "lazy": False}, setting).certificate
    assert eager.status == "unproven" and eager.exact is None


# ---- the mechanism ------------------------------------------------------------------------------

STAIRCASE = plugins.module("mechanism", "staircase")


def density(x, epsilon):
    """Of the noise for sensitivity 1, from its definition."""
    b, g = math.exp(-epsilon), 1.0 / (1.0 + math.exp(epsilon / 2.0))
    level = np.floor(np.abs(x)) + (np.abs(x) % 1.0 >= g)
    return (1.0 - b) / (2.0 * (g + b * (1.0 - g))) * b**level


def grid(epsilon):
    """Cells so fine that the density and its shifts by tenths are constant on each, and a width."""
    # g is near no multiple of the width; the cell it is in errs by a width at most.
    width = 1e-4
    edge = math.ceil(40.0 / epsilon) + 1
    return (np.arange(-edge / width, edge / width) + 0.5) * width, width


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_the_staircase_is_the_law_that_the_accounting_says(epsilon):
    x, width = grid(epsilon)
    f = density(x, epsilon)
    assert f.sum() * width == pytest.approx(1.0, abs=1e-3)
    assert math.sqrt((f * x**2).sum() * width) == pytest.approx(
        STAIRCASE.noise_std(epsilon), rel=1e-3
    )
    for moved in (1.0, 0.7, 0.3):
        g = density(x - moved, epsilon)
        losses = np.round(np.log(f / g) / epsilon, 6)
        assert set(losses) <= {-1.0, 0.0, 1.0}
        for target in (0.0, 0.3 * epsilon, 0.9 * epsilon, epsilon):
            delta = np.maximum(0.0, f - math.exp(target) * g).sum() * width
            found = STAIRCASE.delta_of(epsilon, 1, target)
            assert delta <= found + 1e-3
            if moved == 1.0:
                assert delta == pytest.approx(found, abs=1e-3)


def test_composition_is_that_of_all_ways_it_can_go():
    """Three releases: every triple of losses, one by one."""
    each, epsilon = 0.8, 1.1
    b, g, h = STAIRCASE.shape(each)
    p = (g + (0.5 - g) * b) / h
    chance = {-1: b * p, 0: 1.0 - (1.0 + b) * p, 1: p}
    delta = sum(
        chance[i] * chance[j] * chance[k] * max(0.0, -math.expm1(epsilon - each * (i + j + k)))
        for i in chance for j in chance for k in chance
    )  # fmt: skip
    assert STAIRCASE.delta_of(each, 3, epsilon) == pytest.approx(delta, rel=1e-12)


def test_draws_follow_the_density():
    """Chi-square over cells of a hundred thousand draws, false alarm 1e-4."""
    epsilon, n = 1.0, 100_000
    drawn = STAIRCASE.draw(epsilon, n, np.random.default_rng(2))
    assert drawn.std() == pytest.approx(STAIRCASE.noise_std(epsilon), rel=0.02)
    _, g, _ = STAIRCASE.shape(epsilon)
    edges = np.unique([s * (k + part) for s in (-1, 1) for k in range(6) for part in (0.0, g)])
    counts, _ = np.histogram(drawn, edges)
    middle = (edges[1:] + edges[:-1]) / 2
    expected = n * density(middle, epsilon) * np.diff(edges)
    counts, expected = np.append(counts, n - counts.sum()), np.append(expected, n - expected.sum())
    assert stats.chisquare(counts, expected).pvalue > 1e-4


def test_the_whole_budget_is_used_and_never_more():
    for delta in (0.0, 1e-6, 1e-2):
        for releases in (1, 2, 7, 64, 400):
            budget = Budget(1.0, delta)
            share = STAIRCASE.largest_share(budget, releases)
            assert share >= 1.0 / releases
            if delta:
                assert STAIRCASE.delta_of(share, releases, 1.0) <= delta
                assert STAIRCASE.delta_of(share * (1 + 1e-9), releases, 1.0) > delta * (1 - 1e-6)
            else:
                assert share == pytest.approx(1.0 / releases, rel=1e-9)


def test_calibrate_gives_what_the_readme_asks_for(installed):
    done = plugins.fastfed(
        installed, "calibrate", "staircase", "--epsilon", 1, "--delta", 1e-6, "--releases", 3,
        "--json",
    )  # fmt: skip
    found = json.loads(done.stdout)
    gaussian = fastfed.privacy.calibrate("gaussian", Budget(1.0, 1e-6), 3)
    assert 2.0 < found["noise_std"] < 0.6 * gaussian.noise_std
    # Less than Laplace noise of the same share.
    share = STAIRCASE.largest_share(Budget(1.0, 1e-6), 3)
    assert found["noise_std"] < math.sqrt(2.0) * 2.0 / share
    nothing = STAIRCASE.staircase(Budget(1.0, 1e-6), 0, None)
    assert nothing.noise_std == 0.0


# ---- the environment ----------------------------------------------------------------------------


@pytest.fixture
def logistic(monkeypatch):
    cls = plugins.module("environment", "logistic").Logistic
    monkeypatch.setitem(registries()["environments"].builtin, "logistic", (cls, "logistic"))
    return cls


def test_logistic_rounds_are_what_they_say(logistic):
    environment = logistic(dimension=4, actions=6, slope=3.0)
    theta = fastfed.kernels.normals(9, 4, replicate=2)
    theta /= np.linalg.norm(theta)
    opened, seen = environment.open(9, 2, 5), []
    for silo in range(5):
        for round in range(1, 101):
            x, mean = opened.round(silo, round)
            assert x.shape == (6, 4)
            np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1.0, rtol=1e-12)
            np.testing.assert_allclose(mean, 1.0 / (1.0 + np.exp(-3.0 * x @ theta)), rtol=1e-12)
            seen.append(x)
    # A coordinate of a uniform point of the 3-sphere has variance 1/4, and no two are the same.
    seen = np.concatenate(seen)
    assert len(np.unique(seen, axis=0)) == len(seen)
    np.testing.assert_allclose(seen.T @ seen / len(seen), np.eye(4) / 4, atol=0.03)


def test_logistic_worlds_are_told_apart_and_their_numbers_swept(logistic):
    base = {"kind": "logistic", "dimension": 3, "actions": 5}
    r = fastfed.simulate(base, "local-linucb", silos=2, horizon=20, slope=[1.0, 8.0])
    assert [c.label for c in r.curves] == ["local-linucb, slope = 1.0", "local-linucb, slope = 8.0"]
    assert r.curves[0].final() != r.curves[1].final()
    with pytest.raises(fastfed.InputError, match=r'unknown key "slop".*did you mean "slope"'):
        fastfed.simulate({**base, "slop": 1.0}, "local-linucb", silos=2, horizon=20)


def test_logistic_says_that_the_model_is_not_linear(logistic):
    e = make_experiment(
        name="x", environment=logistic(), silos=2, horizon=20,
        curves=[{"algorithm": "private-fedlinucb", "epsilon": 1.0, "delta": 1e-5, "batch_size": 5}],
    )  # fmt: skip
    certificate = e.curves[0].system.certificate
    assert certificate.status == "proven"
    assert any("the expected reward is <x, theta*>" in c for c in certificate.caveats)
    opened, plan = e.environment.open(0, 0, 2), e.curves[0].system.plan
    (fast,) = dispatch.run(opened, [plan], e.checkpoints, threads=2)
    slow = dispatch.run_steps(opened, plan, e.checkpoints)
    np.testing.assert_array_equal(fast.group_regret, slow.group_regret)


# ---- the page -----------------------------------------------------------------------------------


def test_the_page_shows_what_is_in_the_examples():
    """Every block of Python or TOML on the page stands in a file of the examples, word for word."""
    files = "\n".join(
        path.read_text(encoding="utf-8")
        for path in plugins.EXAMPLES.rglob("*")
        if path.suffix in (".py", ".toml")
    )
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 5
    for block in blocks:
        assert block in files, block
