"""Tests of plans that continue a plan: start model, joint account, ledger and commands."""

import json
import math

import msgspec
import numpy as np
import pytest

pytest.importorskip("cryptography")

import federation
from click.testing import CliRunner

from fastfed import InputError
from fastfed.cli import cli
from fastfed.deployment import folder as folders
from fastfed.deployment import plans, wire
from fastfed.deployment.folder import check_room, extended, last_broadcast
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.model import NO_START_REASONS, Extension, epsilon_of_chain, model_of
from fastfed.deployment.seal import Identity
from fastfed.privacy.accounting.gdp import gaussian_epsilon

LATER = federation.START + 1000
CALENDAR = {"start": LATER, "period": 100, "grace": 50, "reward_deadline": 250}
SYSTEM = {"horizon": 10, "batch_size": 5, "epsilon": 0.5, "delta": 1e-6}
SPEC = {"system": SYSTEM, "calendar": CALENDAR}


def add_records(deployment, releases, rows=None, reward=0.5):
    """Add one record at each silo in each period."""
    deployment.settle()
    for close in deployment.plan.document.calendar.closes[:releases]:
        deployment.now = close - 1.0
        for name in deployment.plan.silos:
            silo = deployment.processes[name]
            silo.reward(silo.decide(rows or [[0.5, 0.1, 0.0], [-0.3, 0.8, 0.2]]).id, reward)
        deployment.now += 1.0
        deployment.settle()
    return deployment


def first_deployment(protocol="silo-ldp", releases=2, **keys):
    """Return a deployment of a first plan after some releases."""
    keys.setdefault("dimension", 3)
    return add_records(federation.Federation(federation.deployed(protocol, **keys)), releases)


def newest_broadcast(deployment):
    """Return the hub's newest broadcast."""
    broadcasts = deployment.processes["hub"].party.broadcasts
    return broadcasts[max(broadcasts)]


def later_parties(deployment, plan, ceiling=None):
    """Return the parties of a later plan, which use the ledgers of the first plan."""
    new = federation.Federation(plan)
    new.now = float(plan.document.calendar.start)
    for name in plan.silos:
        process = new.processes[name]
        process.ledger = process.party.ledger = ledger = deployment.ledgers[name]
        if ceiling:
            ledger.set_ceiling("records", *ceiling)
    return new


def full_matrix(values, d):
    """Return the covariance of a statistic as a full matrix (d, d)."""
    gram = np.zeros((d, d))
    gram[np.tril_indices(d)] = values[d:]
    return gram + np.tril(gram, -1).T


# ---- the start -----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["silo-ldp", "central", "secure-sum"])
def test_a_silo_starts_from_the_last_model_and_adds_up_both(protocol):
    deployment = first_deployment(protocol)
    old = deployment.processes["silo0"].party.model
    plan = extended(
        {**SPEC, "system": {**SYSTEM, "protocol": protocol}},
        deployment.plan,
        newest_broadcast(deployment),
    )
    assert plan.document.extends.why == "" and plans.load(plan.as_bytes()).digest == plan.digest
    new = later_parties(deployment, plan, (3.0, 1e-6))
    new.settle()
    silo = new.processes["silo0"].party
    assert silo.model.release == 0 and silo.model.theta.tolist() == old.theta.tolist()
    rows = np.random.default_rng(1).uniform(-0.5, 0.5, (6, 3))
    assert silo.decide(rows, new.now)[1].action == old.select(rows)[0]
    add_records(new, 1)
    assert silo.model.release == 1
    # The model that the new plan would have from its own sums only.
    body = plan.wire.body(plan.wire.read(silo.broadcasts[1]), wire.Broadcast)
    own = type(silo.model)(plan.plan)
    own.adopt(np.frombuffer(body.values, dtype="<f8").astype(float), 1)
    np.testing.assert_allclose(silo.model.gram, old.gram + own.gram, rtol=1e-9)
    u = old.gram @ old.theta + own.gram @ own.theta
    np.testing.assert_allclose(silo.model.gram @ silo.model.theta, u, rtol=1e-7, atol=1e-9)
    parts = [model.acting for model in (old, own, silo.model)]
    assert parts[2].radius == math.hypot(parts[0].radius, parts[1].radius)
    assert parts[2].second == parts[0].second + parts[1].second > 0
    np.testing.assert_allclose(full_matrix(parts[2].sums, 3), silo.model.gram, rtol=1e-9)
    assert {tuple(new.processes[n].party.model.theta) for n in plan.silos} == {
        tuple(silo.model.theta)
    }
    # No regret bound is known for the sum of two models, so the sieve has a slack of 1.
    silo.model._slack = 1e6
    acting, limit, ranking = silo.model.acting, plan.plan.reward_limit, plan.plan.ranking
    assert ranking == 0.3
    for rows in np.random.default_rng(2).uniform(-0.5, 0.5, (50, 6, 3)):
        sieve = acting.radius, acting.second, limit, 1.0, ranking
        assert silo.model.select(rows)[0] == acting.estimate.select_sieved(rows, *sieve)[0]


def test_the_radius_of_two_models_holds_where_each_radius_holds():
    """Compare |<x, theta_hat - theta*>| with its bound, for random errors at the two radii."""
    rng = np.random.default_rng(2)
    worst = 0.0
    for _ in range(300):
        grams, vectors = [], []
        radii, seconds = rng.uniform(0.1, 3, 2), rng.uniform(0, 2, 2)
        for radius, second in zip(radii, seconds, strict=True):
            root = rng.normal(size=(3, 3))
            gram = root @ root.T + 0.1 * np.eye(3)
            vector = np.linalg.cholesky(gram) @ unit(rng) * radius
            grams.append(gram)
            vectors.append(vector + unit(rng) * second)
        inverse, x = np.linalg.inv(sum(grams)), unit(rng)
        error = abs(x @ inverse @ sum(vectors))
        bound = math.hypot(*radii) * math.sqrt(x @ inverse @ x)
        bound += sum(seconds) * float(np.linalg.norm(inverse @ x))
        worst = max(worst, error / bound)
    assert 0.7 < worst <= 1.0 + 1e-12


def unit(rng):
    """Return a uniformly random unit vector of three entries."""
    draws = rng.normal(size=3)
    return draws / np.linalg.norm(draws)


def test_a_chain_of_three_plans_acts_on_the_sums_of_all():
    deployment = first_deployment()
    plan = extended(SPEC, deployment.plan, newest_broadcast(deployment))
    middle = add_records(later_parties(deployment, plan, (9.0, 1e-6)), 2)
    third = extended(
        {**SPEC, "calendar": {**CALENDAR, "start": LATER + 1000}}, plan, newest_broadcast(middle)
    )
    assert plans.load(third.as_bytes()).earlier.earlier.digest == deployment.plan.digest
    new = later_parties(deployment, third)
    model = middle.processes["silo1"].party.model
    assert new.processes["silo1"].party.model.theta.tolist() == model.theta.tolist()
    status = new.processes["silo1"].party.status()["extends"]
    assert status["plans"] == [deployment.plan.digest.hex(), plan.digest.hex()]
    assert status["epsilon_together"] > epsilon_of_chain(plan.plan, deployment.plan)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"norm": 2.0}, "norm differ"),
        ({"columns": [{"name": f"y{i}", "low": -1.0} for i in range(3)]}, "columns"),
        ({"columns": [{"name": f"x{i}", "low": -1.0} for i in range(2)]}, "columns"),
    ],
)
def test_there_is_no_start_if_columns_or_norm_differ(changes, why):
    deployment = first_deployment()
    plan = extended(SPEC | changes, deployment.plan, newest_broadcast(deployment))
    assert why in NO_START_REASONS[plan.document.extends.why] and not plan.document.extends.start
    new = later_parties(deployment, plan)
    assert not new.processes["silo0"].party.model.theta.any()
    with pytest.raises(InputError, match="no model yet"):
        model_of(new.processes["silo0"].party)
    assert new.processes["hub"].party.status()["extends"]["why_no_start"]
    forged = Extension(plan.document.extends.document, newest_broadcast(deployment))
    with pytest.raises(InputError, match="the earlier model cannot be the start"):
        reloaded(plan, extends=forged)


def test_there_is_no_start_before_the_first_release_or_where_none_is_wanted():
    deployment = first_deployment(releases=0)
    assert extended(SPEC, deployment.plan).document.extends.why == "no-release"
    add_records(deployment, 1)
    plan = extended(SPEC, deployment.plan, newest_broadcast(deployment), fresh=True)
    assert plan.document.extends.why == "requested"
    with pytest.raises(InputError, match=r"extends\.why must be one of"):
        reloaded(plan, extends=Extension(plan.document.extends.document, b"", "proven"))
    with pytest.raises(InputError, match="which is not so"):
        reloaded(plan, extends=Extension(plan.document.extends.document, b"", "schema"))


HELP = {key: text for key, text in federation.party("helper").items() if key != "name"}


@pytest.mark.parametrize(
    ("protocol", "before", "system", "more"),
    [
        ("secure-sum", {}, {"protocol": "silo-ldp"}, {}),
        ("silo-ldp", {"influence": 0.5}, {"protocol": "central"}, {}),
        ("silo-ldp", {"influence": 0.5}, {"protocol": "secure-sum"}, {"helper": HELP, "all": 3}),
        ("silo-ldp", {}, {"protocol": "silo-ldp-prefix"}, {}),
        ("secure-sum", {}, {"protocol": "secure-sum"}, {"masks": True, "all": 3}),
    ],
)
def test_a_plan_may_go_on_under_another_protocol(protocol, before, system, more):
    """Keys of the earlier spec that the new protocol does not have are left out."""
    shared = {"name": "tests", "least": 3 if protocol == "secure-sum" else 2} | before
    deployment = first_deployment(protocol, federation=shared)
    spec = {**SPEC, "system": {**SYSTEM, **system}}
    if "helper" in more:
        spec["helper"] = more["helper"]
    if "all" in more:
        spec["federation"] = {"least": more["all"]} | ({"sum": "masks"} if "masks" in more else {})
    plan = extended(spec, deployment.plan, newest_broadcast(deployment))
    new = add_records(later_parties(deployment, plan, (9.0, 1e-6)), 2)
    silo = new.processes["silo2"].party
    assert silo.model.release == 2 and silo.model.start is not None
    assert not new.processes["hub"].party.alarms
    assert plan.certificate.also[-1].status == "proven"


# ---- what is refused -----------------------------------------------------------------------------


def reloaded(plan, **fields):
    """Return a plan with some fields replaced, loaded from its bytes."""
    document = msgspec.structs.replace(plan.document, **fields)
    return plans.load(msgspec.msgpack.encode([plans.spelled(document), {}]))


def test_fields_that_are_none_are_left_out_from_the_end():
    document = federation.deployed().document
    fields = list(msgspec.structs.astuple(document))
    fields[plans._SCHEMA] = document.schema.spelled
    assert document.extends is None and fields[13:] == [None] * (len(fields) - 13)
    assert len(msgspec.msgpack.decode(plans.spelled(document))) == 13
    with_none = msgspec.msgpack.encode(list(fields))
    with pytest.raises(InputError, match="canonical"):
        plans.load(msgspec.msgpack.encode([with_none, {}]))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"system": SYSTEM}, "must have a table calendar"),
        ({"calendar": CALENDAR}, "must have a table system"),
        ({**SPEC, "silos": []}, "silos come from the earlier plan"),
        ({**SPEC, "hub": {}}, "hub come from the earlier plan"),
        ({**SPEC, "calendar": {**CALENDAR, "start": 1150}}, "start must be at least 1200"),
        ("no = toml =", "no TOML"),
    ],
)
def test_an_invalid_spec_of_changes_is_refused(spec, message):
    deployment = first_deployment()
    with pytest.raises(InputError, match=message):
        extended(spec, deployment.plan, newest_broadcast(deployment))


def test_a_plan_file_with_another_start_or_other_parties_is_refused():
    deployment = first_deployment()
    plan, hub = (
        extended(SPEC, deployment.plan, newest_broadcast(deployment)),
        Identity(federation.secret("hub")),
    )
    good, old = plan.document.extends, deployment.plan
    honest = old.wire.body(old.wire.read(newest_broadcast(deployment)), wire.Broadcast)
    silo = Identity(federation.secret("silo0"))
    few = msgspec.structs.replace(honest, entries=honest.entries[:1])
    nan = msgspec.structs.replace(honest, values=wire.packed(np.full(9, np.nan)))
    starts = {
        "signature": old.wire.signed(silo, "hub", 2, honest),
        "of the earlier plan's hub": old.wire.signed(silo, "silo0", 2, honest),
        "2 silos at least": old.wire.signed(hub, "hub", 2, few),
        "finite": old.wire.signed(hub, "hub", 2, nan),
        "another plan": plan.wire.signed(hub, "hub", 2, honest),
        "must be one of broadcast": old.wire.signed(hub, "hub", 2, wire.Leave()),
    }
    for message, start in starts.items():
        with pytest.raises(InputError, match=message):
            reloaded(plan, extends=Extension(good.document, start))
    with pytest.raises(InputError, match="must say why"):
        reloaded(plan, extends=Extension(good.document))
    with pytest.raises(InputError, match="no plan file"):
        reloaded(plan, extends=Extension(b"\x93", good.start))
    other = federation.deployed(silos=2, dimension=3)
    with pytest.raises(InputError, match="must have the parties of that plan"):
        reloaded(plan, extends=Extension(plans.spelled(other.document), b"", "requested"))
    assert reloaded(plan).digest == plan.digest


# ---- the account ---------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["silo-ldp", "secure-sum"])
def test_the_ledger_and_the_certificate_compose_both_plans(protocol):
    deployment = first_deployment(protocol, releases=4)
    plan = extended(
        {**SPEC, "system": {**SYSTEM, "protocol": protocol}},
        deployment.plan,
        newest_broadcast(deployment),
    )
    entry = plan.certificate.also[-1]
    assert deployment.plan.digest.hex()[:16] in entry.model and entry.status == "proven"
    actual = entry.exact.epsilon
    assert actual == pytest.approx(epsilon_of_chain(plan.plan, deployment.plan), rel=1e-12)
    # Independently: mu of each epsilon at delta, by bisection, and the root of their squares' sum.
    mu = math.hypot(mu_of(1.0), mu_of(0.5))
    assert actual == pytest.approx(gaussian_epsilon(mu, 1e-6), rel=2e-2)
    assert 1.0 < actual < 1.5 and plan.certificate.exact.epsilon == pytest.approx(0.5, rel=1e-6)
    new = add_records(later_parties(deployment, plan, (3.0, 1e-6)), 2)
    spent = deployment.ledgers["silo0"].epsilon("records")
    assert spent == pytest.approx(actual, rel=1e-6)
    exported = model_of(new.processes["silo0"].party)
    assert exported["extends"]["epsilon_together"] == pytest.approx(actual)
    assert exported["extends"]["epsilon"] == pytest.approx([1.0, 0.5], rel=1e-6)
    assert json.loads(json.dumps(exported)) == exported


def mu_of(epsilon):
    """Return the mu of Gaussian DP whose epsilon at delta = 1e-6 is `epsilon`, by bisection."""
    low, high = 0.0, 10.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_epsilon(middle, 1e-6) < epsilon else (low, middle)
    return low


def test_a_plan_beyond_the_ceiling_is_refused_and_one_below_it_is_not():
    deployment = first_deployment(releases=4)
    plan, ledger = (
        extended(SPEC, deployment.plan, newest_broadcast(deployment)),
        deployment.ledgers["silo0"],
    )
    with pytest.raises(
        InputError, match=r"would have spent epsilon 1\.1.* more than the ceiling 1;"
    ):
        check_room(ledger, "records", plan)
    both = epsilon_of_chain(plan.plan, deployment.plan)
    check_room(ledger, "records", plan, (both * (1 + 1e-6), 1e-6))
    with pytest.raises(InputError, match="more than the ceiling"):
        check_room(ledger, "records", plan, (both * (1 - 1e-6), 1e-6))
    with pytest.raises(InputError, match="no ceiling is set"):
        check_room(ledger, "others", plan)
    # Half of the plan is charged already; this half must not be counted twice.
    ledger.set_ceiling("records", both * (1 + 1e-6), 1e-6)
    new = add_records(later_parties(deployment, plan), 1)
    assert len(ledger.charges("records")) == 5 and new.processes["silo0"].party.sealed
    check_room(ledger, "records", plan)
    add_records(new, 2)
    assert new.processes["silo0"].party.sealed.keys() == {1, 2}


# ---- folders and commands ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return folders of a first plan at silo0 and the hub; silo0 knows one broadcast."""
    home = tmp_path_factory.mktemp("extend")
    names = ("silo0", "silo1", "hub")
    keys = {name: folders.make_keys(home / name) for name in names}
    silos = [{"name": name, **keys[name]} for name in names[:2]]
    plan = plans.compile_plan(federation.spec(silos=2) | {"silos": silos, "hub": keys["hub"]})
    plan.save(home / "plan")
    folders.join(home / "silo0", home / "plan", (1.2, 1e-6), "people")
    shared = ("--ledger", home / "shared.sqlite", "--epsilon", 1, "--delta", 1e-6)
    assert run("join", home / "silo1", home / "plan", *shared).exit_code == 0
    folders.join(home / "hub", home / "plan")
    process = folders.opened(home / "silo0")
    hub = Identity(folders.read_secret(home / "hub" / folders.SECRET))
    entries = tuple(wire.Entry(i, bytes(32)) for i in (0, 1))
    body = wire.Broadcast(wire.packed(np.array([1.0, 2.0, 3.0, 0.5, 4.0])), entries, b"")
    process.store.write(broadcast_write(plan.wire.signed(hub, "hub", 1, body)))
    process.store.close()
    text = "[system]\nhorizon = 10\nbatch_size = 5\nepsilon = 0.5\ndelta = 1e-6\n"
    text += "[calendar]\nstart = 1970-01-01T00:30:00Z\nperiod = 100\n"
    (home / "more.toml").write_text(text)
    return home


def broadcast_write(data):
    """Return the write that stores broadcast 1."""
    from fastfed.deployment.store import Write

    return Write("broadcast", "1", data)


def run(*arguments):
    """Run `deploy` with these arguments in this process."""
    return CliRunner().invoke(cli, ["deploy", *map(str, arguments)])


def words(result):
    """Return what a command printed, without its line breaks and frames."""
    return " ".join(result.output.replace("│", " ").split())


def test_commands_extend_and_join(home):
    result = run("extend", home / "silo0", home / "more.toml", home / "plan2")
    assert result.exit_code == 0, result.output
    assert "start the earlier model" in result.output and "together with plan" in words(result)
    plan = plans.load(home / "plan2")
    assert plan.document.extends.start == last_broadcast(home / "silo0")[1]
    repeated = run("extend", home / "silo0", home / "more.toml", home / "plan2")
    assert repeated.exit_code == 2 and "never replaced" in repeated.output

    joined = run("join", home / "second0", home / "plan2", "--extends", home / "silo0")
    assert joined.exit_code == 0 and joined.stdout.startswith("silo0 agrees to plan")
    noted = folders.read_note(home / "second0")
    assert noted[:2] == ("people", (home / "silo0" / folders.LEDGER).resolve())
    secret = home / "second0" / folders.SECRET
    assert secret.stat().st_mode & 0o777 == 0o400
    process = folders.opened(home / "second0")
    assert process.party.dataset == "people" and process.party.model.theta.any()
    assert process.ledger.ceiling("people") == (1.2, 1e-6)
    process.store.close()
    exported = run("export", home / "second0")
    assert json.loads(exported.output)["extends"]["start"] == 1


def test_join_refuses_what_does_not_belong_together(home):
    fresh = run("extend", home / "silo0", home / "more.toml", home / "plan3", "--fresh")
    assert fresh.exit_code == 0 and "was requested" in fresh.output
    # The ledger has too little budget left: nothing of the plan is written.
    little = ("--epsilon", 0.4, "--delta", 1e-6)
    refused = run("join", home / "s", home / "plan3", "--extends", home / "silo0", *little)
    assert refused.exit_code == 2 and "more than the ceiling 0.4" in words(refused)
    assert not (home / "s" / folders.PLAN).exists()
    ledger = Ledger(str(home / "silo0" / folders.LEDGER))
    assert ledger.ceiling("people") == (1.2, 1e-6)
    ledger.close()
    for arguments, message in [
        ((home / "silo0", home / "plan3"), "name its folder by --extends"),
        ((home / "t", home / "plan", "--extends", home / "silo0"), "continues no other"),
        ((home / "silo0", home / "plan3", "--extends", home / "silo0"), "name a new one"),
        ((home / "t", home / "plan3", "--extends", home / "second0"), "another plan than the one"),
        ((home / "silo1", home / "plan", "--epsilon", 1), "both --epsilon and --delta"),
    ]:
        result = run("join", *arguments)
        assert result.exit_code == 2 and message in words(result), result.output
    assert run("extend", home / "none", home / "more.toml", home / "p").exit_code == 2


def test_one_ledger_holds_the_ceiling_of_several_folders(home):
    assert folders.read_note(home / "silo1")[:2] == (
        "records",
        (home / "shared.sqlite").resolve(),
    )
    assert not (home / "silo1" / folders.LEDGER).exists()
    ledger = Ledger(str(home / "shared.sqlite"))
    assert ledger.ceiling("records") == (1.0, 1e-6)
    process = folders.opened(home / "silo1")
    assert process.ledger.ceiling("records") == (1.0, 1e-6)
    process.store.close()
    ledger.close()


def test_leave_and_recover_are_commands(home):
    stopped = run("recover", home / "silo1")
    assert stopped.exit_code == 2 and "does not run" in stopped.output
    result = run("leave", home / "silo1")
    assert result.exit_code == 0 and json.loads(result.stdout)["stopped"] == "the silo has left"
    process = folders.opened(home / "silo1")
    assert process.party.leave_reason
    process.store.close()
    refused = run("leave", home / "hub")
    assert refused.exit_code == 2 and "not the folder of a silo" in refused.output


def test_recover_asks_the_silo_that_runs(home, monkeypatch):
    import threading

    from fastfed.deployment.application import Application

    process = folders.opened(home / "silo0")
    with Application(process, home / "silo0" / folders.SOCKET) as application:
        threading.Thread(target=application.serve_forever, daemon=True).start()
        process.party.lost[1] = bytes(32)
        assert not decided(home / "silo0")["learns"]
        result = run("recover", home / "silo0")
        assert result.exit_code == 0, result.output
        assert (
            json.loads(result.output)["lost"] == [] and "1" in json.loads(result.output)["without"]
        )
        # The plan of a running silo can be continued, too.
        assert last_broadcast(home / "silo0")[1] == process.party.broadcasts[1]
        left = run("leave", home / "silo0")
        assert json.loads(left.stdout)["stopped"] == "the silo has left"
        application.shutdown()
    process.store.close()


def decided(folder):
    """Request a decision through the socket of a folder's silo, and return it."""
    from fastfed.deployment.client import Client

    return Client(folder / folders.SOCKET).call("decide", actions=[[0.1, 0.2]])
