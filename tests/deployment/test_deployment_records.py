"""Plans of records: declared columns, actions and outcomes, and decisions for records."""

import json
import threading
from decimal import Decimal

import msgspec
import numpy as np
import pytest

pytest.importorskip("cryptography")

import federation
from records import ACTIONS, AGE, CORRECT, PAIN, SCORE, SEX, context, deployed, schema, silo, spec

from fastfed import InputError
from fastfed.deployment import plans
from fastfed.deployment.application import Application
from fastfed.deployment.client import Client
from fastfed.deployment.model import model_of
from fastfed.deployment.schema import Schema

# ---- columns -------------------------------------------------------------------------------------


def test_a_record_becomes_scaled_and_one_hot_features():
    features = context({"age": "35", "pain": 2.0, "sex": "f"})
    assert features == [-0.5, 0.0, 1.0, 0.0, -1.0]
    assert context({"age": 80, "pain": "none", "sex": "m"})[:1] == [1.0]
    other = [AGE | {"to": [0, 1]}, SEX | {"to": [0, 2]}]
    assert context({"age": 35.0, "sex": "m"}, *other) == [0.25, 2.0]


def test_values_outside_are_clipped_refused_or_missing_as_declared():
    assert context({"age": 200}, AGE) == [1.0]
    refused = AGE | {"outside": "refuse"}
    with pytest.raises(InputError, match='column "age" must be 20 to 80 years') as error:
        context({"age": 130}, refused)
    # The message does not show the value, which is a patient's.
    assert "130" not in str(error.value)
    assert context({"age": 130}, AGE | {"outside": "missing", "fill": 50}) == [0.0]
    with pytest.raises(InputError, match='column "pain" must be one of 1, 2, none'):
        context({"pain": 7}, PAIN)
    unknown = PAIN | {"outside": "missing", "missing_flag": True}
    assert context({"pain": 7}, unknown) == [0.0, 0.0, 0.0, 1.0]
    assert context({"pain": 1}, unknown) == [1.0, 0.0, 0.0, 0.0]
    for value in ("63,5", "old", [1], True, float("inf")):
        with pytest.raises(InputError, match='column "age" must be a number, 20 to 80 years'):
            context({"age": value}, AGE)


def test_missing_values_are_filled_or_marked_as_declared_and_never_guessed():
    for value in (None, "", " ? ", "NA", float("nan"), np.float32("nan"), Decimal("nan")):
        with pytest.raises(InputError, match=r'"age" is missing.*fill or missing_flag'):
            context({"age": value}, AGE)
        assert context({"age": value}, AGE | {"fill": 65}) == [0.5]
        assert context({"age": value}, AGE | {"missing_flag": True}) == [0.0, 1.0]
        assert context({"age": value}, AGE | {"missing_flag": True, "fill": 80}) == [1.0, 1.0]
    assert context({}, SEX | {"fill": "f"}) == [-1.0]
    assert context({}, PAIN | {"fill": "none"}) == [0.0, 0.0, 1.0]
    with pytest.raises(
        InputError, match='column 1 of the record is none of the plan; did you mean "sex"'
    ):
        context({"sax": "m"}, SEX)


def test_rows_are_blocks_or_products_of_actions_and_records():
    blocks = schema(AGE, SEX, actions=ACTIONS | {"constant": 1.0}, norm=1.0)
    rows, offered = blocks.offer(None, {"age": 35, "sex": "m"}, None)
    assert offered == [0, 1]
    assert rows.tolist() == [[-0.5, 1, 1, 0, 0, 0], [0, 0, 0, -0.5, 1, 1]]
    signs = ACTIONS | {"features": [[1], [-1]], "shared": 0.5}
    products = schema(AGE, SEX, actions=signs, norm=2.0)
    rows, offered = products.offer(None, {"age": 35, "sex": "m"}, ["well"])
    assert offered == [1] and rows.tolist() == [[0.25, -0.5, 0.25]]
    for among in ([], "well", ["well", "well"], ["sick"]):
        with pytest.raises(InputError, match="among"):
            products.offer(None, {"age": 35, "sex": "m"}, among)


def test_the_norm_by_default_is_the_largest_that_a_row_can_have():
    rng = np.random.default_rng(0)
    columns = [
        AGE | {"to": [-2, 1], "missing_flag": True, "fill": 20},
        PAIN | {"missing_flag": True},
        SEX,
    ]
    for actions in (
        ACTIONS | {"constant": 0.5},
        ACTIONS | {"features": [[1, 2], [0, -1]], "shared": 3.0},
    ):
        made_schema = schema(*columns, actions=actions)
        largest = 0.0
        for _ in range(200):
            record = {
                "age": rng.choice([None, 20, 50, 80]),
                "pain": rng.choice([None, 1, 2]),
                "sex": "m",
            }
            rows, _ = made_schema.offer(None, record, None)
            largest = max(largest, float(np.linalg.norm(rows, axis=1).max()))
        assert 0.999 < largest <= 1.0 + 1e-12


def test_what_an_outcome_is_worth():
    correct = schema().records.outcome
    assert [correct.reward("1.0", a) for a in ("ill", "well")] == [1.0, 0.0]
    low = schema(reward=SCORE | {"better": "low"}).records.outcome
    assert [low.reward(v, "ill") for v in ("10", 60, -1)] == [0.8, 0.0, 1.0]
    codes = schema(reward={"column": "end", "codes": {"dead": 0, "well": 1, "so so": 0.4}})
    assert codes.records.outcome.reward("so so", "ill") == 0.4
    with pytest.raises(InputError, match='"end" must be one of dead, well, so so'):
        codes.records.outcome.reward("gone", "ill")
    with pytest.raises(InputError, match="missing; cancel"):
        correct.reward("", "ill")
    refused = schema(reward=SCORE | {"outside": "refuse"}).records.outcome
    with pytest.raises(InputError, match='"score" must be 0 to 50 points'):
        refused.reward(51, "ill")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": [{"name": "age", "kind": "number"}]}, "needs its public range.*low"),
        ({"columns": [AGE | {"low": 90}]}, "low < high, got 90 and 80"),
        ({"columns": [AGE, AGE]}, "different names"),
        ({"columns": [AGE | {"fill": 19}]}, "fill must be 20 to 80 years, got 19"),
        ({"columns": [AGE | {"kind": "text"}]}, r"columns\[0\].kind must be one of"),
        ({"columns": [AGE | {"codes": [1]}]}, "unknown key 'codes'.*a number"),
        ({"columns": [AGE | {"to": [1, 1]}]}, "to must be two numbers"),
        ({"columns": [AGE | {"outside": "keep"}]}, "outside must be one of"),
        ({"columns": [PAIN | {"outside": "clip"}]}, "outside must be one of"),
        ({"columns": [AGE | {"outside": "missing"}]}, "needs fill or missing_flag"),
        (
            {"columns": [PAIN | {"codes": list(range(101))}], "actions": {"names": range(1000)}},
            "at most 100000 features, got 101000",
        ),
        ({"columns": [PAIN | {"codes": []}]}, "codes must be 1 to 1000 different names"),
        ({"columns": [PAIN | {"fill": "9"}]}, "fill must be one of 1, 2, none, got '9'"),
        ({"columns": [SEX | {"no": []}]}, "codes for yes and codes for no"),
        ({"columns": ["age"]}, r"columns\[0\] must be a table"),
        ({"actions": {}}, "actions.names is required: a list"),
        ({"actions": ACTIONS | {"features": [[1]]}}, "must be 2 rows of one length"),
        ({"actions": ACTIONS | {"features": [[0], [0]]}}, "0 for every action"),
        ({"reward": CORRECT | {"column": "age"}}, "must not be a feature"),
        ({"reward": {"column": "num"}}, "reward needs low and high, codes, or correct"),
        ({"reward": CORRECT | {"codes": {"0": 1}}}, "one of codes and correct"),
        ({"reward": {"column": "num", "codes": {"0": 2}}}, "reward.codes.*<= 1"),
        ({"reward": {"column": "num", "correct": {"0": "sick"}}}, 'one of "ill", "well"'),
        ({"reward": SCORE | {"high": 0}}, "reward needs low < high"),
    ],
)
def test_what_a_spec_may_not_declare(changes, message):
    with pytest.raises(InputError, match=message):
        plans.compile_plan(spec(**changes))


def test_columns_with_a_kind_need_actions_and_reward():
    spec_dict = spec()
    for key, message in (("actions", "need the table actions"), ("reward", "the table reward")):
        with pytest.raises(InputError, match=message):
            plans.compile_plan({k: v for k, v in spec_dict.items() if k != key})


# ---- plan files ----------------------------------------------------------------------------------


def test_a_plan_of_records_is_saved_and_verified(tmp_path):
    plan = deployed()
    plan.save(tmp_path / "plan")
    loaded_plan = plans.load(tmp_path / "plan")
    assert loaded_plan.digest == plan.digest and loaded_plan.document.schema == plan.document.schema
    assert [c.name for c in loaded_plan.document.schema.columns][:2] == ["ill: age", "ill: pain=1"]
    assert deployed(columns=[AGE | {"high": 81}, PAIN, SEX]).digest != plan.digest


def test_a_file_whose_columns_are_not_those_of_its_records_is_refused():
    plan = deployed()
    records = plan.document.schema.records
    other = msgspec.structs.replace(records.variables[0], name="years")
    lying = msgspec.structs.replace(records, variables=(other, *records.variables[1:]))
    wrong = msgspec.structs.replace(records, variables=(msgspec.structs.replace(other, low=99.0),))
    faults = [
        (lying, "columns must be those that its records become"),
        (wrong, "public range low < high"),
    ]
    for fault, message in faults:
        changed = msgspec.structs.replace(plan.document.schema, records=fault)
        document = msgspec.structs.replace(plan.document, schema=changed)
        inner = plans.spelled(document)
        with pytest.raises(InputError, match=message):
            plans.load(msgspec.msgpack.encode([inner, {}]))


def test_a_plan_of_raw_rows_is_spelled_as_before():
    plan = federation.deployed()
    fields = msgspec.msgpack.decode(plans.spelled(plan.document))
    at = plans.Document.__struct_fields__.index("schema")
    assert len(fields) == 13 and len(fields[at]) == 2
    fields[at].append(None)
    with pytest.raises(InputError, match="canonical"):
        plans.load(msgspec.msgpack.encode([msgspec.msgpack.encode(fields), {}]))


# ---- decisions -----------------------------------------------------------------------------------


def test_a_record_is_decided_and_its_outcome_becomes_the_reward():
    silo_party = silo(deployed())
    record = {"age": 63, "pain": "2", "sex": "m"}
    first = silo_party.decide(record=record, subject="a")
    assert (first.action, first.name) == (0, "ill") and first.learns
    only = silo_party.decide(record=record, among=["well"])
    assert (only.action, only.name, only.propensity) == (1, "well", 1.0)
    silo_party.outcome(first.id, "0")
    silo_party.outcome(only.id, 0)
    assert [e.reward for e in silo_party.party.ended.values()] == [0.0, 1.0]
    with pytest.raises(InputError, match="takes record, not actions"):
        silo_party.decide([[0.0] * 10])
    with pytest.raises(InputError, match='outcome "num" must be one of 0, 1'):
        silo_party.outcome(first.id, 7)
    raw = silo(federation.deployed())
    with pytest.raises(InputError, match="decide takes actions"):
        raw.decide(record=record)
    with pytest.raises(InputError, match="declares no outcome"):
        raw.outcome(raw.decide([[0.5, 0.1]]).id, 1)


def test_the_row_of_a_record_is_the_one_that_is_learned_from():
    plan = deployed()
    record = {"age": 63, "pain": "2", "sex": "m"}
    silo_party = silo(plan)
    silo_party.reward(silo_party.decide(record=record).id, 1.0)
    raw = msgspec.structs.replace(
        plan.document, schema=Schema(plan.document.schema.columns, plan.document.schema.norm)
    )
    by_hand = silo(plans.checked(raw, {}))
    rows = plan.document.schema.records.actions.rows(
        plan.document.schema.records.context(record), [0, 1]
    )
    by_hand.reward(by_hand.decide(rows).id, 1.0)
    assert np.array_equal(silo_party.party._leaf_sums, by_hand.party._leaf_sums)
    assert silo_party.party._leaf_sums[0].any()


def test_the_socket_takes_records_and_outcomes(tmp_path):
    with Application(process := silo(deployed()), tmp_path / "s") as application:
        threading.Thread(target=application.serve_forever, daemon=True).start()
        client = Client(tmp_path / "s")
        decision = client.call("decide", record={"age": 63, "pain": 2, "sex": "m"}, subject="a")
        assert decision["name"] == "ill" and decision["action"] == 0
        assert client.call("outcome", id=decision["id"], outcome="1")["open_decisions"] == 0
        with pytest.raises(InputError, match='column "sex" is missing'):
            client.call("decide", record={"age": 63, "pain": 2})
        application.shutdown()
    assert [e.reward for e in process.party.ended.values()] == [1.0]


def test_an_exported_model_says_how_rows_are_made():
    deployment = federation.Federation(deployed())
    deployment.settle()
    deployment.now = deployment.plan.document.calendar.closes[0]
    deployment.settle()
    model = json.loads(json.dumps(model_of(deployment.processes["silo0"].party)))
    assert model["schema"]["records"]["actions"]["names"] == ["ill", "well"]
    assert model["schema"]["records"]["columns"][0]["unit"] == "years"
