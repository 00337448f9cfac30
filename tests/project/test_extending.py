"""The example packages of docs/extending.md work with fastfed, and their privacy claims hold."""

import json
import math
import re
from pathlib import Path

import numpy as np
import plugins
import pytest
import test_drivers
from scipy import optimize, stats

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
    """Return a folder with all four example packages, for the path of a child process."""
    folder = tmp_path_factory.mktemp("packages")
    for example in KINDS:
        plugins.install(example, folder)
    return folder


def test_every_example_has_a_readme_and_is_on_the_page():
    assert {p.name for p in plugins.EXAMPLES.iterdir() if p.is_dir()} == {
        *KINDS,
        "policy",
        "clicks",
    }
    for example, (kind, name, _) in KINDS.items():
        text = (plugins.EXAMPLES / example / "README.md").read_text(encoding="utf-8")
        for command in (f"pip install ./examples/extending/{example}", f"fastfed list {kind}"):
            assert command in text
        assert name in text and f"examples/extending/{example}" in PAGE


def test_list_names_the_package_of_each_plugin(installed):
    entries_by_kind = json.loads(plugins.fastfed(installed, "list", "--json").stdout)
    for kind, name, package in KINDS.values():
        (entry,) = [e for e in entries_by_kind[kind] if e["package"] is not None]
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
def test_an_example_spec_runs_and_its_results_name_the_package(installed, example, tmp_path):
    spec, folder = plugins.EXAMPLES / example / "spec.toml", tmp_path / "out"
    child = plugins.fastfed(installed, "run", spec, "-o", folder)
    assert child.returncode == 0, child.stderr
    results = json.loads(plugins.fastfed(installed, "results", folder, "--json").stdout)
    package = KINDS[example][2]
    packages_of_curves = [curve["packages"] for curve in results["curves"]]
    assert {example: f"{package} 0.1.0"} in packages_of_curves
    # All curves of a spec have its environment; an algorithm or a score belongs to one curve.
    assert ({} in packages_of_curves) == (example != "environment")
    # Results load without the package that produced them.
    assert [curve.packages for curve in fastfed.load(folder).curves] == packages_of_curves
    repeated = plugins.fastfed(installed, "run", spec, "-o", folder)
    assert repeated.returncode == 0 and "nothing" in repeated.stderr


@pytest.mark.slow
def test_results_of_different_package_versions_are_not_mixed(tmp_path):
    (tmp_path / "spec.toml").write_text(
        'name = "x"\nhorizon = 8\nsilos = 2\nenvironment = { kind = "logistic" }\n'
        '[[curve]]\nalgorithm = "local-linucb"\n',
        encoding="utf-8",
    )
    for version in ("0.1.0", "0.2.0"):
        folder = tmp_path / version
        folder.mkdir()
        plugins.install("environment", folder, version)
        child = plugins.fastfed(folder, "run", tmp_path / "spec.toml", "-o", tmp_path / "out")
    assert child.returncode == 2
    assert 'holds a different experiment ("x", different packages)' in child.stderr
    without_package = tmp_path / "without"
    without_package.mkdir()
    child = plugins.fastfed(without_package, "run", tmp_path / "spec.toml", "-o", tmp_path / "out")
    assert child.returncode == 2 and 'unknown environment "logistic"' in child.stderr


def test_algorithm_environment_and_score_work_together_from_python(installed):
    """A curve that uses all three gives equal results with both drivers and with threads."""
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
    child = plugins.python(installed, "together.py")
    assert child.returncode == 0, child.stderr
    packages, deployed, std = child.stdout.splitlines()
    assert (
        packages
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
    """Register the example algorithm "noisy-batches" and return its entry."""
    entry = plugins.module("algorithm", "noisy_batches").ALGORITHM
    monkeypatch.setitem(ALGORITHMS.builtin, "noisy-batches", entry)
    return entry


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize(
    ("silos", "horizon", "batch_size"), [(3, 40, 8), (2, 37, 6), (2, 17, 1), (1, 6, 2), (2, 9, 9),
                                        (2, 30, "growing")],
)  # fmt: skip
def test_noisy_batches_give_equal_results_in_both_drivers(noisy, lazy, silos, horizon, batch_size):
    experiment = make_experiment(
        name="x",
        environment=fastfed.environments.Sphere(dimension=3, actions=5),
        curves=[{"algorithm": "noisy-batches", "epsilon": 20.0, "delta": 0.01, "lazy": lazy,
                 "batch_size": batch_size}],
        horizon=horizon,
        silos=silos,
        seed=7,
        checkpoints=5,
    )  # fmt: skip
    (compiled_outcome,), (step_outcome,) = test_drivers.outcomes_of_both_drivers(experiment)
    test_drivers.assert_same_bits(compiled_outcome, step_outcome)


def test_noisy_batches_add_one_noise_for_every_batch_and_silo(noisy):
    """Replace all standard normals by 1, so that sums of zero data count the noises."""
    problem = ProblemSpec(silos=3, horizon=20, dimension=2)
    keys = {"epsilon": 2.0, "delta": 1e-5, "batch_size": 4}
    system = noisy.make(keys, problem)

    class Ones(fastfed.parties.SeededNoise):
        """A source whose noise is 1 in every entry."""

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
            noise_count, std = 3 * round // 4, system.plan.noise_std
            expected = noise_count * np.array(
                [std.bias] * 2 + [std.diagonal, std.off_diagonal, std.diagonal]
            )
            np.testing.assert_allclose(broadcast.values, expected, rtol=1e-12)
    assert broadcast.release == 5


def test_noisy_batches_are_certified_as_one_release(noisy):
    problem = ProblemSpec(silos=3, horizon=200, dimension=2)
    keys = {"epsilon": 2.0, "delta": 1e-5, "batch_size": 4}
    system = noisy.make(keys, problem)
    tree = ALGORITHMS["private-fedlinucb"].make(
        {**keys, "release": "tree", "covariance_ratio": 1.0}, problem
    )
    assert system.certificate.status == "proven"
    assert 1.999 < system.certificate.exact.epsilon <= 2.0
    # The tree has 6 levels, so each user enters 6 nodes instead of one release.
    std_ratio = tree.plan.noise_std.bias / system.plan.noise_std.bias
    assert std_ratio == pytest.approx(math.sqrt(6.0), rel=1e-6)
    eager_certificate = noisy.make({**keys, "lazy": False}, problem).certificate
    assert eager_certificate.status == "unproven" and eager_certificate.exact is None


# ---- the mechanism ------------------------------------------------------------------------------

STAIRCASE = plugins.module("mechanism", "staircase")


def density(x, epsilon):
    """Return the density of staircase noise for sensitivity 1, by its definition."""
    b, g = math.exp(-epsilon), 1.0 / (1.0 + math.exp(epsilon / 2.0))
    level = np.floor(np.abs(x)) + (np.abs(x) % 1.0 >= g)
    return (1.0 - b) / (2.0 * (g + b * (1.0 - g))) * b**level


def grid(epsilon):
    """Return the centres of cells, and their width.

    The density and its shifts by tenths are constant on nearly every cell.
    """
    # g is not a multiple of the width. The error of its cell is at most one width.
    width = 1e-4
    edge = math.ceil(40.0 / epsilon) + 1
    return (np.arange(-edge / width, edge / width) + 0.5) * width, width


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_the_accounting_of_the_staircase_agrees_with_its_density(epsilon):
    x, width = grid(epsilon)
    f = density(x, epsilon)
    assert f.sum() * width == pytest.approx(1.0, abs=1e-3)
    assert math.sqrt((f * x**2).sum() * width) == pytest.approx(
        STAIRCASE.noise_std(epsilon), rel=1e-3
    )
    for shift in (1.0, 0.7, 0.3):
        f_shifted = density(x - shift, epsilon)
        losses = np.round(np.log(f / f_shifted) / epsilon, 6)
        assert set(losses) <= {-1.0, 0.0, 1.0}
        for target in (0.0, 0.3 * epsilon, 0.9 * epsilon, epsilon):
            delta = np.maximum(0.0, f - math.exp(target) * f_shifted).sum() * width
            accounted_delta = STAIRCASE.delta_of(epsilon, 1, target)
            assert delta <= accounted_delta + 1e-3
            if shift == 1.0:
                assert delta == pytest.approx(accounted_delta, abs=1e-3)


def test_composition_agrees_with_a_sum_over_all_losses():
    """Compare with a sum over every triple of privacy losses, for three releases."""
    epsilon_each, epsilon = 0.8, 1.1
    b, g, h = STAIRCASE.shape(epsilon_each)
    p = (g + (0.5 - g) * b) / h
    probability = {-1: b * p, 0: 1.0 - (1.0 + b) * p, 1: p}
    delta = sum(
        probability[i] * probability[j] * probability[k]
        * max(0.0, -math.expm1(epsilon - epsilon_each * (i + j + k)))
        for i in probability for j in probability for k in probability
    )  # fmt: skip
    assert STAIRCASE.delta_of(epsilon_each, 3, epsilon) == pytest.approx(delta, rel=1e-12)


def test_draws_follow_the_density():
    """Test 100 000 draws by chi-square, which fails by chance with probability 1e-4."""
    epsilon, n = 1.0, 100_000
    draws = STAIRCASE.draw(epsilon, n, np.random.default_rng(2))
    assert draws.std() == pytest.approx(STAIRCASE.noise_std(epsilon), rel=0.02)
    _, g, _ = STAIRCASE.shape(epsilon)
    edges = np.unique([s * (k + part) for s in (-1, 1) for k in range(6) for part in (0.0, g)])
    counts, _ = np.histogram(draws, edges)
    centres = (edges[1:] + edges[:-1]) / 2
    expected = n * density(centres, epsilon) * np.diff(edges)
    counts, expected = np.append(counts, n - counts.sum()), np.append(expected, n - expected.sum())
    assert stats.chisquare(counts, expected).pvalue > 1e-4


def test_the_largest_share_uses_the_whole_budget_and_no_more():
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


def test_calibrate_gives_less_noise_than_gaussian_and_laplace(installed):
    child = plugins.fastfed(
        installed, "calibrate", "staircase", "--epsilon", 1, "--delta", 1e-6, "--releases", 3,
        "--json",
    )  # fmt: skip
    calibrated = json.loads(child.stdout)
    gaussian = fastfed.privacy.calibrate("gaussian", Budget(1.0, 1e-6), 3)
    assert 2.0 < calibrated["noise_std"] < 0.6 * gaussian.noise_std
    # The noise is smaller than Laplace noise for the same share.
    share = STAIRCASE.largest_share(Budget(1.0, 1e-6), 3)
    assert calibrated["noise_std"] < math.sqrt(2.0) * 2.0 / share
    without_releases = STAIRCASE.staircase(Budget(1.0, 1e-6), 0, None)
    assert without_releases.noise_std == 0.0


# ---- the environment ----------------------------------------------------------------------------


@pytest.fixture
def logistic(monkeypatch):
    """Register the example environment "logistic" and return its class."""
    cls = plugins.module("environment", "logistic").Logistic
    monkeypatch.setitem(registries()["environments"].builtin, "logistic", (cls, "logistic"))
    return cls


def test_logistic_rounds_have_unit_contexts_and_logistic_means(logistic):
    environment = logistic(dimension=4, actions=6, slope=3.0)
    theta = fastfed.kernels.normals(9, 4, replicate=2)
    theta /= np.linalg.norm(theta)
    problem, contexts = environment.open(9, 2, 5), []
    for silo in range(5):
        for round in range(1, 101):
            x, mean = problem.round(silo, round)
            assert x.shape == (6, 4)
            np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1.0, rtol=1e-12)
            np.testing.assert_allclose(mean, 1.0 / (1.0 + np.exp(-3.0 * x @ theta)), rtol=1e-12)
            contexts.append(x)
    # A coordinate of a uniform point on the 3-sphere has variance 1/4. All points differ.
    contexts = np.concatenate(contexts)
    assert len(np.unique(contexts, axis=0)) == len(contexts)
    np.testing.assert_allclose(contexts.T @ contexts / len(contexts), np.eye(4) / 4, atol=0.03)


def test_logistic_slopes_can_be_swept_and_unknown_keys_are_refused(logistic):
    environment = {"kind": "logistic", "dimension": 3, "actions": 5}
    results = fastfed.simulate(environment, "local-linucb", silos=2, horizon=20, slope=[1.0, 8.0])
    assert [curve.label for curve in results.curves] == [
        "local-linucb, slope = 1.0",
        "local-linucb, slope = 8.0",
    ]
    assert results.curves[0].final() != results.curves[1].final()
    with pytest.raises(fastfed.InputError, match=r'unknown key "slop".*did you mean "slope"'):
        fastfed.simulate({**environment, "slop": 1.0}, "local-linucb", silos=2, horizon=20)


def test_the_certificate_of_logistic_rewards_states_that_theory_assumes_linear_ones(logistic):
    experiment = make_experiment(
        name="x", environment=logistic(), silos=2, horizon=20,
        curves=[{"algorithm": "private-fedlinucb", "epsilon": 1.0, "delta": 1e-5, "batch_size": 5}],
    )  # fmt: skip
    certificate = experiment.curves[0].system.certificate
    assert certificate.status == "proven"
    assert any("the expected reward is <x, theta*>" in caveat for caveat in certificate.caveats)
    problem, plan = experiment.environment.open(0, 0, 2), experiment.curves[0].system.plan
    (compiled_outcome,) = dispatch.run(problem, [plan], experiment.checkpoints, threads=2)
    step_outcome = dispatch.run_steps(problem, plan, experiment.checkpoints)
    np.testing.assert_array_equal(compiled_outcome.group_regret, step_outcome.group_regret)


# ---- the page -----------------------------------------------------------------------------------


def test_every_code_block_of_the_page_is_in_an_example():
    """Every Python or TOML block of the page is copied word for word from an example file."""
    files = "\n".join(
        path.read_text(encoding="utf-8")
        for path in plugins.EXAMPLES.rglob("*")
        if path.suffix in (".py", ".toml")
    )
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 5
    for block in blocks:
        assert block in files, block


# ---- clicks --------------------------------------------------------------------------------------


def test_the_logistic_policy_maximises_the_likelihood_of_its_bits():
    policy = plugins.module("clicks", "glm_bits").GlmBits(3, 5, epsilon=2.0, batch=400)
    rng, theta = np.random.default_rng(4), np.array([1.5, -1.0, 0.5])
    for _ in range(400):
        actions = rng.standard_normal((4, 3))
        x = actions[policy.select(actions)]
        policy.observe(float(rng.random() < 1.0 / (1.0 + math.exp(-(x @ theta)))))
    x, bits, q = np.array(policy.x), np.array(policy.bits), policy.q

    def loss(candidate):
        """Return minus the penalised log likelihood of the bits."""
        g = q + (1.0 - 2.0 * q) / (1.0 + np.exp(-(x @ candidate)))
        likelihood = np.sum(np.log(np.where(bits == 1, g, 1.0 - g)))
        return -likelihood + candidate @ candidate / 2.0

    fitted = optimize.minimize(loss, np.zeros(3), tol=1e-12).x
    assert policy.theta == pytest.approx(fitted, abs=1e-4)
    assert np.linalg.norm(policy.theta - theta) < 1.0


def test_the_clicks_spec_runs(installed, tmp_path):
    source = plugins.EXAMPLES / "clicks"
    (installed / "glm_bits.py").write_text((source / "glm_bits.py").read_text(encoding="utf-8"))
    sizes = ("--set", "horizon=200", "--set", "replicates=2")
    child = plugins.fastfed(installed, "run", source / "spec.toml", *sizes, "-o", tmp_path / "out")
    assert child.returncode == 0, child.stderr
    status = [curve.certificate["status"] for curve in fastfed.load(tmp_path / "out").curves]
    assert status == ["proven", "proven", "none", "none", "none"]
