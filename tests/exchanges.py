"""Helpers shared by the tests of deployed robin and expert systems, which send no batches.

They make specs, check charges, run schedules of kills and restores, plant faults in parties, and
run the commands that create and open plans.
"""

import math
from contextlib import suppress

import federation
import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from federation import Violation, World

from fastfed import InputError
from fastfed._random import SystemNoise
from fastfed.cli import cli
from fastfed.deployment import charges, codec, plans, wire
from fastfed.deployment import folder as folders
from fastfed.deployment.charges import charge_of
from fastfed.deployment.experts import EndedWithLosses
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.wire import Report
from fastfed.privacy.account import released
from fastfed.privacy.accounting.gdp import gaussian_epsilon

#: The losses of three experts in one decision.
LOSSES = [0.9, 0.1, 0.8]
#: Tables of small systems in phases and with experts.
ROBIN = {
    "algorithm": "robin",
    "horizon": 40,
    "epsilon": 1.0,
    "delta": 1e-6,
    "initial_phases": 2,
    "diversity": 0.05,
    "concentration_multiplier": 1e-3,
}
TREES = {"algorithm": "fed-dp-ope-stoch", "horizon": 63, "batch": "largest", "smoothness": 60.0}
SWITCHES = {
    "algorithm": "fed-svt",
    "horizon": 40,
    "phase_length": 10,
    "optimal_loss": 0.0,
    "switches": 3,
    "threshold": 4.0,
}


def spec_of_experts(system, silos=3, dimension=3, tables=None):
    """Return a spec whose columns are experts; ``tables`` adds keys to [federation]."""
    spec = federation.spec(silos=silos, dimension=dimension)
    spec["federation"] |= tables or {}
    spec["columns"] = [{"name": f"e{i}", "low": 0.0, "high": 1.0} for i in range(dimension)]
    spec["system"] = {"epsilon": 1.0, "delta": 1e-6} | system
    return spec


def spec_of_phases(system=ROBIN, silos=3, dimension=2, tables=None):
    """Return a spec of robin; ``tables`` adds keys to [federation]."""
    spec = federation.spec(silos=silos, dimension=dimension)
    spec["federation"] |= tables or {}
    return spec | {"system": system}


#: System -> its spec, of systems that send no batches.
OTHERS = {
    "robin": spec_of_phases(),
    "fed-dp-ope-stoch": spec_of_experts(TREES),
    "fed-svt": spec_of_experts(SWITCHES),
}
_PLANS = {}


def small_plan(name, **tables):
    """Return the compiled plan of one of `OTHERS`, with some tables replaced; compile it once."""
    key = name, repr(tables)
    if key not in _PLANS:
        _PLANS[key] = plans.compile_plan(OTHERS[name] | tables)
    return _PLANS[key]


def values(plan, data, kind=Report):
    """Return the values of a message as an array."""
    if kind is Report:
        return np.frombuffer(federation.opened_report(plan, data))
    return np.frombuffer(plan.wire.body(plan.wire.read(data), kind).values)


# ---- plan files and charges ----------------------------------------------------------------------


def check_refused(plan, *changed_plans):
    """Check that a plan file is refused when its numbers are those of a changed plan."""
    for changed_plan in changed_plans:
        numbers = codec.numbers_of(changed_plan)
        assert numbers != plan.document.numbers
        with pytest.raises(InputError, match="the plan file"):
            plans.checked(msgspec.structs.replace(plan.document, numbers=numbers), {})


def check_one_charge(plan, least):
    """Check that all releases together cost what one release costs.

    Its epsilon is above ``least``, at most 1, and at least what the certificate proves.
    """
    ledger = Ledger(":memory:")
    (event,) = released(plan.executed)
    ledger.set_ceiling("records", 1.0, 1e-6)
    for release in range(1, plan.plan.releases + 1):
        ledger.charge(charge_of(plan.executed, plan.digest, "records", release))
        assert least < ledger.epsilon("records") <= 1.0
    mu_squared, tail_delta = charges.totals_of_scores(event)
    for delta in (1e-6, 1e-4, 1e-2):
        # The certificate's upper bound may exceed the true epsilon by a relative 10^-4.
        proven_epsilon = event.exact(delta) * (1.0 - 2e-4)
        assert gaussian_epsilon(math.sqrt(mu_squared), delta - tail_delta) >= proven_epsilon
        assert ledger.epsilon("records", delta) >= proven_epsilon
    with pytest.raises(InputError, match="ceiling"):
        ledger.charge(charge_of(plan.executed, plan.digest, "records", -1))


# ---- schedules -----------------------------------------------------------------------------------


class ExpertWorld(World):
    """A world whose applications report losses; it checks that each loss enters its phase."""

    def act(self, name):
        """Let a silo decide, or give losses to one of its open decisions."""
        silo, rng = self.parties[name], self.random
        if self.now < self.down.get(name, 0):
            return
        with suppress(InputError):
            if self.open[name] and rng.random() < 0.5:
                decision = self.open[name].pop(rng.randrange(len(self.open[name])))
                losses = [rng.random() for _ in range(3)]
                while not self.perform(
                    name, self.parties[name].losses(decision, losses, self.clock(name))
                ):
                    pass
            else:
                step, new_decision = silo.decide(None, self.clock(name))
                if self.perform(name, step):
                    self.open[name].append(new_decision.id)

    def check_write(self, name, write):
        """Check also that a loss enters the phase in which its decision was made."""
        super().check_write(name, write)
        if write.kind == "ended" and name != "hub":
            ended = msgspec.msgpack.decode(write.value, type=EndedWithLosses)
            decided_at = self.parties[name].decisions[write.key].time
            if ended.leaf not in (0, self.plan.document.calendar.period(decided_at)):
                raise Violation(f"a loss of {name} entered another phase than its own")


def schedules(plan, seeds, kinds, world=World, **chances):
    """Run a world with each seed and return the worlds."""
    worlds = []
    for seed in seeds:
        worlds.append(world(plan, seed, kinds=kinds, **chances))
        worlds[-1].run()
    return worlds


def schedules_with_the_hub_put_back(spec, seeds, kinds, world=World):
    """Run worlds whose hub is restored from backups and waits while silos are away."""
    plan = plans.compile_plan(spec | {"calendar": federation.PATIENT})
    worlds = []
    for seed in seeds:
        worlds.append(world(plan, seed, kinds=kinds, hub_restore=0.7))
        worlds[-1].run_with_the_hub_put_back()
    return worlds


# ---- faults to plant -----------------------------------------------------------------------------


class Redrawing:
    """A faulty hub: its noise is random, so repeating a release gives a different release."""

    def _make_server(self, noise):
        """Return a server with noise of the operating system instead of the given noise."""
        return super()._make_server(SystemNoise())


class Uncharged:
    """A faulty silo that sends reports without charging its ledger."""

    def _missing_charge(self, release, report=b""):
        """Return no charge to the ledger."""
        return ()


class Moving:
    """A faulty silo of experts that adds a late loss to the phase in which the loss arrives."""

    def losses(self, name, losses, now):
        """Return the step for losses; a late loss is moved to the open phase."""
        step = super().losses(name, losses, now)
        ended = (
            msgspec.msgpack.decode(step.writes[0].value, type=EndedWithLosses)
            if step.writes
            else None
        )
        if ended is None or ended.why != "late" or self._open_leaf(now) > self.plan.releases:
            return step
        moved_to_open_leaf = msgspec.structs.replace(ended, leaf=self._open_leaf(now), why="")
        return step._replace(
            writes=(step.writes[0]._replace(value=wire.encoded(moved_to_open_leaf)),)
        )


def with_fault(kinds, party, fault):
    """Return the parties' classes with a fault planted in one class."""
    return kinds | {party: type(fault.__name__, (fault, kinds[party]), {})}


# ---- plans that resume ---------------------------------------------------------------------------

LATER = {"start": federation.START + 5000, "period": 100, "grace": 50, "reward_deadline": 250}


def extended_federation(federation_before, system, **keys):
    """Extend a federation's plan; return the new plan and a federation on the old ledgers."""
    broadcasts = federation_before.processes["hub"].party.broadcasts
    last_broadcast = broadcasts[max(broadcasts)] if broadcasts else b""
    plan = folders.extended(
        {"system": system, "calendar": LATER}, federation_before.plan, last_broadcast, **keys
    )
    assert plans.load(plan.as_bytes()).digest == plan.digest
    new_federation = federation.Federation(plan)
    new_federation.now = float(plan.document.calendar.start)
    for name in plan.silos:
        process = new_federation.processes[name]
        process.ledger = process.party.ledger = ledger = federation_before.ledgers[name]
        ledger.set_ceiling("records", 4.0, 1e-6)
        folders.check_room(ledger, "records", plan)
    return plan, new_federation


def check_together(deployment, plan, new, condition):
    """Check that certificate, status and ledger agree on the epsilon of the two plans together.

    It is larger than the epsilon of each single plan.
    """
    (entry,) = plan.certificate.also
    epsilon_together = entry.exact.epsilon
    assert entry.status == "proven" and entry.conditions == (condition,)
    status = new.processes["silo0"].party.status()["extends"]
    assert (
        status["plans"] == [deployment.plan.digest.hex()]
        and status["epsilon_together"] == epsilon_together
    )
    assert epsilon_together > max(status["epsilon"]) and status["start"] == len(
        deployment.processes["hub"].party.broadcasts
    )
    ledger = deployment.ledgers["silo0"]
    charged_plans = {charge.plan for charge in ledger.charges("records")}
    assert charged_plans == {deployment.plan.digest, plan.digest}
    assert ledger.epsilon("records", plan.certificate.exact.delta) <= epsilon_together * (
        1.0 + 1e-9
    )
    with pytest.raises(InputError, match="more than the ceiling"):
        folders.check_room(ledger, "records", plan, (epsilon_together * 0.999, 1e-6))


# ---- commands ------------------------------------------------------------------------------------


def deploy(*words):
    """Run `fastfed deploy` and return its output."""
    result = CliRunner().invoke(cli, ["deploy", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.output


def opened(folder, spec, message):
    """Create a plan by commands and return the opened processes of two silos and a hub.

    The output of `fastfed deploy new` must contain ``message``.
    """
    names = ("silo0", "silo1", "hub")
    keys = {name: folders.make_keys(folder / name) for name in names}
    spec_text = "[federation]\nname = 'tests'\n[calendar]\nstart = 1000\nperiod = 100\n[system]\n"
    spec_text += "".join(f"{key} = {value!r}\n" for key, value in spec["system"].items())
    for column in spec["columns"]:
        spec_text += "[[columns]]\n" + "".join(
            f"{key} = {entry!r}\n" for key, entry in column.items()
        )
    for name in names:
        spec_text += f"[[silos]]\nname = '{name}'\n" if name != "hub" else "[hub]\n"
        spec_text += f"sign = '{keys[name]['sign']}'\nopen = '{keys[name]['open']}'\n"
    (folder / "spec.toml").write_text(spec_text)
    assert message in deploy("new", folder / "spec.toml", folder / "plan")
    for name in names:
        ceiling = () if name == "hub" else ("--epsilon", 1, "--delta", 1e-6)
        deploy("join", folder / name, folder / "plan", *ceiling)
    return {name: folders.opened(folder / name) for name in names}
