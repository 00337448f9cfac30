"""Names of fastfed 0.1 that have new ones: they still work, and warn with the new name."""

import dataclasses
import importlib
import subprocess
import sys

import pytest

import fastfed
from fastfed import counter_rng, environments


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        (environments, "Facts", "EnvironmentSpec"),
        (environments, "LossFacts", "LossSpec"),
        (environments, "RewardLaw", "RewardDistribution"),
        (fastfed, "LossFacts", "LossSpec"),
    ],
)
def test_a_renamed_class_warns_with_its_new_name(module, old, new):
    with pytest.warns(DeprecationWarning, match=f"{module.__name__}.{old} is .*{new}") as seen:
        found = getattr(module, old)
    assert found is getattr(module, new)
    assert seen[0].filename == __file__
    assert old not in module.__all__


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("fastfed.bandits.silo", "fastfed.bandits.peer", ("Estimator", "Message", "Peer")),
        ("fastfed.experts.plan", "fastfed.experts.parties", ("ExpertClient", "ExpertServer")),
    ],
)
def test_names_of_a_module_that_was_split_are_found_in_the_old_one(old, new, names):
    before, now = importlib.import_module(old), importlib.import_module(new)
    for name in names:
        with pytest.warns(DeprecationWarning, match=f"{old}.{name} is now {new}.{name}") as seen:
            assert getattr(before, name) is getattr(now, name)
        assert seen[0].filename == __file__
    with pytest.raises(AttributeError, match="no attribute 'Pear'"):
        _ = before.Pear


@pytest.mark.parametrize("module", [fastfed, environments])
def test_other_names_are_still_missing(module):
    with pytest.raises(AttributeError, match="no attribute 'Fact'"):
        _ = module.Fact


def test_keyed_is_counter_rng():
    with pytest.warns(DeprecationWarning, match=r"use fastfed\.counter_rng"):
        sys.modules.pop("fastfed.keyed", None)
        keyed = importlib.import_module("fastfed.keyed")
    assert all(getattr(keyed, name) is getattr(counter_rng, name) for name in keyed.__all__)
    assert keyed.__all__ == counter_rng.__all__


@pytest.mark.parametrize(
    "line",
    ["from fastfed import keyed", "from fastfed.keyed import normal", "import fastfed.keyed"],
)
def test_every_import_of_keyed_works(line):
    command = [
        sys.executable,
        "-W",
        "always",
        "-c",
        f"{line}; import fastfed; fastfed.keyed.normal",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "DeprecationWarning" in done.stderr and "fastfed.counter_rng" in done.stderr


def test_an_environment_written_for_0_1_runs():
    """A plugin's class by the old names: its method ``facts`` and its fields stay."""
    with pytest.warns(DeprecationWarning):
        from fastfed.environments import Facts, RewardLaw

    sphere = fastfed.environments.Sphere(dimension=3, actions=5)
    facts = sphere.facts(2, 10)
    made = Facts(dimension=3, actions=5, reward=RewardLaw("bernoulli"), features_bounded=False)
    assert made == dataclasses.replace(facts, intercept=None)
