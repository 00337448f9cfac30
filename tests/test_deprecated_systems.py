"""Names of fastfed 0.1 that plugins of linear systems and experts use: they work, and warn."""

import warnings

import pytest

from fastfed import bandits, experts
from fastfed.bandits import fedlinucb, system
from fastfed.experts import baselines


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        (bandits, "Setting", "ProblemSpec"),
        (system, "Keys", "Config"),
        (experts, "Setting", "ProblemSpec"),
    ],
)
def test_a_renamed_class_warns_with_its_new_name(module, old, new):
    with pytest.warns(DeprecationWarning, match=f"{module.__name__}.{old} is .*{new}") as seen:
        found = getattr(module, old)
    assert found is getattr(module, new)
    assert seen[0].filename == __file__
    assert old not in getattr(module, "__all__", ())


@pytest.mark.parametrize("module", [bandits, system, experts])
def test_other_names_are_still_missing(module):
    with pytest.raises(AttributeError, match="no attribute 'Settings'"):
        _ = module.Settings


@pytest.mark.parametrize("kind", [bandits.Algorithm, experts.Algorithm])
def test_an_algorithm_of_0_1_names_its_config_keys(kind):
    with pytest.warns(DeprecationWarning, match="use config") as seen:
        found = kind(id="mine", paper="none", summary="", keys=system.Config, build=print)
    assert seen[0].filename == __file__
    assert found.config is system.Config and found.deployed == ()
    with pytest.warns(DeprecationWarning, match=r"Algorithm\.keys is deprecated: use config"):
        assert found.keys is system.Config


@pytest.mark.parametrize("given", [{}, {"config": system.Config}, {"build": print}])
def test_an_algorithm_needs_config_and_build(given):
    with pytest.raises(TypeError, match='"mine" needs config and build'):
        bandits.Algorithm("mine", "none", "", **given)


@pytest.mark.parametrize("made", [fedlinucb.FEDLINUCB, baselines.LEADER])
def test_an_algorithm_of_fastfed_does_not_warn(made):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = type(made)(made.id, made.paper, made.summary, made.config, made.build)
    assert again == made


def test_a_plugin_of_0_1_builds_its_system():
    """The first lines of a package written for 0.1, as they stand in its file."""
    with pytest.warns(DeprecationWarning):
        from fastfed.bandits import Algorithm, Setting, System
        from fastfed.bandits.system import Keys

        class MyKeys(Keys, frozen=True, kw_only=True):
            """Keys of a curve."""

        def build(keys: MyKeys, setting: Setting) -> System:
            return fedlinucb.build_fedlinucb(keys, setting)

        entry = Algorithm(id="mine", paper="none", summary="", keys=MyKeys, build=build)
    setting = Setting(silos=2, horizon=8, dimension=3)
    made = entry.make({"batch_size": 4}, setting)
    assert made.plan.batch_size == 4 and made.certificate.status == "none"
