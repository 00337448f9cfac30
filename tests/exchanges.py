"""What the tests of robin and of experts at real silos share.

These systems send no batches: specs, charges, schedules of kills and restores, faults to plant in
their parties, and the commands that make and open their plans.
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
from fastfed.deployment.experts import Lost
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.wire import Report
from fastfed.privacy.account import released
from fastfed.privacy.accounting.gdp import gaussian_epsilon

#: Losses of three experts.
LOSSES = [0.9, 0.1, 0.8]


def spec_of_experts(system, silos=3, dimension=3, tables=None):
    """A spec whose columns are experts; ``tables`` adds keys to [federation]."""
    made = federation.spec(silos=silos, dimension=dimension)
    made["federation"] |= tables or {}
    made["columns"] = [{"name": f"e{i}", "low": 0.0, "high": 1.0} for i in range(dimension)]
    made["system"] = {"epsilon": 1.0, "delta": 1e-6} | system
    return made


def values(plan, data, kind=Report):
    """The numbers of a message."""
    if kind is Report:
        return np.frombuffer(federation.opened_report(plan, data))
    return np.frombuffer(plan.wire.body(plan.wire.read(data), kind).values)


# ---- plan files and charges ----------------------------------------------------------------------


def check_refused(plan, *changed):
    """A plan file that holds other numbers than those of its choices is refused."""
    for each in changed:
        numbers = codec.numbers_of(each)
        assert numbers != plan.document.numbers
        with pytest.raises(InputError, match="the plan file"):
            plans.checked(msgspec.structs.replace(plan.document, numbers=numbers), {})


def check_one_charge(plan, least):
    """All releases cost what one does: ``least`` to 1, and no less than the certificate proves."""
    ledger = Ledger(":memory:")
    (event,) = released(plan.executed)
    ledger.set_ceiling("records", 1.0, 1e-6)
    for k in range(1, plan.plan.releases + 1):
        ledger.charge(charge_of(plan.executed, plan.digest, "records", k))
        assert least < ledger.epsilon("records") <= 1.0
    mu2, told = charges.totals_of_scores(event)
    for delta in (1e-6, 1e-4, 1e-2):
        # The certificate's bound is above the truth by 10^-4 of it at most.
        proven = event.exact(delta) * (1.0 - 2e-4)
        assert gaussian_epsilon(math.sqrt(mu2), delta - told) >= proven
        assert ledger.epsilon("records", delta) >= proven
    with pytest.raises(InputError, match="ceiling"):
        ledger.charge(charge_of(plan.executed, plan.digest, "records", -1))


# ---- schedules -----------------------------------------------------------------------------------


class ExpertWorld(World):
    """A world whose applications report losses, and that checks whose place they enter."""

    def act(self, name):
        silo, rng = self.parties[name], self.random
        if self.now < self.down.get(name, 0):
            return
        with suppress(InputError):
            if self.open[name] and rng.random() < 0.5:
                decision = self.open[name].pop(rng.randrange(len(self.open[name])))
                loss = [rng.random() for _ in range(3)]
                while not self.perform(name, self.parties[name].losses(decision, loss, self.now)):
                    pass
            else:
                step, made = silo.decide(None, self.now)
                if self.perform(name, step):
                    self.open[name].append(made.id)

    def check_write(self, name, write):
        super().check_write(name, write)
        if write.kind == "ended" and name != "hub":
            ended = msgspec.msgpack.decode(write.value, type=Lost)
            own = self.parties[name].decisions[write.key].time
            if ended.leaf not in (0, self.plan.document.calendar.period(own)):
                raise Violation(f"a loss of {name} entered another phase than its own")


def schedules(plan, seeds, kinds, world=World, **chances):
    """Worlds after their whole schedules."""
    worlds = []
    for seed in seeds:
        worlds.append(world(plan, seed, kinds=kinds, **chances))
        worlds[-1].run()
    return worlds


def schedules_with_the_hub_put_back(spec, seeds, kinds, world=World):
    """The same where the hub is put back, and waits for silos as long as they are away."""
    plan = plans.compile_plan(spec | {"calendar": federation.PATIENT})
    worlds = []
    for seed in seeds:
        worlds.append(world(plan, seed, kinds=kinds, hub_restore=0.7))
        worlds[-1].run_with_the_hub_put_back()
    return worlds


# ---- faults to plant -----------------------------------------------------------------------------


class Redrawing:
    """A hub whose noise is no function: what it makes again differs."""

    def _serving(self, noise):
        return super()._serving(SystemNoise())


class Uncharged:
    """A silo that seals what it has not paid for."""

    def _charge(self, release, report=b""):
        return ()


class Moving:
    """A silo of experts that lets a late loss into the phase that is open when it comes."""

    def losses(self, name, losses, now):
        step = super().losses(name, losses, now)
        ended = msgspec.msgpack.decode(step.writes[0].value, type=Lost) if step.writes else None
        if ended is None or ended.why != "late" or self._leaf(now) > self.plan.releases:
            return step
        moved = msgspec.structs.replace(ended, leaf=self._leaf(now), why="")
        return step._replace(writes=(step.writes[0]._replace(value=wire.encoded(moved)),))


def with_fault(kinds, party, fault):
    """The parties' classes, one of them with a fault."""
    return kinds | {party: type(fault.__name__, (fault, kinds[party]), {})}


# ---- plans that go on ----------------------------------------------------------------------------

LATER = {"start": federation.START + 5000, "period": 100, "grace": 50, "reward_deadline": 250}


def gone_on(made, system, **keys):
    """A plan that goes on after one of a federation; and its parties on the old ledgers."""
    broadcasts = made.processes["hub"].party.broadcasts
    last = broadcasts[max(broadcasts)] if broadcasts else b""
    plan = folders.extended({"system": system, "calendar": LATER}, made.plan, last, **keys)
    assert plans.load(plan.as_bytes()).digest == plan.digest
    new = federation.Federation(plan)
    new.now = float(plan.document.calendar.start)
    for name in plan.silos:
        process = new.processes[name]
        process.ledger = process.party.ledger = ledger = made.ledgers[name]
        ledger.set_ceiling("records", 4.0, 1e-6)
        folders.check_room(ledger, "records", plan)
    return plan, new


def check_together(made, plan, new, condition):
    """What certificate, status and ledger say of both plans is one number, above each."""
    (entry,) = plan.certificate.also
    both = entry.exact.epsilon
    assert entry.status == "proven" and entry.conditions == (condition,)
    status = new.processes["silo0"].party.status()["extends"]
    assert status["plans"] == [made.plan.digest.hex()] and status["epsilon_together"] == both
    assert both > max(status["epsilon"]) and status["start"] == len(
        made.processes["hub"].party.broadcasts
    )
    ledger = made.ledgers["silo0"]
    spent = {c.plan for c in ledger.charges("records")}
    assert spent == {made.plan.digest, plan.digest}
    assert ledger.epsilon("records", plan.certificate.exact.delta) <= both * (1.0 + 1e-9)
    with pytest.raises(InputError, match="more than the ceiling"):
        folders.check_room(ledger, "records", plan, (both * 0.999, 1e-6))


# ---- commands ------------------------------------------------------------------------------------


def deploy(*words):
    """The output of `fastfed deploy`."""
    done = CliRunner().invoke(cli, ["deploy", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.output


def opened(folder, made, said):
    """Processes of two silos and a hub that joined a plan by commands; ``new`` says ``said``."""
    names = ("silo0", "silo1", "hub")
    keys = {name: folders.make_keys(folder / name) for name in names}
    text = "[federation]\nname = 'tests'\n[calendar]\nstart = 1000\nperiod = 100\n[system]\n"
    text += "".join(f"{key} = {value!r}\n" for key, value in made["system"].items())
    for column in made["columns"]:
        text += "[[columns]]\n" + "".join(f"{key} = {v!r}\n" for key, v in column.items())
    for name in names:
        text += f"[[silos]]\nname = '{name}'\n" if name != "hub" else "[hub]\n"
        text += f"sign = '{keys[name]['sign']}'\nopen = '{keys[name]['open']}'\n"
    (folder / "spec.toml").write_text(text)
    assert said in deploy("new", folder / "spec.toml", folder / "plan")
    for name in names:
        ceiling = () if name == "hub" else ("--epsilon", 1, "--delta", 1e-6)
        deploy("join", folder / name, folder / "plan", *ceiling)
    return {name: folders.opened(folder / name) for name in names}
