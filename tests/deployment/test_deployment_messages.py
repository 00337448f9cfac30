"""Tests of envelopes and plan files: which are refused, and that encodings are unique."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography")

import federation

from fastfed import InputError
from fastfed.deployment import codec, kinds, plans, wire
from fastfed.deployment.hub import Hub
from fastfed.deployment.seal import Identity
from fastfed.deployment.wire import Refused

PLAN = federation.deployed()
SILO = Identity(federation.secret("silo0"))


def report(release=1, sender="silo0", identity=SILO, size=None):
    """Return a report of zeros, by default one that the hub accepts."""
    values = np.zeros(PLAN.plan.statistic_size if size is None else size)
    return federation.sealed_report(PLAN, 0, release, values, identity=identity, name=sender)


def spoiled(data, **fields):
    """Return a message with other fields, signed again."""
    document = msgspec.structs.replace(msgspec.msgpack.decode(data, type=wire.Envelope), **fields)
    signature = SILO.sign(document.signed_part())
    return msgspec.structs.replace(document, signature=signature).as_bytes()


# ---- envelopes -----------------------------------------------------------------------------------


def test_a_message_comes_back_as_it_was_sent():
    actual = PLAN.wire.read(report())
    assert (actual.kind, actual.sender, actual.release) == ("report", "silo0", 1)
    plain = federation.opened_report(PLAN, report())
    assert PLAN.wire.floats(plain, "it").tolist() == [0.0] * 5
    # Encrypted to the hub: whoever holds its port reads nothing.
    assert plain not in report() and len(report()) < 8 * 5 + 320


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no envelope"),
        (b"\x93\x01\x02\x03", "no envelope"),
        (spoiled(report(), version=1), "version 2, got 1"),
        (spoiled(report(), plan=bytes(32)), "another plan"),
        (spoiled(report(), kind="model"), "must be one of"),
        (spoiled(report(), sender="nobody"), "no party"),
        (spoiled(report(), sender="silo1"), "not that of silo1"),
        (spoiled(report(), release=-1), "release -1"),
        (report()[:-1] + bytes([report()[-1] ^ 1]), "signature"),
        (bytes(1 << 22), "at most"),
        (spoiled(report(), body=bytes(2000)), "a report must be at most"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_data_that_is_no_message_of_the_plan_is_refused(data, message):
    with pytest.raises(Refused, match=message):
        PLAN.wire.read(data)


def test_another_spelling_of_a_message_is_refused():
    document = msgspec.msgpack.decode(report())
    assert isinstance(document[0], int)
    # The version as two bytes instead of one.
    data = report()
    spelled = data[:1] + b"\xcc" + data[1:]
    assert msgspec.msgpack.decode(spelled) == document
    with pytest.raises(Refused, match="canonical"):
        PLAN.wire.read(spelled)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_spoiled_bytes_are_refused_and_nothing_else_happens(data):
    """Any bytes give Refused or InputError, and do not change the hub's state."""
    hub = Hub(PLAN, federation.secret("hub"))
    message = bytearray(report())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(message) - 1))
        message[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        message = message[: data.draw(st.integers(0, len(message)))]
    before = hub.status()
    if bytes(message) != report():
        with pytest.raises(InputError):
            hub.handle(bytes(message), 2000.0)
    assert hub.status() == before


# ---- what the hub refuses ------------------------------------------------------------------------


def joined():
    """Return a hub that silo 0 has joined."""
    hub = Hub(PLAN, federation.secret("hub"))
    join = wire.Join(bytes(16), PLAN.countersignature(SILO))
    step = hub.handle(PLAN.wire.signed(SILO, "silo0", 0, join), 0.0)
    for write in step.writes:
        hub.fold(write)
    return hub


def signed_report(values, release=1):
    """Return a valid report of silo 0 with these values."""
    return federation.sealed_report(PLAN, 0, release, np.array(values, float))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (signed_report([np.nan] + [0.0] * 4), "finite"),
        (signed_report([np.inf] + [0.0] * 4), "finite"),
        (signed_report([1e6] + [0.0] * 4), "entry 0 beyond"),
        (signed_report([0.0] * 4 + [-1e300]), "entry 4 beyond"),
        (signed_report([0.0] * 4), "40 bytes"),
        (signed_report([0.0] * 5, release=5), "release 1..4"),
        (signed_report([0.0] * 5, release=0), "release 1..4"),
    ],
)
def test_impossible_reports_are_refused_at_once(data, message):
    hub = joined()
    before = hub.status()
    with pytest.raises(Refused, match=message):
        hub.handle(data, 2000.0)
    assert hub.status() == before


def test_a_second_report_is_answered_or_raises_an_alarm_but_is_never_opened():
    hub = joined()
    (write,) = hub.handle(signed_report([1.0] * 5), 0.0).writes
    hub.fold(write)
    repeated = hub.handle(signed_report([1.0] * 5), 0.0)
    assert not repeated.writes and len(repeated.messages) == 1
    other = hub.handle(signed_report([2.0] * 5), 0.0)
    assert [w.kind for w in other.writes] == ["alarm"] and "two reports" in other.problem
    assert hub.reports[1, 0] == signed_report([1.0] * 5)


def test_a_silo_must_agree_to_the_plan_before_it_reports():
    hub = Hub(PLAN, federation.secret("hub"))
    with pytest.raises(Refused, match="must join"):
        hub.handle(report(), 0.0)
    other = federation.deployed(batch=6)
    join = wire.Join(bytes(16), other.countersignature(SILO))
    with pytest.raises(InputError, match="countersignature"):
        hub.handle(PLAN.wire.signed(SILO, "silo0", 0, join), 0.0)


# ---- plan files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", kinds.SUPPORTED_PROTOCOLS)
@pytest.mark.parametrize("system", [{"batch_size": 5}, {"batch_first": 3, "batch_ratio": 1.5}])
def test_a_plan_file_loads_as_the_same_plan(protocol, system, tmp_path):
    plan = federation.deployed(protocol, system=system)
    plan = plan.countersigned("silo0", SILO)
    plan.save(tmp_path / "plan")
    compiled_plan = plans.load(tmp_path / "plan")
    assert compiled_plan.digest == plan.digest and compiled_plan.signatures == plan.signatures
    assert (
        codec.numbers_of(compiled_plan.plan) == codec.numbers_of(plan.plan) == plan.document.numbers
    )
    assert compiled_plan.certificate.status == "proven"
    # The number of noise bits is an integer, so epsilon can be up to 2e-4 smaller.
    rel = 2e-4 if protocol == "shuffle-vector" else 1e-6
    assert compiled_plan.certificate.exact.epsilon == pytest.approx(1.0, rel=rel)
    assert not any("simulation" in caveat for caveat in compiled_plan.certificate.caveats)
    # A silo of bits adds no noise that its secret could remove.
    has_secret = any("secret" in c.text for c in compiled_plan.certificate.conditions)
    assert has_secret == (protocol != "user-bit")


def test_a_spec_in_toml_gives_the_same_plan():
    spec = federation.spec()
    keys = "\n".join(
        f'[[silos]]\nname = "{p["name"]}"\nsign = "{p["sign"]}"\nopen = "{p["open"]}"'
        for p in spec["silos"]
    )
    text = (
        f"""
    norm = 1.0
    [federation]
    name = "tests"
    least = 2
    [system]
    horizon = 20
    protocol = "silo-ldp"
    epsilon = 1.0
    delta = 1e-6
    batch_size = 5
    release = "tree"
    [calendar]
    start = 1970-01-01T00:16:40Z
    period = 100
    grace = 50
    reward_deadline = 250
    [[columns]]
    name = "x0"
    low = -1.0
    [[columns]]
    name = "x1"
    low = -1.0
    [hub]
    sign = "{spec["hub"]["sign"]}"
    open = "{spec["hub"]["open"]}"
    """
        + keys
    )
    plan = plans.compile_plan(text)
    assert plan.document == federation.deployed().document
    assert plan.digest == federation.deployed().digest


def resealed(document, **fields):
    """Return a plan file with other fields, in the canonical encoding."""
    changed = msgspec.structs.replace(document, **fields)
    return msgspec.msgpack.encode([plans.spelled(changed), {}])


def numbers(**changed):
    """Return the plan's numbers with some of them changed; `__` in a name stands for a point."""
    return PLAN.document.numbers | {name.replace("__", "."): v for name, v in changed.items()}


def faults():
    """Yield (name, changed fields of a plan, words of the refusal)."""
    stored, keys = PLAN.document.numbers, PLAN.document.keys
    half = stored["noise_std.bias"] / 2.0
    yield "half the noise", {"numbers": numbers(noise_std__bias=half)}, "noise_std.bias"
    yield "another epsilon", {"numbers": numbers(privacy__exact=[0.1])}, "privacy.exact"
    yield "no bound", {"numbers": numbers(clip__high=math.nan)}, "clip.high is nan"
    yield "raw sums", {"numbers": numbers(protocol__randomizer=1)}, "protocol.randomizer is 1"
    yield "a whole number", {"numbers": numbers(noise_std__bias=16)}, "noise_std.bias is 16"
    yield "a truth", {"numbers": numbers(silos=True)}, "silos is True"
    yield "text", {"numbers": numbers(horizon="20")}, "horizon is '20'"
    yield "a short array", {"numbers": numbers(regularizer=b"8 bytes.")}, "regularizer"
    yield "one more number", {"numbers": numbers(noise_std__other=1.0)}, "noise_std.other"
    without_bias = {name: v for name, v in stored.items() if name != "noise_std.bias"}
    yield "one number less", {"numbers": without_bias}, "has no number noise_std.bias"
    yield "another claim", {"keys": keys | {"epsilon": 0.5}}, "but its choices give"
    yield "eager", {"keys": keys | {"lazy": False}}, "sieve below 1 needs"
    largest = keys | {"sieve": 1.0}
    yield "eager, largest bound", {"keys": largest | {"lazy": False}}, "radius.base"
    yield "no clipping", {"keys": keys | {"clip": False}}, "sieve below 1 needs rewards"
    yield "no clipping, largest bound", {"keys": largest | {"clip": False}}, "ranking|clip"
    yield "another ranking", {"keys": keys | {"sieve": 0.5}}, "ranking"
    yield "no sieve", {"keys": largest}, "ranking|sieve_growth|widths"
    yield "a wider sieve", {"numbers": numbers(sieve_growth=2.0)}, "sieve_growth"
    wide = [2.0 * c for c in stored["widths"]]
    yield "other widths", {"numbers": numbers(widths=wide)}, "widths"
    without_widths = {name: v for name, v in stored.items() if name != "widths"}
    yield "no widths", {"numbers": without_widths}, "has no number widths"
    yield "a key more", {"keys": keys | {"model": "central"}}, "unknown key"
    yield "a baseline", {"algorithm": "hedge", "keys": {}}, "system.algorithm"
    yield "another horizon", {"horizon": 25}, "batches|choices give|calendar"
    yield "a silo less", {"silos": PLAN.document.silos[:2]}, "silos is 3"
    yield "a long name", {"name": "x" * 201}, "printable characters on one line"
    yield "a forged line", {"name": "tests\nstatus proven"}, "printable characters on one line"
    yield "a terminal's escape", {"name": "tests \x1b[31m"}, "printable characters on one line"


@pytest.mark.parametrize(
    ("fields", "message"), [f[1:] for f in faults()], ids=[f[0] for f in faults()]
)
def test_a_plan_whose_choices_do_not_give_its_numbers_is_refused(fields, message):
    with pytest.raises(InputError, match=message):
        plans.load(resealed(PLAN.document, **fields))


def test_numbers_of_another_linear_algebra_are_executed_as_they_are_stored():
    """Stored numbers may differ by the stated rounding; the certificate is computed from them."""
    std, most = PLAN.document.numbers["noise_std.bias"], codec.MAX_RELATIVE_DIFFERENCE
    for factor, accepted in ((1 + 0.99 * most, True), (1 + 1.01 * most, False)):
        data = resealed(PLAN.document, numbers=numbers(noise_std__bias=std * factor))
        # Different noise has a different account, and the certificate must state its epsilon.
        with pytest.raises(InputError, match="certified" if accepted else "noise_std.bias"):
            plans.load(data)
    radius = PLAN.document.numbers["radius.base"] * (1 + 0.99 * most)
    plan = plans.load(resealed(PLAN.document, numbers=numbers(radius__base=radius)))
    assert plan.plan.radius.base == radius != PLAN.plan.radius.base
    assert plan.digest != PLAN.digest
    exact = PLAN.document.numbers["clip.high"] * (1 + 1e-9)
    with pytest.raises(InputError, match=r"clip\.high"):
        plans.load(resealed(PLAN.document, numbers=numbers(clip__high=exact)))


def test_no_sentence_is_stored():
    """The only free texts of a plan are names, units and codes."""
    texts = {"tests", "silo0", "silo1", "silo2", "hub", "x0", "x1", PLAN.document.algorithm}
    texts |= {v for v in PLAN.document.keys.values() if isinstance(v, str)}
    collected, values_to_visit = set(), [msgspec.msgpack.decode(plans.spelled(PLAN.document))]
    while values_to_visit:
        value = values_to_visit.pop()
        if isinstance(value, str):
            collected.add(value)
        elif isinstance(value, list | dict):
            # Keys of tables are fixed names.
            values_to_visit += value.values() if isinstance(value, dict) else value
    assert collected - texts <= {""}


def test_an_earlier_plan_file_is_refused_with_what_to_do():
    old = msgspec.msgpack.encode(
        [1, "tests", "a spec", b"", b"", b"", [], [], None, [], [], 1, 0.0]
    )
    with pytest.raises(InputError, match=r"format 1.*compile it again from its spec"):
        plans.load(msgspec.msgpack.encode([old, {}]))


def test_plan_files_that_are_pickles_or_hold_other_values_are_refused():
    for data in (b"\x80\x04K\x01.", b"", b"\xc1", PLAN.as_bytes()[:-3]):
        with pytest.raises(InputError):
            plans.load(data)
    for value in (["Popen", "ls"], {"a": 1}, b"bytes", None, [1.0, 2.0]):
        with pytest.raises(InputError):
            plans.load(resealed(PLAN.document, numbers=numbers(noise_std__bias=value)))


def test_a_countersignature_of_another_plan_is_refused():
    other = federation.deployed(batch=6).countersigned("silo0", SILO)
    forged = plans.DeployedPlan(PLAN.document, PLAN.plan, other.signatures)
    with pytest.raises(InputError, match="countersignature"):
        plans.load(forged.as_bytes())
    with pytest.raises(InputError, match="not that of silo1"):
        PLAN.identity("silo1", federation.secret("silo0"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"system": {"batch_size": 5, "returning": 2}}, "a user of several batches"),
        ({"system": {"batch_size": 5, "relation": "zero-out"}}, "zero-out|replace"),
        ({"system": {"batch_size": 5, "protocol": "shuffle-amplified"}}, "comes late"),
        ({"system": {"batch_size": 5, "protocol": "none"}}, "system.protocol must be one of"),
        ({"system": {"algorithm": "linucb-ldp"}}, "user's own device"),
        ({"system": {"algorithm": "fed-svt"}}, "for fed-svt"),
        ({"system": {"algorithm": "feducb", "schedule": "determinant"}}, 'must be "fixed"'),
        ({"system": {"algorithm": "feducb", "protocol": "central"}}, "unknown key"),
        ({"system": {"algorithm": "hedge"}}, "system.algorithm"),
        ({"federation": {"least": 4}}, "least"),
        ({"calendar": {"start": 0}}, "one of closes, period and round"),
        ({"calendar": {"start": 0, "closes": [1, 2]}}, "calendar must close 4"),
        ({"calendar": {"start": 0, "closes": [1, 3, 2, 4]}}, "one after the other"),
        ({"helper": {}}, "public key"),
        ({"columns": []}, "columns is required"),
        ({"extra": 1}, "unknown key"),
    ],
)
def test_a_spec_that_is_not_deployed_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        plans.compile_plan(federation.spec(**changes))


def test_secure_sums_need_all_silos_and_a_helper():
    with pytest.raises(InputError, match="least must be all 3"):
        plans.compile_plan(federation.spec("secure-sum", federation={"least": 2}))
    with pytest.raises(InputError, match="one feature"):
        plans.compile_plan(federation.spec("secure-sum", dimension=1))
    spec = federation.spec("secure-sum")
    del spec["helper"]
    with pytest.raises(InputError, match="needs a helper"):
        plans.compile_plan(spec)


def test_a_receipt_that_names_every_release_fits_into_a_message():
    reports = tuple((k, bytes(32)) for k in range(1, kinds.MAX_RELEASES + 1))
    hub = Identity(federation.secret("hub"))
    data = PLAN.wire.signed(hub, "hub", 1, wire.Receipt(0, reports, bytes(16)))
    assert len(data) < PLAN.wire.limits["receipt"] / 2
    with pytest.raises(InputError, match="at most 10000 releases, got 10001"):
        plans.compile_plan(federation.spec(batches=10_001, batch=1, system={"batch_size": 1}))
