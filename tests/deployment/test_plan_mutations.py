"""Tests that changed plan files are refused or have a true certificate (see plan_mutations.py)."""

import contextlib
import dataclasses
import math
import os
from collections import Counter

import msgspec
import numpy as np
import pytest

pytest.importorskip("cryptography")

import federation
import federation_of_all
import plan_mutations
from plan_accounts import gaussian_delta, gaussian_epsilon, linear_mu, worst_mu
from plan_mutations import AT, Broken, attempt, document, sealed

from fastfed import InputError
from fastfed.deployment import plans

#: Kinds whose files load within milliseconds.
QUICK = ("silo-ldp", "silo-ldp factorised", "central", "feducb", "extended", "secure-sum")


def test_spoiled_plan_files_are_refused_or_true():
    total = Counter()
    for seed in range(400):
        total.update(attempt(seed, QUICK))
    assert total["mutations"] > 300 and total["refused"] > 200
    assert total["loaded, epsilon equal"] > 15


@pytest.mark.slow
def test_many_spoiled_plan_files_are_refused_or_true():
    for seed in range(10**6, 10**6 + int(os.environ.get("FASTFED_PLAN_MUTATIONS", "5000"))):
        attempt(seed)


@pytest.mark.slow
def test_no_choice_of_a_small_file_takes_long_to_refuse():
    fields = document(federation_of_all.plan("silo-ldp factorised"))
    fields[AT["keys"]]["batch_size"] = 1
    fields[AT["horizon"]] = fields[AT["numbers"]]["horizon"] = 1024
    assert plan_mutations.load(sealed(fields)) is None


@pytest.mark.parametrize("kind", ["silo-ldp", "central"])
def test_no_record_keeps_a_release_from_being_made(kind):
    fields = document(federation_of_all.plan(kind))
    fields[AT["schema"]][1] = 5e-309
    plan = plan_mutations.load(sealed(fields))
    if plan is None:
        return
    deployment = federation.Federation(plan)
    deployment.settle()
    with contextlib.suppress(ValueError), np.errstate(all="ignore"):
        for name in plan.silos:
            deployment.now = 1090.0
            process = deployment.processes[name]
            process.reward(process.decide([[1.0, 0.0]]).id, 0.5)
        deployment.now = 1100.0
        deployment.settle()
    assert len(deployment.processes["hub"].party.broadcasts) == 1


# ---- the second account --------------------------------------------------------------------------


@pytest.mark.parametrize("release", ["tree", "factorised", "toeplitz", "honaker", "buffered"])
def test_the_second_account_equals_the_first_up_to_rounding(release):
    plan = federation.deployed(system={"batch_size": 2, "release": release})
    exact = plan.certificate.exact
    actual = gaussian_epsilon(linear_mu(plan.executed), exact.delta)
    assert exact.epsilon * (1 - 1e-7) < actual < exact.epsilon * (1 + 1e-8)


def test_the_mu_of_the_worst_pair_of_records_equals_the_closed_forms():
    def mu(stds, relation="replace"):
        return worst_mu(stds, (1.0, 0.0, 1.0, 0.0, 0.0, 2), ((1.0, 1.0, 1.0),), relation)

    assert mu((1.0, 1.0, 1.0)) == pytest.approx(math.sqrt(4.5), rel=1e-9)
    assert mu((1.0, 1.0, math.sqrt(2.0))) == pytest.approx(2.0, rel=1e-9)
    assert mu((1.0, 1.0, 1.0), "zero-out") == pytest.approx(math.sqrt(2.0), rel=1e-9)
    assert gaussian_delta(gaussian_epsilon(0.7, 1e-6), 0.7) == pytest.approx(1e-6, rel=1e-9)


# ---- planted faults ------------------------------------------------------------------------------


def plan_with(plan, /, **parts):
    """Return a copy of a plan with other attributes; values derived from them are dropped."""
    names = ("document", "plan", "signatures", "earlier", "executed", "problem", "certificate")
    changed_plan = object.__new__(type(plan))
    changed_plan.__dict__.update({name: getattr(plan, name) for name in names} | parts)
    return changed_plan


def changed_file_and_plan(kind, change, **parts):
    """Return a changed file, and the plan that a loader without a check of the numbers returns.

    `parts` are attributes of the plan; its certificate stays that of the honest file.
    """
    plan = federation_of_all.plan(kind)
    fields = document(plan)
    change(fields)
    numbers = fields[AT["numbers"]]
    document_read = msgspec.structs.replace(plan.document, numbers=numbers)
    return sealed(fields), plan_with(plan, document=document_read, **parts)


def halved(kind):
    """Return a file with half of the noise, and its plan with the certificate of the full noise."""

    def change(fields):
        """Halve all standard deviations of the noise."""
        numbers = fields[AT["numbers"]]
        for key in numbers:
            if key.startswith("noise_std."):
                numbers[key] /= 2.0

    executed = federation_of_all.plan(kind).executed
    executed = dataclasses.replace(executed, noise_std=executed.noise_std.times(0.5))
    return changed_file_and_plan(kind, change, plan=executed, executed=executed)


def objection(monkeypatch, data, plan):
    """Return the check's objection to a loader that returns this plan or raises this exception."""

    def load(given):
        """Load the plan of the test, or raise its error."""
        if isinstance(plan, BaseException):
            raise plan
        return plan() if callable(plan) else plan

    monkeypatch.setattr(plans, "load", load)
    monkeypatch.setattr(plan_mutations, "mutated", lambda *_: ("kind", "way", data, b""))
    with pytest.raises(Broken) as broken:
        attempt(0)
    return str(broken.value).splitlines()[0]


@pytest.mark.parametrize("kind", ["silo-ldp", "central", "feducb", "records"])
def test_half_of_the_noise_is_caught(monkeypatch, kind):
    data, plan = halved(kind)
    assert "noise_std.bias is" in objection(monkeypatch, data, plan)
    # Without the comparison of numbers, each of the two accounts detects the change.
    monkeypatch.setattr(plan_mutations, "near", lambda *_: True)
    assert "is certified, the events give" in objection(monkeypatch, data, plan)
    monkeypatch.setattr(plan_mutations, "check_events", lambda plan: None)
    assert "is certified, 2.1" in objection(monkeypatch, data, plan)


def honest_with(kind, **certificate):
    """Return an honest file and its plan, with other fields of its certificate."""
    plan = federation_of_all.plan(kind)
    changed = msgspec.structs.replace(plan.certificate, **certificate)
    return plan.as_bytes(), plan_with(plan, certificate=changed)


@pytest.mark.parametrize("field", ["model", "source", "relation", "unit", "caveats", "also"])
def test_a_false_sentence_is_caught(monkeypatch, field):
    others = {"relation": "zero-out", "unit": "item", "caveats": (), "also": ()}
    other = others.get(field, federation_of_all.plan("silo-ldp").certificate.model)
    assert objection(monkeypatch, *honest_with("central", **{field: other}))


def test_a_dropped_condition_is_caught(monkeypatch):
    conditions = federation_of_all.plan("silo-ldp").certificate.conditions[:-1]
    assert "says" in objection(monkeypatch, *honest_with("silo-ldp", conditions=conditions))


@pytest.mark.parametrize("kind", ["silo-ldp", "secure-sum", "robin", "fed-svt"])
def test_a_smaller_epsilon_is_caught(monkeypatch, kind):
    exact = federation_of_all.plan(kind).certificate.exact
    exact = msgspec.structs.replace(exact, epsilon=exact.epsilon * (1.0 - 1e-9))
    complaint = objection(monkeypatch, *honest_with(kind, exact=exact))
    assert "is certified, the events give" in complaint


def test_plans_together_cost_more_than_the_last_one(monkeypatch):
    certificate = federation_of_all.plan("extended").certificate
    *others, last = certificate.also
    last = msgspec.structs.replace(last, exact=certificate.exact)
    also = (*others, last)
    assert "together with plan" in objection(monkeypatch, *honest_with("extended", also=also))


def test_other_exceptions_changed_files_and_second_keys_are_caught(monkeypatch, tmp_path):
    data = federation_of_all.plan("silo-ldp").as_bytes()
    assert "failed with KeyError" in objection(monkeypatch, data, KeyError("x"))

    def change_a_file():
        """Change the file before refusing it."""
        (tmp_path / "plan").write_text("seen")
        raise InputError("no")

    assert "changes files" in objection(monkeypatch, data, change_a_file)

    def share_a_key(fields):
        """Give the second silo the signing key of the first."""
        fields[AT["silos"]][1][1] = fields[AT["silos"]][0][1]

    plan = federation_of_all.plan("silo-ldp")
    silos = list(plan.document.silos)
    silos[1] = msgspec.structs.replace(silos[1], sign=silos[0].sign)
    data, plan = changed_file_and_plan("silo-ldp", share_a_key)
    document_read = msgspec.structs.replace(plan.document, silos=tuple(silos))
    plan = plan_with(plan, document=document_read)
    assert "two parties have one signing key" in objection(monkeypatch, data, plan)
