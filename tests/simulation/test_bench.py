"""`fastfed bench` measures every kind of case; reference agents act like fastfed's agents."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy_float32
import peaks
import pytest
import reference_agent
import reference_cases
from problems import ordinary_cases

from fastfed._validate import InputError
from fastfed.environments import FixedSet, Sphere
from fastfed.simulation import bench, compiled, limits
from fastfed.simulation.bench import (
    CASES,
    Case,
    LetorPool,
    SyntheticPool,
    experiments_of,
    fixed_set_work,
    measure,
    pool_work,
    sphere_work,
)
from fastfed.simulation.experiment import Experiment, make_experiment
from fastfed.simulation.limits import Bound, Peaks, Work

#: Peaks per second, about one operation or one byte per nanosecond; farther memory is slower.
PEAKS = Peaks(
    {
        **{"int16": 1e9, "float32": 1e9, "float64": 5e8, "roots": 1e8, "normals": 1e8},
        **{"L1": 5e9, "L2": 1e9, "L3": 5e8, "DRAM": 1e8},
    },
    {"L1": 1000, "L2": 4000, "L3": 10000},
)


def small_set() -> FixedSet:
    """Return an environment with one fixed set of eight actions."""
    return FixedSet(dimension=3, actions=8)


AGENTS = {case.protocol: case for case in CASES if case.name.startswith("fixed-k100-d5")}


@pytest.mark.parametrize(
    "case",
    [
        Case("sphere", sphere_work, lambda: Sphere(dimension=3, actions=4), 50, 25),
        Case(
            "bits", sphere_work, lambda: Sphere(dimension=10, actions=4), 50, 4, "shuffle-vector",
            reference_sizes=(2, 1),
        ),
        Case("pool", pool_work, lambda: SyntheticPool(5, 4, queries=20), 50, 25),
        Case("letor", pool_work, lambda: LetorPool(4, 30), 50, 25, "default", batch_size=None),
        Case("late", pool_work, lambda: LetorPool(4, 30), 50, 25, "default-eager", batch_size=None),
        Case("set", fixed_set_work, lambda: FixedSet(13, 8), 60, 40, "default-linucb", 1, None),
        *(
            Case(system, None, small_set, 60, 40, system, 1, case.batch_size)
            for system, case in AGENTS.items()
        ),
    ],
    ids=lambda case: case.name,
)  # fmt: skip
def test_every_kind_of_case_is_measured(case):
    measurement = measure(case, reference_cases.reference_microseconds, 1, lambda: PEAKS)
    assert measurement["name"] == case.name
    assert measurement["microseconds_per_agent_round"] > 0
    assert measurement["ratio"] >= measurement["ratio_without_data"] > 0
    if case.work is None:
        assert (
            measurement["limit_microseconds"]
            is measurement["bound"]
            is measurement["share_of_limit"]
            is None
        )
    else:
        assert measurement["bound"] in (*limits.ARITHMETIC, *limits.MEMORY)
        microseconds = measurement["limit_microseconds"] / measurement["share_of_limit"]
        assert microseconds == pytest.approx(measurement["microseconds_per_agent_round"])


def test_without_the_reference_there_are_no_ratios_and_no_limit():
    case = Case("sphere", sphere_work, lambda: Sphere(dimension=3, actions=4), 50, 25)
    measurement = measure(case, None, 1)
    assert measurement["microseconds_per_agent_round"] > 0
    assert {key for key, value in measurement.items() if value is None} == {
        *("reference_microseconds_per_agent_round", "ratio", "ratio_without_data"),
        *("limit_microseconds", "bound", "share_of_limit"),
    }


def test_a_bound_is_the_longer_of_arithmetic_and_memory_time():
    """Arithmetic times add up, and so do memory times; the slowest unit gives the name."""
    work = Work(int16=4e3, float64=1e3, reads=((5e2, 10.0), (5e2, 1e9)))
    assert limits.bound(work, PEAKS) == Bound(pytest.approx(4.0 + 2.0), "int16")
    memory_bound_work = Work(int16=4e3, reads=((5e2, 10.0), (5e3, 5e3)))
    assert limits.bound(memory_bound_work, PEAKS) == Bound(pytest.approx(0.1 + 10.0), "L3")
    assert limits.bound(Work(), PEAKS).microseconds == 0.0


@pytest.mark.parametrize("kind", ["int16", "roots"])
def test_work_without_a_measured_rate_counts_as_float32(kind):
    rates = {name: rate for name, rate in PEAKS.rates.items() if name != kind}
    bound = limits.bound(Work(float32=1e3, **{kind: 2e3}), Peaks(rates, PEAKS.sizes))
    assert bound == Bound(pytest.approx(3.0), "float32")


@pytest.mark.parametrize(("radius", "bonuses"), [("direct", 2), ("lemma-c2", 1)])
def test_the_work_of_the_sphere_counts_every_bonus(radius, bonuses):
    """Each of four actions in three dimensions has two normals and a root for its norm."""
    environment, curve = Sphere(dimension=3, actions=4), {"label": "a", **bench.CURVES["default"]}
    experiment = make_experiment(
        name="work", environment=environment, curves=[{**curve, "radius": radius}], horizon=50,
        silos=2,
    )  # fmt: skip
    work = sphere_work(experiment)
    assert (work.normals, work.roots) == (4 * 2, 4 * (bonuses + 1))
    assert work.float32 == 4 * (bonuses * (2 * 6 + 2 * 3) + 5 * 3)


def test_a_peak_is_the_better_of_two_measurements():
    other_peaks = Peaks({**PEAKS.rates, "int16": 5e9, "L1": 1e9}, PEAKS.sizes)
    assert limits.best_of(PEAKS, other_peaks).rates == {**PEAKS.rates, "int16": 5e9}


def test_the_work_of_a_pool_follows_its_batches():
    """Two silos have ten queries each; a batch of 25 rounds is followed by one of 10."""
    case = Case("pool", pool_work, lambda: SyntheticPool(6, 3, queries=20), 35, 25, silos=2)
    experiment = experiments_of(case)[0]
    plan = experiment.curves[0].system.plan
    assert (plan.releases, plan.end(1), plan.lazy) == (1, 25, False)
    distinct_queries = 10 * (1 - 0.9**25 + 1 - 0.9**10) / 35
    work = pool_work(experiment)
    assert work.int16 == pytest.approx(2 * 6 * (distinct_queries * 6 + 3))
    assert work.float64 == pytest.approx(7 * 6 + 2 / 3 * 27 / (35 * 2))
    assert work.bytes == pytest.approx(2 * 6 * 3 + 2 * distinct_queries * 6 + 8 * 6)


@pytest.mark.skipif(sys.platform != "linux", reason="peaks.c is for gcc and clang on Linux")
def test_peaks_are_measured():
    """Measured peaks are plausible: float64 is no faster than float32, DRAM no faster than L1."""
    measured_peaks = peaks.measure(runs=3)
    assert measured_peaks is not None and set(measured_peaks.rates) >= {
        *limits.MEMORY,
        "float32",
        "float64",
        "roots",
    }
    assert measured_peaks.rates["float64"] < 1.2 * measured_peaks.rates["float32"]
    assert measured_peaks.rates["roots"] < 1.2 * measured_peaks.rates["float32"]
    assert measured_peaks.rates["DRAM"] < 1.2 * measured_peaks.rates["L1"]
    assert all(1e7 < rate < 1e13 for rate in measured_peaks.rates.values())


def test_the_vector_case_has_the_tree_of_the_paper():
    """Both experiments have T / B = 400, so a data point is encoded for 4.76 nodes on average."""
    (case,) = [c for c in CASES if c.name == "sphere-k100-d10-vector"]
    assert [e.curves[0].system.plan.releases for e in experiments_of(case)] == [400, 400]


def test_cases_are_found_by_the_start_of_their_name():
    assert bench.cases_of([]) == list(CASES)
    names = [case.name for case in bench.cases_of(["fixed-k100-d5", "pool-k908"])]
    assert names == [
        "pool-k908-d135",
        "fixed-k100-d5",
        "fixed-k100-d5-jdp",
        "fixed-k100-d5-ldp",
        "fixed-k100-d5-amp",
        "fixed-k100-d5-vec",
    ]
    with pytest.raises(InputError, match='no bench starts with "fixd"'):
        bench.cases_of(["sphere", "fixd"])


def agent_experiment(system: str, horizon: int, **keys: Any) -> Experiment:
    """Return an experiment with one agent."""
    batch_size = AGENTS[system].batch_size
    curve = {"label": system, **bench.CURVES[system], "batch_size": batch_size, **keys}
    return make_experiment(
        name="small", environment=small_set(), curves=[curve], horizon=horizon, silos=1
    )


#: Keys of the compared agents. The regularizers exceed the noise, so that V stays definite.
AGENT_KEYS: dict[str, dict[str, Any]] = {
    "linucb": {},
    "linucb-jdp": {"regularizer": 150.0},
    "linucb-ldp": {"regularizer": 100.0},
    "linucb-sdp-amp": {"regularizer": 100.0, "epsilon": 0.5},
    "linucb-sdp-vec": {"regularizer": 100.0},
}


@pytest.mark.parametrize(
    "system", ordinary_cases(AGENTS, lambda system: system in ("linucb", "linucb-ldp"))
)
def test_the_reference_of_an_agent_has_the_regret_of_fastfeds_agent(system, monkeypatch):
    """The mean difference of final regrets over 100 shared instances is near 0.

    The check is a Student t test with 99 degrees of freedom. |t| > 4.5 happens by chance for one
    seed in 5e4, for each of the five systems.
    """
    instances = 100
    experiment = agent_experiment(system, 200, **AGENT_KEYS[system])
    plan = experiment.curves[0].system.plan
    outcomes = [
        compiled.run(
            experiment.environment.open(experiment.seed, instance, 1),
            [plan],
            experiment.checkpoints,
        )[0]
        for instance in range(instances)
    ]
    assert not any(outcome.events["indefinite"] for outcome in outcomes)

    def t_of_reference():
        """Return the t statistic of the differences in final regret."""
        regret_differences = [
            reference_cases.agent_reference(experiment, instance)["group_regret"][-1]
            - outcomes[instance].group_regret[-1]
            for instance in range(instances)
        ]
        return (
            np.mean(regret_differences) / np.std(regret_differences, ddof=1) * math.sqrt(instances)
        )

    assert abs(t_of_reference()) < 4.5
    if system != "linucb":
        # The test has power: a reference without noise has a different regret.
        monkeypatch.setattr(reference_cases, "agent_sums", lambda *_: reference_agent.PlainSums(3))
        assert abs(t_of_reference()) > 4.5


@pytest.mark.parametrize("system", [name for name in AGENTS if name != "linucb"])
def test_the_reference_of_an_agent_has_the_noise_of_the_plan(system):
    """A first release of users without data is pure noise with the plan's standard deviations.

    The test draws 600 releases with d = 3, so three entries of each kind. A measured standard
    deviation has a relative standard error of at most 1.7 %. An error of 9 % exceeds five of
    these, which happens by chance for one seed in 1e6.
    """
    experiment = agent_experiment(system, 200)
    plan = experiment.curves[0].system.plan
    mechanism = np.random.default_rng(4)
    bias, covariance = [], []
    for _ in range(600):
        sums = reference_cases.agent_sums(plan, mechanism)
        for _ in range(plan.batch_size):
            sums.add(np.zeros(3), 0.0)
        matrix, vector = sums.release()
        assert np.array_equal(matrix, matrix.T)
        bias.append(vector)
        covariance.append(matrix)
    covariances = np.array(covariance)
    diagonal, off_diagonal = (
        covariances[:, range(3), range(3)],
        covariances[:, [0, 0, 1], [1, 2, 2]],
    )
    expected_std = plan.noise_std.parts
    if plan.encoding is not None:
        trials = plan.batch_size * plan.encoding.noise_bits[0]
        g = plan.encoding.steps(0)
        expected_std = [math.sqrt(3 / 16 * trials) / g[i] for i in (0, 1, 1)]
    measured_std = [
        np.sqrt(np.mean(np.square(entries))) for entries in (bias, off_diagonal, diagonal)
    ]
    np.testing.assert_allclose(measured_std, expected_std, rtol=0.09)


@pytest.mark.parametrize("options", [[], ["--once"]])
def test_the_bench_of_real_rows_runs(options: list[str], tmp_path: Path) -> None:
    rows = [
        f"{(q + row) % 3} qid:{q} " + " ".join(f"{j}:{(7 * q + 3 * row + j) % 11}" for j in columns)
        for columns in [range(1, 137)]
        for q in range(1, 9)
        for row in range(3)
    ]
    (tmp_path / "train.txt").write_text("\n".join(rows) + "\n")
    program = Path(numpy_float32.__file__).with_name("real_rows.py")
    command = [sys.executable, str(program), str(tmp_path), "--features", "both", *options]
    sizes = ["--queries", "60", "--rounds", "4", "--processes", "1"]
    # The tests may run with PYTHONSAFEPATH, which hides the program's own folder.
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (program.parent, *sys.path)))
    }
    done = subprocess.run(
        [*command, *sizes], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    output = done.stdout
    assert [line.split()[:3] for line in output.splitlines()[2:]] == [
        ["135,", "60,", "lazy"],
        ["135,", "60,", "eager"],
    ]
