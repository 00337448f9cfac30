"""Tests of memory estimates against measured memory, and of errors about runs that do not fit."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from problems import ordinary_cases

import fastfed
from fastfed import InputError
from fastfed._memory import available, format_size, parse_size
from fastfed.cli import cli
from fastfed.results.store import FILE, Store
from fastfed.simulation import compiled, dispatch, driver
from fastfed.simulation.dispatch import OutOfMemory, Resources, estimate, largest_layout
from fastfed.simulation.experiment import experiment_from_spec

LDP = {
    "algorithm": "private-fedlinucb", "protocol": "silo-ldp", "epsilon": 1.0, "delta": 1e-5,
    "batch_size": 5,
}  # fmt: skip


def spec(*curves, **changes):
    """Return a small spec with these curves."""
    curves = curves or ({"algorithm": "local-linucb"},)
    return {
        "name": "small",
        "horizon": 20,
        "silos": 4,
        "replicates": 2,
        "checkpoints": 5,
        "environment": {"kind": "sphere", "dimension": 3, "actions": 5},
        "curve": [{"label": f"{i}", **curve} for i, curve in enumerate(curves)],
        **changes,
    }


def make(*curves, **changes):
    """Return the experiment of a small spec with these curves."""
    return experiment_from_spec(spec(*curves, **changes))


# ---- available memory ----------------------------------------------------------------------------


def available_in(
    tmp_path, meminfo="MemTotal: 9000 kB\nMemAvailable:    8000 kB\n", cgroup="", **files
):
    """Write files of /proc and /sys and return the memory that is available according to them."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(meminfo)
    (tmp_path / "proc" / "self" / "cgroup").write_text(cgroup)
    for name, text in files.items():
        path = tmp_path / "sys" / "fs" / "cgroup" / name.replace("__", "/").replace("--", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return available(tmp_path / "proc")


def test_without_control_groups_meminfo_counts(tmp_path):
    assert available_in(tmp_path) == 8000 * 1024


def test_control_groups_of_version_2_and_their_parents_count(tmp_path):
    limits = {
        "a__b__memory--max": "max\n", "a__b__memory--current": "7\n",
        "a__memory--max": "5000000\n", "a__memory--current": "2000000\n",
        "a__memory--stat": "anon 4\ninactive_file 500000\n",
    }  # fmt: skip
    assert available_in(tmp_path, cgroup="0::/a/b\n", **limits) == 3_500_000


def test_control_groups_of_version_1_with_the_hosts_path_count(tmp_path):
    limits = {
        "memory__memory--limit_in_bytes": "3000000\n",
        "memory__memory--usage_in_bytes": "1000000\n",
        "memory__memory--stat": "cache 1\ntotal_inactive_file 200000\n",
    }
    lines = "3:cpu:/x\n4:memory,hugetlb:/docker/123\n0::/\n"
    assert available_in(tmp_path, cgroup=lines, **limits) == 2_200_000


def test_a_full_control_group_leaves_no_memory(tmp_path):
    limits = {"memory--max": "10\n", "memory--current": "20\n"}
    assert available_in(tmp_path, cgroup="0::/\n", **limits) == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ulimit -v as on Linux")
def test_a_limit_on_address_space_counts():
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "from fastfed._memory import available; print(available())"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert 0 < int(process.stdout) < 2 << 30


def test_sizes_are_parsed_and_formatted():
    assert [parse_size("m", v) for v in ("40GB", "1.5 GiB", "300m", "7", 9, 4e9)] == [
        40 * 10**9, 3 * 2**29, 3 * 10**8, 7, 9, 4 * 10**9,
    ]  # fmt: skip
    for bad_value in ("", "GB", "-1GB", "4 elephants", 0, -3, True, None, "0", 1e30, float("nan")):
        with pytest.raises(InputError, match="m must be a size such as"):
            parse_size("m", bad_value)
    sizes = (500, 2.4e6, 999.9e6, 31.4e9, 3.14e12, 1e15, 1e24)
    assert [format_size(s) for s in sizes] == [
        "500 bytes", "2.4 MB", "1 GB", "31 GB", "3.1 TB", "1 PB", "1.0e+09 PB",
    ]  # fmt: skip


# ---- estimates -----------------------------------------------------------------------------------

CHILD = """
import json, sys, tempfile
import fastfed
from fastfed.simulation.experiment import experiment_from_spec
from fastfed.simulation.dispatch import estimate
from fastfed.simulation.dispatch import Resources
spec, driver = json.loads(sys.argv[1]), sys.argv[2]
experiment = experiment_from_spec(spec)
kept = driver == "step"
found = estimate(experiment, Resources(1), driver=driver, kept=kept).bytes
if kept:
    spec["curves"] = spec.pop("curve")
    fastfed.simulate(**spec, driver=driver)
else:
    with tempfile.TemporaryDirectory() as folder:
        fastfed.run(experiment, folder, threads=1)
# Not ru_maxrss: a child's begins with what its parent has.
with open("/proc/self/status") as lines:
    most = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
print(json.dumps([found, 1024 * most]))
"""

#: About 300 MB each, dominated by different terms: states of silos and nodes, checkpoints, and
#: objects.
CASES = {
    "states": (
        spec(LDP, silos=2500, environment={"kind": "sphere", "dimension": 57, "actions": 5}),
        "compiled",
    ),
    "marks": (spec(silos=1000, horizon=35_000, replicates=1, checkpoints=35_000,
              environment={"kind": "sphere", "dimension": 2, "actions": 2}), "compiled"),
    "objects": (
        spec(LDP, silos=1200, replicates=1, horizon=20,
             environment={"kind": "sphere", "dimension": 57, "actions": 5}),
        "step",
    ),
}  # fmt: skip


def measure_memory(spec, driver):
    """Return the estimate and the peak memory of a run in a new process, in bytes."""
    command = [sys.executable, "-c", CHILD, json.dumps(spec), driver]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(process.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    "name", ordinary_cases(CASES, lambda name: name not in ("marks", "objects"))
)
def test_estimates_agree_with_measured_memory(name):
    spec_table, driver = CASES[name]
    small = {**spec_table, "silos": 2, "horizon": 20, "checkpoints": 5}
    small["environment"] = {**spec_table["environment"], "dimension": 2}
    (_, small_peak), (estimated, peak) = (
        measure_memory(small, driver),
        measure_memory(spec_table, driver),
    )
    used = peak - small_peak
    print(f"{name}: {estimated / 1e6:.0f} MB estimated, {used / 1e6:.0f} MB taken")
    assert used > 150e6
    assert 0.9 * used < estimated < 1.5 * used


def test_estimated_shapes_equal_those_of_the_state():
    """Check that the estimate knows every array that grows with the number of silos."""
    for keys in (LDP, {**LDP, "lazy": False, "protocol": "silo-ldp-prefix"}, {"algorithm": "feducb",
                 "epsilon": 1.0, "delta": 1e-5}, {**LDP, "release": "toeplitz"}):  # fmt: skip
        plan = make(keys).curves[0].system.plan
        estimated_shapes = compiled.shapes(plan, 5)
        state = compiled.state(plan, 5, False)
        arrays = {key: value for key, value in state.items() if isinstance(value, np.ndarray)}
        for name, values in arrays.items():
            if name in estimated_shapes:
                assert (
                    values.shape == estimated_shapes[name][0]
                    and values.dtype == estimated_shapes[name][1]
                ), name
            else:  # arrays of the plan, or one number per silo
                assert values.size <= max(plan.silos, 3 * len(plan.regularizer), 500), name
        if plan.trigger is not None:
            trigger = {
                key: value
                for key, value in state["trigger"].items()
                if isinstance(value, np.ndarray)
            }
            assert set(trigger) == set(compiled.trigger_shapes(plan))


def test_estimates_of_every_kind_of_plan_grow_with_silos():
    kinds = [
        (LDP, {}),
        ({"algorithm": "feducb", "epsilon": 1.0, "delta": 1e-5}, {}),
        ({"algorithm": "feducb-decentralized", "epsilon": 1.0, "delta": 1e-5}, {}),
        ({"algorithm": "robin", "initial_phases": 2, "epsilon": 1.0, "delta": 1e-5,
          "diversity": 0.1, "margin": 0.1}, {}),
        ({**LDP, "protocol": "shuffle-vector", "messages": "individual"}, {}),
        ({"algorithm": "fed-dp-ope-stoch", "noise": "none"},
         {"horizon": 500, "environment": {"kind": "stochastic-losses", "experts": 10}}),
        ({"algorithm": "random"}, {"environment": {"kind": "fixed-set", "dimension": 3}}),
    ]  # fmt: skip
    for keys, changes in kinds:
        few, many = (estimate(make(keys, silos=m, **changes), Resources()).bytes for m in (4, 40))
        assert 0 < few < many, keys


def test_memory_reported_by_an_environment_is_counted():
    class Large(fastfed.environments.Sphere):
        """An environment that says it needs much memory."""

        def memory(self, silos, horizon, curves):
            return 10**9 * curves

    default_environment, large_environment = (
        fastfed.environments.Sphere(dimension=3, actions=5),
        Large(dimension=3, actions=5),
    )
    plans = [make().curves[0].system.plan] * 2
    facts = default_environment.facts(4, 20)
    estimates = [
        dispatch.bytes_of(dispatch.memory_of_batch(environment, facts, plans, 5, 1))
        for environment in (default_environment, large_environment)
    ]
    assert estimates[1] - estimates[0] == 2 * 10**9


def test_mapped_arrays_are_recognised(tmp_path):
    from fastfed.environments.pool import is_mapped

    np.save(tmp_path / "a.npy", np.zeros(100))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert is_mapped(mapped) and is_mapped(np.asarray(mapped)[10:])
    assert not is_mapped(np.zeros(100)[3:])


# ---- errors --------------------------------------------------------------------------------------

TOO_LARGE = {
    "silos": ({"silos": 2**31}, r"about 6\d\d GB \(silo states .* 2 147 483 648 silos x d = 3"),
    "replicates": (
        {"replicates": 10**9},
        r"about 1\.3 TB \(results .*1 000 000 000 curve replicates x 5 check",
    ),
    "actions": (
        {"environment": {"kind": "sphere", "dimension": 9, "actions": 2 * 10**9}},
        r"about \d+ GB \(actions of a round .* 2 000 000 000 actions x d = 9",
    ),
    "dimension": (
        {"silos": 100_000, "environment": {"kind": "sphere", "dimension": 2**15, "actions": 2}},
        r"about 1\.[35] PB \(silo states .* 100 000 silos x d = 32768",
    ),
}


@pytest.mark.parametrize("name", list(TOO_LARGE))
def test_runs_that_do_not_fit_are_refused_before_anything_is_written(name, tmp_path):
    changes, message = TOO_LARGE[name]
    experiment = make(**changes)
    with pytest.raises(InputError, match=rf"this run needs {message}.*and [\d.]+ [A-Z]B are avail"):
        fastfed.run(experiment, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    sizes = spec(**changes)
    sizes["curves"] = sizes.pop("curve")
    with pytest.raises(InputError, match=r"this run needs about .*tries all the same|need less"):
        fastfed.simulate(**sizes)


@pytest.mark.parametrize(
    "changes",
    [
        {"horizon": 2**32 - 2, "checkpoints": 2**32 - 2},
        {"horizon": 2**32 - 2, "curve": [{**LDP, "batch_size": 1}]},
        {"horizon": 2**32 - 2, "silos": 1, "curve": [{"algorithm": "linucb-ldp", "epsilon": 1.0,
         "delta": 1e-5}]},
    ],
)  # fmt: skip
def test_sizes_that_cannot_be_planned_are_refused_at_once(changes, monkeypatch):
    monkeypatch.setattr(driver, "available", lambda: 16 * 10**9)
    with pytest.raises(
        InputError, match=r"this run needs about \d+ GB .*, and 16 GB are available"
    ):
        make(**changes)


@pytest.mark.parametrize("key", ["silos", "horizon", "replicates"])
def test_numbers_beyond_all_bounds_raise_input_errors(key):
    with pytest.raises(InputError, match=f"{key} must be an integer"):
        make(**{key: 10**15})


def test_memory_limit_replaces_the_available_memory(tmp_path, monkeypatch):
    experiment = make()
    needed = estimate(experiment, Resources(1)).bytes
    with pytest.raises(InputError, match=r"memory_limit is 1 kB: .*tries all the same"):
        fastfed.run(experiment, tmp_path / "out", memory_limit=1000)
    monkeypatch.setattr(dispatch, "available", lambda: 1000)
    with pytest.raises(InputError, match="1 kB are available"):
        fastfed.run(experiment, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    fastfed.run(experiment, tmp_path / "out", threads=1, memory_limit=needed)
    # All replicates are stored; only reading needs memory.
    read_bytes = estimate(experiment, Resources(1), done=2).bytes
    assert read_bytes < needed
    fastfed.run(experiment, tmp_path / "out", threads=1, memory_limit=read_bytes)
    monkeypatch.setattr(dispatch, "available", lambda: None)
    assert largest_layout(experiment, Resources()).reduced == ""


def test_runs_that_fit_only_in_parts_give_the_same_results(tmp_path):
    curves = [LDP, {"algorithm": "fedlinucb", "batch_size": 4}, {**LDP, "lazy": False}]
    experiment = make(*curves, silos=60, replicates=6)
    full_layout = largest_layout(experiment, Resources(3, memory_limit="1TB"))
    assert (full_layout.at_once, full_layout.together, full_layout.reduced) == (3, 64, "")
    min_bytes = estimate(experiment, Resources(3), at_once=1, together=1).bytes
    bytes_of_one_batch = estimate(experiment, Resources(3), at_once=1).bytes
    results_by_limit = {}
    for limit, layout in ((10**12, (3, 64)), (bytes_of_one_batch, (1, 64)), (min_bytes, (1, 1))):
        fitted = largest_layout(experiment, Resources(3, memory_limit=limit))
        assert (fitted.at_once, fitted.together) == layout
        assert fitted.bytes <= limit
        folder = tmp_path / str(limit)
        results = fastfed.run(experiment, folder, threads=3, memory_limit=limit)
        results_by_limit[limit] = [curve.group_regret.tobytes() for curve in results.curves]
    assert len({tuple(regrets) for regrets in results_by_limit.values()}) == 1
    assert "1 of 3 batches at once and at most 1 curves" in fitted.reduced
    with pytest.raises(InputError, match="this run needs"):
        largest_layout(experiment, Resources(3, memory_limit=min_bytes - 1))


def test_fewer_processes_run_if_memory_is_short(tmp_path):
    experiment = make(LDP, silos=2000, replicates=2)
    bytes_of_one_batch = estimate(experiment, Resources(2, "processes"), at_once=1).bytes
    fitted = largest_layout(experiment, Resources(2, "processes", memory_limit=bytes_of_one_batch))
    assert fitted.at_once == 1 and "1 of 2 batches at once" in fitted.reduced


# ---- when memory is exhausted --------------------------------------------------------------------


def test_no_store_is_left_if_memory_is_exhausted_at_once(tmp_path, monkeypatch):
    def raise_memory_error(*args, **keys):
        raise MemoryError("Unable to allocate 7 PiB")

    monkeypatch.setattr(dispatch, "run", raise_memory_error)
    with pytest.raises(OutOfMemory, match=r"out of memory: this run needs about .* need less"):
        fastfed.run(make(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with pytest.raises(MemoryError):
        fastfed.run(make(), tmp_path / "mine")
    assert list((tmp_path / "mine").iterdir()) == []
    sizes = spec()
    with pytest.raises(OutOfMemory):
        fastfed.simulate(sizes["environment"], "local-linucb", silos=2, horizon=5)


def test_finished_replicates_are_kept_if_memory_is_exhausted_later(tmp_path, monkeypatch):
    original_run, calls = dispatch.run, []

    def fail_after_two(*args, **keys):
        """Run as before; the third call exhausts memory."""
        calls.append(1)
        if len(calls) > 2:
            raise MemoryError
        return original_run(*args, **keys)

    experiment = make(replicates=5)
    monkeypatch.setattr(dispatch, "run", fail_after_two)
    with pytest.raises(OutOfMemory):
        fastfed.run(experiment, tmp_path / "out", threads=1)
    with Store.open_existing(tmp_path / "out") as store:
        assert len(store.done()) == 2
    monkeypatch.setattr(dispatch, "run", original_run)
    resumed = fastfed.run(experiment, tmp_path / "out", threads=1)
    uninterrupted = fastfed.run(experiment, tmp_path / "straight", threads=1)
    np.testing.assert_array_equal(
        resumed.curves[0].group_regret, uninterrupted.curves[0].group_regret
    )


# ---- the command ---------------------------------------------------------------------------------

TOML = """
name = "small"
horizon = 20
silos = {silos}
replicates = 2

[environment]
kind = "sphere"
dimension = 3
actions = 5

[[curve]]
label = "alone"
algorithm = "local-linucb"
"""


def command(*words):
    """Run ``python -m fastfed`` with these arguments."""
    return subprocess.run(
        [sys.executable, "-m", "fastfed", *map(str, words)], capture_output=True, text=True
    )


def test_command_refuses_with_one_sentence_and_leaves_no_files(tmp_path):
    path, out = tmp_path / "spec.toml", tmp_path / "out"
    path.write_text(TOML.format(silos=2**31))
    too_large = command("run", path, "-o", out)
    assert too_large.returncode == 2 and not out.exists()
    assert too_large.stderr.startswith("error: this run needs about ")
    assert "Traceback" not in too_large.stderr and too_large.stderr.count("\n") == 1
    path.write_text(TOML.format(silos=3))
    bad_size = command("run", path, "-o", out, "--memory", "much")
    assert bad_size.returncode == 2 and '--memory must be a size such as "40GB"' in bad_size.stderr
    small_limit = command("run", path, "-o", out, "--memory", "2kB")
    assert small_limit.returncode == 2 and "memory_limit is 2 kB" in small_limit.stderr
    assert not out.exists()
    assert command("run", path, "-o", out, "--memory", "1GB").returncode == 0
    assert (out / FILE).exists()


def test_a_dry_run_shows_the_memory(tmp_path):
    run = CliRunner().invoke(
        cli, ["reproduce", "zc24-fig3a", "--quick", "--dry-run", "-o", str(tmp_path)]
    )
    assert run.exit_code == 0, run.output
    header, row, *_ = run.stdout.splitlines()
    assert header.split()[-1] == "memory" and row.split()[-1] in {"kB", "MB"}
    doctor = CliRunner().invoke(cli, ["doctor", "--json"])
    assert json.loads(doctor.stdout)["memory"] > 10**6


def test_number_of_workers_is_limited_by_memory(monkeypatch):
    terms = [dispatch.Term("silo states", 400, "4 silos", "silos")]
    for available_bytes, workers in ((None, 3), (1200, 3), (1199, 2), (400, 1)):
        monkeypatch.setattr(
            driver, "available", lambda available_bytes=available_bytes: available_bytes
        )
        assert driver.batches_that_fit(terms, 3) == workers
    monkeypatch.setattr(driver, "available", lambda: 399)
    with pytest.raises(InputError, match=r"this run needs about 400 bytes \(silo states"):
        driver.batches_that_fit(terms, 3)
