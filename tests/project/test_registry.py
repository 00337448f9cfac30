"""Packages add names by entry points, which are loaded on use and refused if broken."""

import json
import re
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import plugins
import pytest

import fastfed
from fastfed._registry import Registry, first_line, must_be
from fastfed._validate import InputError
from fastfed.simulation.systems import ALGORITHMS, registries

SPHERE = """
[environment]
kind = "sphere"
dimension = 2
actions = 3
"""
EXPERT = """
from fastfed.experts import ALGORITHMS, Algorithm

LEADER = ALGORITHMS["follow-the-leader"]
ALGORITHM = Algorithm("my-leader", "none", "the leader again", LEADER.config, LEADER.build)


def values(*given):
    return [1.0]
"""


def check(name, entry):
    # Without a docstring, for test_first_line_of_a_docstring.
    if not isinstance(entry, int):
        raise must_be("a whole number", entry)
    return entry


@pytest.fixture
def numbers(tmp_path, monkeypatch):
    """Return a registry with one built-in entry, and packages that add entries to it."""
    (tmp_path / "found_numbers.py").write_text("TWO, WORD = 2, 'x'\n", encoding="utf-8")
    (tmp_path / "fails.py").write_text("raise SystemExit('no\\n licence')\n", encoding="utf-8")
    group = "fastfed.test-numbers"
    plugins.write(
        tmp_path,
        "good-numbers",
        f"[{group}]\ntwo = found_numbers:TWO\none = found_numbers:TWO\ntwice = found_numbers:TWO\n",
    )
    plugins.write(
        tmp_path,
        "bad-numbers",
        f"[{group}]\nword = found_numbers:WORD\nfails = fails:X\nmissing = nowhere:X\n"
        "absent = found_numbers:THREE\ntwice = found_numbers:TWO\n",
        "3.1",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return Registry(group, "number", {"one": 1}, check)


def test_packages_add_names_after_the_built_in_ones(numbers):
    assert list(numbers) == ["one", "absent", "fails", "missing", "twice", "two", "word"]
    assert numbers["two"] == numbers.choose("two") == 2
    assert len(numbers) == 7 and "two" in numbers and "three" not in numbers
    assert numbers.origin("two") == "good-numbers 0.1.0"
    assert numbers.get("three") is None


def test_a_package_cannot_replace_a_built_in_name(numbers):
    assert numbers["one"] == 1
    assert numbers.origin("one") is None
    assert "one" not in numbers.plugins
    assert numbers.problems()["one"] == (
        'number "one" of good-numbers 0.1.0 (entry point fastfed.test-numbers: one = '
        "found_numbers:TWO) is refused: fastfed has one already"
    )


WHERE = r"of bad-numbers 3\.1 \(entry point fastfed\.test-numbers: "
FAULTS = {
    "word": f"number \"word\" {WHERE}word = found_numbers:WORD\\) must be a whole number, got 'x'",
    "fails": f'number "fails" {WHERE}fails = fails:X\\) cannot be loaded: SystemExit: no licence',
    "missing": f'number "missing" {WHERE}missing = nowhere:X\\) cannot be loaded: '
    "ModuleNotFoundError: No module named 'nowhere'",
    "absent": f'number "absent" {WHERE}absent = found_numbers:THREE\\) cannot be loaded: '
    "AttributeError: .* 'THREE'",
    "twice": r'number "twice" is claimed by (bad-numbers 3\.1|good-numbers 0\.1\.0) and by '
    r"(bad-numbers 3\.1|good-numbers 0\.1\.0); uninstall all but one",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_entry_gives_one_clear_sentence(numbers, name):
    with pytest.raises(InputError) as error:
        numbers[name]
    assert re.fullmatch(FAULTS[name], str(error.value))
    assert numbers.problems()[name] == str(error.value)
    assert set(numbers.problems()) == {*FAULTS, "one"}
    assert numbers["two"] == 2


def test_an_unknown_name_gets_the_nearest_name_as_a_hint(numbers):
    with pytest.raises(InputError, match=r'unknown number "too"; did you mean "two"\? \(known: on'):
        numbers.choose("too")
    with pytest.raises(InputError, match='unknown number "7"'):
        numbers.choose(7)


def test_entry_points_are_read_only_for_names_that_are_not_built_in(monkeypatch):
    def fail(**_):
        raise AssertionError("looked")

    monkeypatch.setattr("importlib.metadata.entry_points", fail)
    registry = Registry("fastfed.none", "number", {"one": 1}, check)
    assert registry["one"] == registry.choose("one") == 1 and "one" in registry
    with pytest.raises(AssertionError, match="looked"):
        registry.choose("two")


def test_help_and_built_in_names_never_read_entry_points(tmp_path):
    """In a child process, help and simulations of built-in names read no entry points."""
    (tmp_path / "spy.py").write_text(
        """
import importlib.metadata, sys
def no(**kw):
    raise SystemExit("looked for " + kw["group"])
importlib.metadata.entry_points = no
import fastfed
from fastfed.cli import cli
from click.testing import CliRunner
assert CliRunner().invoke(cli, ["--help"]).exit_code == 0
fastfed.simulate({"kind": "sphere", "dimension": 2, "actions": 3}, "fedlinucb", horizon=4, silos=1,
                 batch_size=2)
fastfed.privacy.calibrate("gaussian", fastfed.privacy.Budget(1.0, 1e-5))
print("never looked")
""",
        encoding="utf-8",
    )
    child = plugins.python(tmp_path, "spy.py")
    assert child.stdout == "never looked\n", child.stderr


def test_the_registries_have_built_in_names():
    assert [r.what for r in registries().values()] == [
        "algorithm", "environment", "mechanism", "score",
    ]  # fmt: skip
    assert all(len(registry.builtin) for registry in registries().values())
    with pytest.raises(InputError, match='unknown algorithm "fedlinucbb"; did you mean'):
        ALGORITHMS.choose("fedlinucbb")


@pytest.mark.parametrize(
    ("kind", "entry", "reason"),
    [
        ("algorithms", 3, "must be an Algorithm of fastfed.bandits or of fastfed.experts, got 3"),
        (
            "algorithms",
            ALGORITHMS["robin"],
            "must be an Algorithm whose id is \"mine\", got 'robin'",
        ),
        ("environments", dict, "must be a dataclass, got <class 'dict'>"),
        (
            "environments",
            fastfed.environments.Sphere,
            "must be a class whose kind is \"mine\", got 'sphere'",
        ),
        ("mechanisms", int, "must be a function (budget, releases, size) -> Calibrated, got"),
        (
            "scores",
            print,
            "must be a numba.cfunc of fastfed.protocols.score.score_signature(), or a Score, got",
        ),
    ],
)
def test_a_registry_refuses_entries_of_a_wrong_type(kind, entry, reason):
    registry = registries()[kind]
    with pytest.raises(InputError, match=re.escape(reason)):
        registry._check("mine", entry)


def test_an_environment_must_have_its_methods():
    from dataclasses import make_dataclass

    incomplete = make_dataclass(
        "Half", [], namespace={"kind": "mine", "natural_silos": lambda self: None}
    )
    with pytest.raises(InputError, match="must have the method facts"):
        registries()["environments"]._check("mine", incomplete)


def test_an_entry_point_without_a_distribution_has_an_unknown_package():
    registry = Registry("fastfed.none", "number", {}, check)
    registry._found = {"x": [EntryPoint("x", "nowhere:X", "fastfed.none")]}
    with pytest.raises(InputError, match='number "x" of an unknown package'):
        registry["x"]


def test_first_line_of_a_docstring():
    assert first_line(None) == ""
    assert first_line(check) == ""
    assert (
        first_line(numbers)
        == "Return a registry with one built-in entry, and packages that add entries to it"
    )


@pytest.fixture
def broken(tmp_path):
    """Return a folder with a broken package, and with one that adds a system of experts."""
    (tmp_path / "experts_of_mine.py").write_text(EXPERT, encoding="utf-8")
    plugins.write(
        tmp_path,
        "broken",
        "[fastfed.algorithms]\nmine = nowhere:X\nfedlinucb = nowhere:X\n"
        "[fastfed.environments]\nmine = json:loads\n[fastfed.scores]\nmine = json:loads\n"
        "[fastfed.mechanisms]\nmine = json:decoder\nthree-none = json:loads\n"
        "always-list = experts_of_mine:values\n",
        "9.9",
    )
    plugins.write(
        tmp_path, "my-experts", "[fastfed.algorithms]\nmy-leader = experts_of_mine:ALGORITHM\n"
    )
    return tmp_path


def test_list_and_doctor_work_despite_broken_packages(broken):
    child = plugins.fastfed(broken, "list", "--json")
    assert child.returncode == 0
    listed = json.loads(child.stdout)
    ids = [algorithm["id"] for algorithm in listed["algorithms"]]
    assert ids == [*ALGORITHMS.builtin, "my-leader"]
    assert listed["algorithms"][-1]["package"] == "my-experts 0.1.0"
    assert {algorithm["package"] for algorithm in listed["algorithms"][:-1]} == {None}
    warnings = child.stderr.splitlines()
    assert len(warnings) == 5 and all(line.startswith("warning: ") for line in warnings)
    assert all("broken 9.9 (entry point fastfed." in line for line in warnings)
    table = plugins.fastfed(broken, "list", "algorithms").stdout
    assert re.search(r"my-leader +none +the leader again +my-experts 0\.1\.0", table)
    doctor = plugins.fastfed(broken, "doctor", "--json")
    assert doctor.returncode == 1
    doctor_report = json.loads(doctor.stdout)
    assert doctor_report["plugins"]["algorithms"] == {
        "mine": "broken 9.9",
        "my-leader": "my-experts 0.1.0",
    }
    assert len(doctor_report["problems"]) == 5


@pytest.mark.slow
def test_built_in_names_run_despite_broken_packages(broken):
    spec = broken / "spec.toml"
    spec_head = f'name = "x"\nhorizon = 6\nsilos = 2\n{SPHERE}\n[[curve]]\nbatch_size = 3\n'
    for algorithm, exit_code in (("fedlinucb", 0), ("mine", 2)):
        spec.write_text(f'{spec_head}algorithm = "{algorithm}"\n', encoding="utf-8")
        child = plugins.fastfed(broken, "run", spec, "-o", broken / algorithm)
        assert child.returncode == exit_code, child.stderr
        assert "Traceback" not in child.stderr
    assert re.fullmatch(
        r'error: .*algorithm "mine" of broken 9\.9 \(entry point fastfed\.algorithms: mine = '
        r"nowhere:X\) cannot be loaded: ModuleNotFoundError: No module named 'nowhere' "
        r'\(curve "mine"\)\n',
        child.stderr,
    )
    assert not (broken / "mine").exists()
    for arguments, sentence in (
        (("calibrate", "mine"), "must be a function (budget, releases, size) -> Calibrated, got"),
        (
            ("calibrate", "three-none"),
            "failed: TypeError: loads() takes 1 positional argument but 3",
        ),
        (
            ("calibrate", "always-list"),
            'mechanism "always-list" must return a Calibrated, got [1.0',
        ),
    ):
        child = plugins.fastfed(broken, *arguments, "--epsilon", 1, "--delta", 1e-5)
        assert child.returncode == 2 and sentence in child.stderr, child.stderr
        assert "Traceback" not in child.stderr


def test_a_package_can_add_a_system_of_experts(broken):
    """The results equal those of the built-in system that it wraps, with both drivers."""
    (broken / "play.py").write_text(
        """
import numpy as np
import fastfed
losses = {"kind": "stochastic-losses", "experts": 4}
both = "my-leader", "follow-the-leader"
curves = [{"label": name, "algorithm": name, "phase_length": 3} for name in both]
for driver in ("compiled", "step"):
    r = fastfed.simulate(losses, curves=curves, horizon=30, silos=3, seed=1, driver=driver)
    np.testing.assert_array_equal(r.curves[0].group_regret, r.curves[1].group_regret)
    assert r.curves[0].packages == {"algorithm": "my-experts 0.1.0"} and r.curves[1].packages == {}
print(r.curves[0].final()["mean"] > 0)
""",
        encoding="utf-8",
    )
    child = plugins.python(broken, "play.py")
    assert child.stdout == "True\n", child.stderr


def test_an_exception_in_a_package_is_reported_with_the_package_name(numbers):
    sentence = f'"word" {WHERE}.* failed: ZeroDivisionError: division'
    with pytest.raises(InputError, match=sentence), numbers.guard("word"):
        1 / 0  # noqa: B018
    with pytest.raises(InputError, match=r"^mine$"), numbers.guard("word"):
        raise InputError("mine")
    with pytest.raises(ZeroDivisionError), numbers.guard("one"):
        1 / 0  # noqa: B018


def test_the_text_of_each_planted_fault_occurs_once():
    """`scripts/mutants --list` plants a fault in place of this text, which a change may move."""
    root = Path(__file__).resolve().parents[2]
    faults = tomllib.loads((root / "scripts/faults.toml").read_text(encoding="utf-8"))["fault"]
    assert len(faults) == 60
    for fault in faults:
        text = (root / fault["file"]).read_text(encoding="utf-8")
        assert text.count(fault["old"]) == 1, fault["harm"]
