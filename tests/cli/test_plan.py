"""`plan` and `fastfed plan`: equal guarantees, simulations with fewer silos, and true verdicts."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import fastfed
from fastfed.advice import TRUST, plan
from fastfed.advice.successive_halving import (
    Contender,
    Size,
    SuccessiveHalving,
    _extended,
    _least,
    _parts,
    scaled_plan,
    within_error,
)
from fastfed.advice.systems import (
    LESS,
    Question,
    Variant,
    batch_sizes,
    build_candidates,
    noisier,
)
from fastfed.bandits.radius import direct_regret_bound
from fastfed.cli import cli
from fastfed.environments import Sphere
from fastfed.simulation import dispatch
from fastfed.simulation.experiment import experiment_from_spec
from fastfed.simulation.systems import problem_spec

SMALL: dict[str, Any] = {
    "silos": 8, "horizon": 300, "dimension": 3, "actions": 5, "epsilon": 2.0, "delta": 1e-5,
    "seconds": 0.3,
}  # fmt: skip


def question(**changes: Any) -> Question:
    """Return a question to the planner with these changes."""
    sizes = {**SMALL, **changes}
    facts = Sphere(dimension=sizes["dimension"], actions=5).facts(sizes["silos"], sizes["horizon"])
    setting: Any = problem_spec(facts, sizes["silos"], sizes["horizon"])
    return Question(
        setting, sizes["epsilon"], 1e-5, changes.get("relation", "replace"), 1.0,
        protects=changes.get("protects", "user"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def advice() -> fastfed.advice.Advice:
    """Return the advice for the small question."""
    return plan(**SMALL)


# ---- one guarantee -------------------------------------------------------------------------------


def test_every_candidate_has_the_same_proven_guarantee(advice: fastfed.advice.Advice) -> None:
    zero_out = plan(**{**SMALL, "relation": "zero-out", "trust": ["silo-ldp", "central"]})
    assert {c.trust for c in advice.candidates} == set(TRUST) - {"user-bit"}
    for relation, actual in (("replace", advice), ("zero-out", zero_out)):
        for c in actual.candidates:
            # The system is made again by the public function, so its certificate is independent.
            keys = {k: v for k, v in c.keys.items() if k != "algorithm"}
            certificate = fastfed.make_system(
                c.keys["algorithm"], silos=8, horizon=300, dimension=3, **keys
            ).certificate
            assert (certificate.status, certificate.unit, certificate.relation) == (
                "proven",
                "user",
                relation,
            ), c.label
            assert certificate.exact.epsilon == pytest.approx(c.epsilon, rel=1e-12)
            assert 0.98 * 2.0 < certificate.exact.epsilon <= 2.0 * (1 + 1e-9), c.label
            assert certificate.exact.delta == c.delta == 1e-5
            trusted = certificate.model.split(":")[0]
            named = {"silo-ldp": "silo-level local", "secure-sum": "secure sum"}
            assert trusted == named.get(c.trust, c.trust)


def test_trust_is_never_mixed(advice: fastfed.advice.Advice) -> None:
    assert [v.trust for v in advice.verdicts] == [t for t in TRUST if t != "user-bit"]
    for verdict in advice.verdicts:
        assert advice[verdict.best].trust == verdict.trust
        assert all(advice[label].trust == verdict.trust for label in verdict.level)
    only = plan(**{**SMALL, "trust": "central", "seconds": 0.01})
    assert {c.trust for c in only.candidates} == {"central"}
    assert [v.trust for v in only.verdicts] == ["central"]


def test_records_that_are_served_twice_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.5, 0.5, size=(2, 5, 3, 2))
    np.savez(tmp_path / "few.npz", contexts=x, rewards=rng.uniform(size=(2, 5, 3)))
    served_again = {
        "kind": "replay", "path": str(tmp_path / "few.npz"), "sampling": "with-replacement",
    }  # fmt: skip
    with pytest.raises(fastfed.InputError, match="no record is served twice"):
        plan(horizon=8, epsilon=1.0, delta=1e-5, environment=served_again, seconds=0.01)


# ---- the answer ----------------------------------------------------------------------------------


def test_the_answer_is_a_function_of_its_arguments() -> None:
    first, same_seed, other_seed = (
        plan(**SMALL, trust="central", seed=seed, threads=threads).to_builtins()
        for seed, threads in ((3, 1), (3, 2), (4, 1))
    )
    assert first == same_seed
    assert first["baselines"][0]["regret"]["mean"] != other_seed["baselines"][0]["regret"]["mean"]


def test_the_recommended_candidate_has_the_least_regret_of_the_last_stage(
    advice: fastfed.advice.Advice,
) -> None:
    for verdict in advice.verdicts:
        finals = {
            c.label: c.regret.mean
            for c in advice.candidates
            if c.trust == verdict.trust and c.regret and c.regret.stage == "final"
        }
        assert verdict.best == min(finals, key=lambda label: finals[label])
        assert len(finals) == 2
        local_regrets = {name: advice.baseline(name).regret.mean for name in ("alone", LESS)}
        assert verdict.alone == min(local_regrets, key=lambda name: local_regrets[name])
        difference = finals[verdict.best] - local_regrets[verdict.alone]
        assert verdict.against_alone[0] == pytest.approx(difference)
        mean, stderr = verdict.against_alone
        assert verdict.helps == (mean < -2.0 * stderr)


def test_a_verdict_against_sharing_names_the_epsilon_from_which_it_pays() -> None:
    sizes = {**SMALL, "silos": 30, "dimension": 4, "horizon": 600, "seconds": 1.0}
    verdicts = plan(**{**sizes, "epsilon": 0.2, "trust": ["silo-ldp", "central"]})
    for verdict in verdicts.verdicts:
        assert not verdict.helps
        assert "privacy is too costly for sharing to help" in verdict.sentence
    local, central = verdicts.verdicts
    assert central.pays_from_epsilon is not None and central.pays_from_epsilon > 0.2
    assert f"epsilon {central.pays_from_epsilon:.2g}" in central.sentence
    # If each of M silos adds noise, sharing needs a larger epsilon than with a trusted server.
    assert local.pays_from_epsilon is None or local.pays_from_epsilon > central.pays_from_epsilon
    # The sentence is true: at four times that epsilon sharing does better than learning alone.
    easy = plan(**{**sizes, "epsilon": 4 * central.pays_from_epsilon, "trust": "central"})
    assert easy.verdicts[0].against_alone[0] < 0.0


def test_a_verdict_for_sharing_names_its_curve() -> None:
    verdicts = plan(
        silos=100, horizon=400, dimension=3, actions=5, epsilon=20.0, delta=1e-3, trust="central",
        seconds=0.5,
    )  # fmt: skip
    (verdict,) = verdicts.verdicts
    assert verdict.helps and verdict.pays_from_epsilon is None
    assert verdict.sentence.startswith(f"share by {verdict.best}: ")
    assert verdicts.scaling.startswith("simulated: ")


def test_an_answer_prints_its_verdicts(advice: fastfed.advice.Advice) -> None:
    text = str(advice)
    assert text.startswith("every user (replace): (")
    assert all(f"{v.trust}: {v.sentence}" in text for v in advice.verdicts)
    assert all(b.label in text for b in advice.baselines) and len(text.splitlines()) < 20
    assert advice.baseline("alone") in advice.baselines
    with pytest.raises(fastfed.InputError, match='did you mean "alone"'):
        advice.baseline("alon")


def test_the_written_spec_has_the_recommended_curves(advice: fastfed.advice.Advice) -> None:
    experiment = experiment_from_spec(tomllib.loads(advice.spec_text()))
    assert (experiment.silos, experiment.horizon) == (8, 300)
    labels = [f"{v.trust}: {v.best}" for v in advice.verdicts]
    assert [c.label for c in experiment.curves] == [*labels, *(b.label for b in advice.baselines)]
    nothing = "sends nothing: epsilon 0"
    assert [b.privacy for b in advice.baselines] == [nothing, nothing, "not private", nothing]
    for curve, verdict in zip(experiment.curves, advice.verdicts, strict=False):
        exact = curve.system.certificate.exact
        assert exact is not None and exact.epsilon == advice[verdict.best].epsilon
        assert curve.system.plan.batch_size == advice[verdict.best].batch_size


def test_bytes_are_those_of_the_run(advice: fastfed.advice.Advice) -> None:
    verdict = advice.verdicts[0]
    recommended = advice[verdict.best]
    keys = {k: v for k, v in recommended.keys.items() if k != "algorithm"}
    table = {"kind": "sphere", "dimension": 3, "actions": 5}
    simulated = fastfed.simulate(
        table, recommended.keys["algorithm"], silos=8, horizon=300, **keys
    ).curves[0]
    assert recommended.bytes_sent == simulated.bytes_sent


def test_an_environment_that_cannot_be_scaled_is_simulated_for_fewer_rounds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 400, 3, 2))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    np.savez(tmp_path / "data.npz", contexts=x, rewards=(x[..., 0] + 1.0) / 2.0)
    table = {"kind": "replay", "path": str(tmp_path / "data.npz")}
    verdicts = plan(
        horizon=400, epsilon=1.0, delta=1e-5, environment=table, seconds=0.01, trust="central"
    )
    finals = [c.regret for c in verdicts.candidates if c.regret]
    assert finals and all(r.silos == 4 and r.rounds <= 400 for r in finals)
    assert min(r.rounds for r in finals) < 400
    assert (
        verdicts.verdicts[0].pays_from_epsilon is None
        and verdicts.verdicts[0].pays_from_silos is None
    )


# ---- how it is simulated -------------------------------------------------------------------------


def regrets(plan: Any, environment: Any, replicates: int, first: int = 0) -> np.ndarray:
    """Return the final regret for each silo of each replicate."""
    marks = np.array([plan.horizon])
    return np.array(
        [
            dispatch.run(environment.open(7, first + r, plan.silos), [plan], marks)[0].group_regret[
                0
            ]
            / plan.silos
            for r in range(replicates)
        ]
    )


@pytest.mark.parametrize(
    ("protocol", "release", "protects", "epsilon"),
    [
        ("silo-ldp", "toeplitz", "user", 2.0),
        ("silo-ldp", "tree", "user", 2.0),
        ("central", "tree", "user", 2.0),
        ("user-bit", "tree", "reward", 0.1),
        ("silo-ldp", "tree", "reward", 2.0),
    ],
)
def test_few_silos_stand_for_many(
    protocol: str, release: str, protects: str, epsilon: float
) -> None:
    problem = question(silos=60, horizon=600, protects=protects, epsilon=epsilon)
    candidate = problem.make("x", protocol, release, 10)
    contender, environment = Contender.of(candidate), Sphere(dimension=3, actions=5)
    whole = regrets(candidate.plan, environment, 16)
    few = regrets(
        scaled_plan(candidate.plan, contender.node, 10), contender.environment(environment, 6.0), 16
    )
    summed = regrets(scaled_plan(candidate.plan, contender.node, 60), environment, 16)
    # Ten silos with the radius of sixty have a different regret, so the check detects wrong scales.
    naive = regrets(replace(candidate.plan, silos=10), environment, 16)
    for scaled in (few, summed):
        spread = math.hypot(*(v.std(ddof=1) / math.sqrt(16) for v in (whole, scaled)))
        assert abs(whole.mean() - scaled.mean()) < 4.0 * spread + 0.03 * whole.mean()
    assert abs(whole.mean() - naive.mean()) > whole.mean()


def test_a_scaled_plan_keeps_the_sum_of_all_noises() -> None:
    candidate = question(silos=60).make("x", "silo-ldp", "tree", 20)
    few = scaled_plan(candidate.plan, candidate.node, 10)
    assert few.silos == 10 and few.protocol.noise_by == "server"
    # Noise of 60 silos, in units of 60 / 10 = 6 silos for each one simulated: sqrt(60) s / 6.
    assert few.noise_std.bias == pytest.approx(candidate.plan.noise_std.bias * math.sqrt(60) / 6)
    assert few.regularizer == pytest.approx(candidate.plan.regularizer / 6)
    assert few.radius.scale == pytest.approx(candidate.plan.radius.scale / math.sqrt(6))


def test_bits_of_all_silos_are_simulated_as_bits() -> None:
    candidate = question().make("x", "shuffle-vector", "tree", 20)
    assert scaled_plan(candidate.plan, candidate.node, 8, bits=True) is candidate.plan
    normal = scaled_plan(candidate.plan, candidate.node, 8)
    assert normal.encoding is None and normal.noise_std.bias > 0.0


def test_plan_for_rewards_compares_bits_of_users_with_sums() -> None:
    request = {**SMALL, "protects": "reward", "seconds": 0.1}
    advice = plan(**request)
    assert {v.trust for v in advice.verdicts} == {"user-bit", "silo-ldp", "central"}
    assert advice.unit == "reward" and str(advice).startswith("every reward (replace)")
    for candidate in advice.candidates:
        assert candidate.keys["protects"] == "reward"
        assert candidate.delta == (0.0 if candidate.trust == "user-bit" else 1e-5)
        keys = {k: v for k, v in candidate.keys.items() if k != "algorithm"}
        sizes = {"silos": 8, "horizon": 300, "dimension": 3}
        certificate = fastfed.make_system("private-fedlinucb", **sizes, **keys).certificate
        assert (certificate.status, certificate.unit) == ("proven", "reward")
    assert "shuffle, secure-sum" in advice.left_out and "user-bit" not in advice.left_out
    with pytest.raises(fastfed.InputError, match='where protects is "user", got "user-bit"'):
        plan(**SMALL, trust="user-bit")
    with pytest.raises(fastfed.InputError, match='where protects is "reward", got "shuffle"'):
        plan(**request, trust="shuffle")
    arms = {"kind": "arms", "means": [0.2, 0.5, 0.8]}
    for_arms = plan(**{k: v for k, v in request.items() if k != "dimension"}, environment=arms)
    assert {v.trust for v in for_arms.verdicts} == {"user-bit", "silo-ldp", "central"}


def test_a_note_says_that_one_action_is_no_choice() -> None:
    notes = plan(**{**SMALL, "actions": 1, "trust": "central", "seconds": 0.05}).notes
    assert any("there is one action" in note for note in notes)


def test_a_stage_fits_the_time_that_is_given() -> None:
    halving = SuccessiveHalving(Sphere(dimension=3, actions=5), 100, 1000, 5, 0, 1)
    candidate = question(silos=100, horizon=1000).make("x", "central", "tree", 20)
    contenders = [Contender("a", candidate.plan, candidate.node)]
    assert halving.size(contenders, 100.0, 2).silos == 100
    assert halving.size(contenders, 100.0, 2).replicates == 32
    short = halving.size(contenders, 0.02, 2)
    assert (short.rounds, short.replicates) == (1000, 2) and 4 <= short.silos < 100
    wide = question(silos=100, horizon=1000, dimension=12).make("x", "central", "tree", 20)
    assert halving.size([Contender("b", wide.plan, wide.node)], 1e-6, 2).silos == 12
    halving.run("screened", contenders, short)
    halving.run("final", contenders, Size(4, 1000, 3))
    assert halving.replicate == 5  # each stage plays new replicates
    assert halving.samples["a"].shape == (3,)


def test_a_noisier_candidate_of_one_schedule_is_recognised() -> None:
    wanted = [
        ("silo-ldp", release, size, Variant())
        for release in ("toeplitz", "honaker", "tree")
        for size in (5, 20)
    ]
    candidates, failed = build_candidates(question(), "silo-ldp", wanted)
    assert not failed and len(candidates) == 6
    by_key = {(c.release, c.batch_size): c for c in candidates}
    assert noisier(by_key["tree", 5], by_key["toeplitz", 5])
    assert not noisier(by_key["toeplitz", 5], by_key["tree", 5])
    assert not noisier(by_key["tree", 5], by_key["toeplitz", 20])
    assert (
        by_key["toeplitz", 5].noise_std
        < by_key["honaker", 5].noise_std
        < by_key["tree", 5].noise_std
    )


def test_helper_functions() -> None:
    assert batch_sizes(2) == [1] and batch_sizes(2000) == [1, 4, 16, 64, 256]
    assert batch_sizes(20_000)[0] == 5 and batch_sizes(20_000)[-1] <= 5000
    assert (
        within_error((1.0, 0.5)) and not within_error((-1.1, 0.5)) and within_error((3.0, math.nan))
    )
    assert _least(1.0, lambda v: v >= 10.0) == pytest.approx(2.0**3.5)
    assert _least(1.0, lambda v: False) is None
    marks = np.array([10, 20, 30, 40])
    curve = np.array([4.0, 6.0, 7.0, 0.0])
    assert _extended(curve, marks, 2, 40) == pytest.approx(8.0)  # at 1 in 10 rounds
    assert _extended(curve[:1], marks, 0, 40) == pytest.approx(16.0)
    assert _extended(curve, marks, 3, 40) == 0.0
    assert _parts(list(range(9)), 8) == [[0, 2, 4, 6, 8], [1, 3, 5, 7]]
    assert _parts([1, 2], 8) == [[1, 2]] and _parts([], 2) == []
    assert _parts([1, 2, 3, 4, 5, 6, 7, 8], 0) == [[1, 2, 3, 4, 5, 6, 7, 8]]


# ---- the bound -----------------------------------------------------------------------------------


def test_regret_is_below_bounds_that_are_not_trivial() -> None:
    results = []
    for keys in (
        {"algorithm": "fedlinucb", "batch_size": 4},
        {"algorithm": "local-linucb"},
        {
            "algorithm": "private-fedlinucb", "protocol": "central", "release": "toeplitz",
            "batch_size": 4, "epsilon": 200.0, "delta": 1e-2,
        },
    ):  # fmt: skip
        e = experiment_from_spec(
            {
                "name": "b", "horizon": 20_000, "silos": 10, "checkpoints": 1,
                "environment": {"kind": "sphere", "dimension": 2, "actions": 5},
                "curve": [{"label": "a", **keys}],
            }
        )  # fmt: skip
        system = e.curves[0].system
        bound = direct_regret_bound(system.plan, system.theory)
        assert bound is not None and bound < 10 * 20_000, keys
        (simulated,) = dispatch.run(
            e.environment.open(0, 0, 10), [system.plan], e.checkpoints, threads=1
        )
        assert simulated.group_regret[-1] < bound
        results.append(bound)
    assert results[0] < results[2] and results[0] < results[1]


def test_the_bound_is_none_where_nothing_is_proven() -> None:
    candidate = question().make("x", "central", "tree", 20)
    theory = candidate.system.theory
    assert direct_regret_bound(candidate.plan, theory) is not None
    assert direct_regret_bound(replace(candidate.plan, lazy=False), theory) is None
    low = replace(question(), radius_multiplier=0.5).make("x", "central", "tree", 20)
    assert low.bound is None
    more = question(epsilon=0.2).make("x", "central", "tree", 20)
    assert candidate.bound is not None and more.bound is not None and candidate.bound < more.bound


# ---- the command ---------------------------------------------------------------------------------


ARGS = [
    "--silos", 8, "--horizon", 300, "--dimension", 3, "--epsilon", 2, "--delta", 1e-5,
    "--actions", 5, "--seconds", 0.1,
]  # fmt: skip


def command(*args: object) -> Result:
    """Run `plan` with these arguments."""
    return CliRunner().invoke(cli, ["plan", *map(str, args)])


def test_json_prints_only_the_answer() -> None:
    result = command(*ARGS, "--trust", "central", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    expected = plan(**{**SMALL, "seconds": 0.1}, trust="central").to_builtins()
    assert document == json.loads(json.dumps(expected))
    assert {"candidates", "baselines", "verdicts", "left_out", "scaling"} <= set(document)


def test_the_text_names_guarantee_trust_and_advice() -> None:
    result = command(*ARGS, "--trust", "silo-ldp", "--trust", "central")
    assert result.exit_code == 0, result.output
    assert "every user (replace): (2, 1e-05), proven" in result.stdout
    for trust in ("silo-ldp", "central"):
        assert f"{trust}: {TRUST[trust][0]}" in result.stdout
    assert TRUST["shuffle"][0] not in result.stdout
    assert result.stdout.count("\n=> ") == 2
    assert "about 0.1 s of simulation" in result.stderr and "screened: " in result.stderr
    assert "robin: it protects all data of a client" in result.stdout


def test_write_leaves_a_spec(tmp_path: Path) -> None:
    path = tmp_path / "best.toml"
    assert command(*ARGS, "--trust", "central", "--write", path).exit_code == 0
    experiment = fastfed.simulation.load_experiment(path)
    assert len(experiment.curves) == 5 and experiment.curves[0].label.startswith("central: ")


def test_set_changes_the_environment_of_a_spec_or_a_figure() -> None:
    options = "--silos 4 --horizon 9 --epsilon 1 --delta 1e-5 --trust central --seconds 0.01 --json"
    args = [*options.split(), "--environment", "cz22-fig1"]
    figure = json.loads(command(*args).stdout)["environment"]
    changed = json.loads(command(*args, "--set", "environment.actions=7").stdout)["environment"]
    assert figure["actions"] != 7 and changed == {**figure, "actions": 7}
    for key in ("environment", "curve.epsilon", "horizon"):
        refused = command(*args, "--set", f"{key}=7")
        assert refused.exit_code == 2
        assert "--set must change the environment, as environment.KEY=VALUE" in refused.stderr
    refused = command(*args[:-2], "--set", "environment.actions=7")
    assert "--set changes the environment of a spec: give --environment too" in refused.stderr


def test_the_environment_of_a_spec_is_used(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text('[environment]\nkind = "gap"\ndimension = 4\nactions = 6\ngap = 0.2\n')
    args = ["--silos", 8, "--horizon", 300, "--epsilon", 2, "--delta", 1e-5, "--seconds", 0.05]
    document = json.loads(
        command(*args, "--environment", path, "--trust", "central", "--json").stdout
    )
    assert document["dimension"] == 4
    assert document["environment"] == {"kind": "gap", "dimension": 4, "actions": 6, "gap": 0.2}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--silos", 1], "silos must be >= 2: a single silo has nobody to share with"),
        (["--epsilon", 0], "epsilon must be > 0, got 0.0"),
        (["--delta", 1], "delta must be > 0 and < 1, got 1.0"),
        (["--horizon", 1], "horizon must be an integer >= 2"),
        (["--dimension", 0], "dimension must be an integer >= 1"),
        (["--trust", "centrl"], 'did you mean "central"?'),
        (["--relation", "swap"], 'relation must be one of "replace", "zero-out"'),
        (["--seconds", 0], "seconds must be > 0, got 0.0"),
        (["--radius-multiplier", 0], "radius_multiplier must be > 0"),
        (["--write", "/nowhere/at/all.toml"], "--write must be in an existing folder"),
        (["--environment", "none.toml"], "--actions belongs to the sphere"),
    ],
)
def test_bad_input_is_one_sentence(args: list[object], message: str) -> None:
    result = command(*ARGS, *args)
    assert result.exit_code == 2, result.output
    (line,) = [text for text in result.stderr.splitlines() if text.startswith("error: ")]
    assert message in line and "Traceback" not in result.output
    assert result.stdout == ""


def test_no_dimension_is_bad_input_too() -> None:
    with pytest.raises(fastfed.InputError, match="dimension is required, or an environment"):
        plan(silos=4, horizon=50, epsilon=1.0, delta=1e-5)
    with pytest.raises(fastfed.InputError, match="dimension must be 10, the environment's, got 3"):
        plan(silos=4, horizon=50, epsilon=1.0, delta=1e-5, dimension=3, environment=Sphere())
    with pytest.raises(fastfed.InputError, match="needs contexts"):
        losses = {"kind": "stochastic-losses", "experts": 4}
        plan(silos=4, horizon=50, epsilon=1.0, delta=1e-5, environment=losses)


def test_the_block_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "plan.md").read_text(encoding="utf-8")
    block = page.split("```python\n")[1].split("```")[0]
    exec(compile(block, "plan.md", "exec"), {"__name__": "page"})
    assert "share by central, " in capsys.readouterr().out


def test_an_answer_on_real_records_notes_that_it_read_them(tmp_path: Path) -> None:
    rows = "\n".join(f"{20 + i % 50},{i % 2}" for i in range(90))
    (tmp_path / "people.csv").write_text(f"age,ill\n{rows}\n")
    table = {
        "kind": "classification", "data": str(tmp_path / "people.csv"), "label": "ill",
        "dimension": 3,
    }  # fmt: skip
    request = {
        "silos": 3, "horizon": 30, "epsilon": 1.0, "delta": 1e-5, "seconds": 0.02,
        "trust": "central",
    }  # fmt: skip
    for ranges, failed in (({}, True), ({"ranges": {"age": [0, 120]}}, False)):
        verdicts = plan(environment={**table, **ranges}, **request)
        assert verdicts.notes[0].startswith("these are simulations on the real records: choice")
        assert verdicts.notes[1:] == (
            ("fails for all: features are scaled by declared ranges, not by ranges of these data",)
            if failed
            else ()
        )
        assert verdicts.status == ("conditional" if failed else "proven")
        assert verdicts.to_builtins()["notes"] == list(verdicts.notes)
    spec = tmp_path / "spec.toml"
    keys = "\n".join(f"{k} = {json.dumps(v)}" for k, v in table.items())
    spec.write_text(f"[environment]\n{keys}\n")
    options = ["--silos", 3, "--horizon", 30, "--epsilon", 1, "--delta", 1e-5, "--seconds", 0.02]
    printed = command(*options, "--environment", spec, "--trust", "central").stdout
    assert printed.startswith("note: these are simulations on the real records")
    assert "(1, 1e-05), conditional; 3 silos" in printed
    draws = plan(**{**request, "dimension": 3, "actions": 4})
    assert draws.notes == () and draws.status == "proven"
