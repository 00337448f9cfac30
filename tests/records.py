"""Small plans for tests with declared columns, actions and outcomes, and a silo in memory."""

import federation

from fastfed.deployment import plans
from fastfed.deployment.declared import schema_of
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.process import SiloProcess
from fastfed.deployment.silo import SiloParty
from fastfed.deployment.store import MemoryStore

AGE = {"name": "age", "kind": "number", "low": 20, "high": 80, "unit": "years"}
PAIN = {"name": "pain", "kind": "category", "codes": [1, 2, "none"]}
SEX = {"name": "sex", "kind": "flag", "yes": ["m"], "no": ["f"]}
ACTIONS = {"names": ["ill", "well"]}
CORRECT = {"column": "num", "correct": {"0": "well", "1": "ill"}}
SCORE = {"column": "score", "low": 0, "high": 50, "unit": "points"}


def spec(columns=(AGE, PAIN, SEX), actions=ACTIONS, reward=CORRECT, **more):
    """Return the spec of a federation on records; keywords replace its tables."""
    spec_table = federation.spec(columns=list(columns), actions=actions, reward=reward, **more)
    if "norm" not in more:
        del spec_table["norm"]
    return spec_table


def schema(*columns, actions=ACTIONS, reward=CORRECT, **more):
    """Return the schema of these columns; without columns, of age, pain and sex."""
    return schema_of(
        {"columns": list(columns or (AGE, PAIN, SEX)), "actions": actions, "reward": reward} | more
    )


def context(record, *columns):
    """Return a record's context under the schema of these columns."""
    return schema(*columns).records.context(record)


_PLANS = {}


def deployed(**more):
    """Return the compiled plan of a spec; compile each spec once."""
    key = repr(more)
    if key not in _PLANS:
        _PLANS[key] = plans.compile_plan(spec(**more))
    return _PLANS[key]


def silo(plan, name="silo0", store=None, clock=lambda: 1010.0):
    """Return a silo's process with a new ledger in memory."""
    ledger = Ledger(":memory:")
    ledger.set_ceiling("records", 1.0, 1e-6)
    party = SiloParty(plan, name, federation.secret(name), ledger)
    return SiloProcess(party, store or MemoryStore(), ledger, clock)
