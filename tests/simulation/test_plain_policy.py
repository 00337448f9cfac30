"""Plain policies, classes with select and observe, run in simulations next to fastfed's systems."""

import importlib
import linecache
import shutil
import sys
from typing import ClassVar

import numpy as np
import plugins
import pytest

import fastfed
from fastfed._validate import InputError
from fastfed.environments import FixedSet, Sphere
from fastfed.simulation import dispatch
from fastfed.simulation.experiment import make_experiment
from fastfed.simulation.policies import Policy

WORLD = Sphere(dimension=3, actions=6)


class Recorder:
    """A policy that records its rounds; a class variable holds all instances."""

    instances: ClassVar[list] = []

    def __init__(self, dimension, horizon, silos, silo, seed, shift=0):
        self.about, self.shift, self.round = (dimension, horizon, silos, silo, seed), shift, 0
        Recorder.instances.append(self)
        self.seen = []

    def select(self, actions):
        self.round += 1
        self.seen.append((actions, None))
        actions[0, 0] += 0.0  # a policy may write to its array of actions
        return np.int64((self.round + self.shift) % len(actions))

    def observe(self, reward):
        self.seen[-1] = self.seen[-1][0], reward


class Uniform:
    def __init__(self, seed):
        self.draw = np.random.default_rng(seed)

    def select(self, actions):
        return int(self.draw.integers(len(actions)))

    def observe(self, reward):
        pass


class FixedAnswer(Uniform):
    answer = 6

    def select(self, actions):
        return self.answer


class WithoutObserve:
    def select(self, actions):
        return 0


def make_uniform(seed):
    """Return a policy that chooses uniformly."""
    return Uniform(seed)


def simulate(policy, world=WORLD, **keys):
    """Simulate a policy in a small world."""
    arguments = {"silos": 2, "horizon": 30, "replicates": 2, "seed": 5} | keys
    return fastfed.simulate(world, "policy", policy=policy, **arguments)


@pytest.mark.parametrize("shared", [False, True])
def test_a_policy_gets_all_rounds_of_its_silo(shared):
    Recorder.instances.clear()
    results = simulate(Recorder, parameters={"shift": 2}, shared=shared, replicates=1, threads=1)
    (curve,) = results.curves
    policies = Recorder.instances[-1:] if shared else Recorder.instances[-2:]
    assert len({policy.about[-1] for policy in policies}) == len(policies)  # seeds differ
    experiment = make_experiment(
        name="x", environment=WORLD, silos=2, horizon=30, seed=5,
        curves=[{"algorithm": "policy", "policy": Recorder, "parameters": {"shift": 2}}],
    )  # fmt: skip
    environment = experiment.problem.open(5, 0)
    regret = 0.0
    for round in range(1, 31):
        for silo in range(2):
            policy = policies[0 if shared else silo]
            index = 2 * (round - 1) + silo if shared else round - 1
            actions, reward = policy.seen[index]
            features, means = environment.round(silo, round)
            assert actions.dtype == np.float64 and np.array_equal(actions, features)
            chosen = (index + 1 + 2) % 6
            assert type(reward) is float
            assert reward == environment.reward(silo, round, means[chosen])
            regret += means.max() - means[chosen]
    assert curve.final()["mean"] == pytest.approx(regret, rel=1e-12)
    for silo, policy in enumerate(policies):
        assert policy.about[:4] == (3, 30, 2, silo) and len(policy.seen) == 30 * (1 + shared)


def test_a_policy_gets_no_epsilon_because_its_privacy_is_unknown():
    results = simulate(Uniform)
    certificate = results.curves[0].certificate
    assert certificate["status"] == "none"
    assert certificate["exact"] is None and certificate["claimed"] is None
    assert any("fastfed knows nothing about it" in text for text in certificate["caveats"])
    system = fastfed.make_system("policy", horizon=10, dimension=3, policy=Uniform)
    assert system.deployed_certificate.status == "none"
    with pytest.raises(InputError, match="plan must be a Plan"):
        fastfed.parties.Silo(system.plan)


def test_drivers_and_threads_agree_for_every_way_to_name_a_policy():
    curves = [
        simulate(policy, **options).curves[0].group_regret
        for policy in (Uniform, make_uniform, f"{__name__}:Uniform")
        for options in ({"threads": 1}, {"threads": 2}, {"driver": "step"})
    ]
    for curve in curves[1:]:
        assert np.array_equal(curves[0], curve)
    replicates = simulate(Uniform).curves[0].group_regret
    assert not np.array_equal(*replicates)  # seeds differ by replicate
    experiment = make_experiment(
        name="x", environment=WORLD, silos=2, horizon=30,
        curves=[{"algorithm": "policy", "policy": Uniform}],
    )  # fmt: skip
    (plan,) = (each_curve.system.plan for each_curve in experiment.curves)
    arguments = experiment.problem.open(0, 0), [plan], experiment.checkpoints
    assert dispatch.run(*arguments)[0].actions is None
    (recorded_outcome,) = dispatch.run(*arguments, record=True)
    step_outcome = dispatch.run_steps(arguments[0], plan, experiment.checkpoints)
    assert np.array_equal(recorded_outcome.actions, step_outcome.actions)


def test_the_agent_linucb_is_a_plain_policy():
    """A simulated LinUCB has the regret of an agent that the test runs round by round."""
    environment = FixedSet(dimension=4, actions=9)
    results = fastfed.simulate(
        environment, silos=1, horizon=200, replicates=1,
        curves=[
            {"label": "ours", "algorithm": "policy", "policy": fastfed.LinUCB},
            {"label": "spec", "algorithm": "policy", "policy": "fastfed:LinUCB"},
            {"label": "random", "algorithm": "random"},
        ],
    )  # fmt: skip
    from_class, from_name, random = results.curves
    assert np.array_equal(from_class.group_regret, from_name.group_regret)
    agent, problem = fastfed.LinUCB(4), environment.open(0, 0, 1)
    regret = 0.0
    for round in range(1, 201):
        features, means = problem.round(0, round)
        action = agent.select(np.array(features, np.float64))
        agent.observe(problem.reward(0, round, means[action]))
        regret += means.max() - means[action]
    assert from_class.final()["mean"] == pytest.approx(regret)
    assert from_class.final()["mean"] < 0.7 * random.final()["mean"]
    assert isinstance(agent, Policy)


@pytest.mark.parametrize(
    ("policy", "keys", "message"),
    [
        (None, {}, r"policy is required \(curve"),
        (Uniform(1), {}, "policy must be a class, or .* an object would carry data from"),
        (lambda seed: Uniform(seed), {}, "policy must be a class that can be imported by its name"),
        (type("Local", (Uniform,), {"__qualname__": "f.<locals>.L"}), {}, "define it at the top"),
        ("nowhere:Policy", {}, 'policy "nowhere:Policy" cannot be imported: No module'),
        ("nowhere", {}, 'policy must be "module:name", got "nowhere"'),
        (f"{__name__}:WORLD", {}, "policy must be a class, or a function that makes one"),
        (f"{__name__}:Nothing", {}, 'has no "Nothing"'),
        (
            WithoutObserve,
            {},
            r"must make objects with select\(actions\) and observe\(reward\), got",
        ),
        (
            Uniform,
            {"parameters": {"tau": 1}},
            "cannot be made: .*unexpected keyword argument 'tau'",
        ),
        (Uniform, {"shared": 1}, "shared must be true or false"),
        (Uniform, {"source": "00"}, r"must have the source of the spec \(00\), got"),
        (Uniform, {"epsilon": 1.0}, 'unknown key "epsilon" for policy'),
        (FixedAnswer, {}, "must select an integer from 0 to 5, got 6"),
    ],
)
def test_bad_policies_are_refused(policy, keys, message):
    with pytest.raises(InputError, match=message):
        simulate(policy, **keys)


@pytest.mark.parametrize("answer", [True, 1.0, None, -1, "1"])
def test_bad_choices_of_a_policy_are_refused(answer, monkeypatch):
    monkeypatch.setattr(FixedAnswer, "answer", answer)
    with pytest.raises(InputError, match="must select an integer from 0 to 5, got"):
        simulate(FixedAnswer)


def test_exceptions_of_a_policy_are_raised_unchanged(monkeypatch):
    def broken(self, reward):
        raise RuntimeError("mine")

    monkeypatch.setattr(Uniform, "observe", broken)
    with pytest.raises(RuntimeError, match="mine"):
        simulate(Uniform, threads=1)


def test_a_policy_cannot_run_on_losses_without_contexts():
    from fastfed.environments import StochasticLosses

    with pytest.raises(InputError, match="policy needs contexts"):
        simulate(Uniform, StochasticLosses(experts=4))


def test_the_example_spec_runs_and_an_edited_class_is_a_different_experiment(tmp_path, monkeypatch):
    source = plugins.EXAMPLES / "policy"
    spec_text = (source / "spec.toml").read_text().replace("horizon = 500", "horizon = 40")
    (tmp_path / "spec.toml").write_text(spec_text)
    shutil.copy(source / "greedy.py", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    code = (source / "softmax.py").read_text()

    def run(code):
        """Run the spec with this code of the policy."""
        (tmp_path / "softmax.py").write_text(code)
        linecache.clearcache()
        sys.modules.pop("softmax", None)
        importlib.invalidate_caches()
        try:
            return fastfed.run(tmp_path / "spec.toml", tmp_path / "out")
        finally:
            sys.modules.pop("softmax", None)

    curves = run(code).curves
    assert [curve.certificate["status"] for curve in curves] == [
        *("none", "none", "none"),
        *("proven", "proven"),
    ]
    assert run(code).curves[0].final() == curves[0].final()
    with pytest.raises(InputError, match="holds a different experiment"):
        run(code.replace("tau: float = 0.05", "tau: float = 0.051"))


def test_the_script_of_the_page_prints_the_output_shown_there():
    child = plugins.python(plugins.EXAMPLES / "policy", "first.py")
    assert child.stdout == "['none', 'proven']\n", child.stderr


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "processes"])
def test_the_example_runs_with_the_command_of_its_page(tmp_path, engine):
    source = plugins.EXAMPLES / "policy"
    child = plugins.fastfed(source, "run", source / "spec.toml", "-o", tmp_path, "--engine", engine)
    assert child.returncode == 0, child.stderr
    assert "softmax" in child.stdout and "none" in child.stdout


def test_plugins_import_from_fastfed_plugins_only():
    from fastfed import plugins as public

    for name in public.__all__:
        assert getattr(public, name) is not None and f"`{name}`" in public.__doc__, name
    plugin_files = [
        p for p in plugins.EXAMPLES.glob("*/*.py") if p.parent.name not in ("policy", "clicks")
    ]
    assert len(plugin_files) == 4
    for path in plugin_files:
        for line in path.read_text().splitlines():
            if "fastfed" in line and line.startswith(("import", "from")):
                assert line.startswith("from fastfed.plugins import"), path
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        public.nothing  # noqa: B018
