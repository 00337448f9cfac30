"""Certificates: their JSON shape, their text, and that they refuse to overstate."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fastfed._validate import InputError
from fastfed.privacy import Budget, calibrate_tree
from fastfed.privacy.certificate import (
    Certificate,
    ClaimCondition,
    Condition,
    Guarantee,
    SideCertificate,
    as_text,
    no_privacy,
    rounded_up,
)

KEYS = [
    *("unit", "relation", "model", "claimed", "exact", "status"),
    *("noise_std", "conditions", "caveats", "source"),
]
HOLDS = Condition("rewards bounded", True)
FAILS = Condition("rewards bounded", False)
MET = ClaimCondition("the claim is met", True)
MISSED = ClaimCondition("the claim is met", False)


def fields(**changed: Any) -> dict[str, Any]:
    """Return the fields of a valid certificate, some of them changed."""
    return {
        "unit": "user",
        "relation": "replace",
        "model": "silo-level LDP",
        "claimed": Guarantee(1, 0.01),
        "exact": Guarantee(0.46, 0.01),
        "status": "proven",
        "noise_std": {"bias": 11.3, "covariance": 11.3},
        "conditions": [HOLDS],
        "caveats": ["simulation"],
        "source": "zhou-chowdhury-2024, Theorem 5.1",
        **changed,
    }


def test_json_has_exactly_the_documented_keys() -> None:
    side = SideCertificate(**fields(unit="item"))
    built = Certificate(**fields(also=[side])).to_builtins()
    assert list(built) == [*KEYS, "also"]
    assert list(built["also"][0]) == KEYS
    assert built["claimed"] == {"epsilon": 1.0, "delta": 0.01}
    assert built["conditions"] == [{"text": "rewards bounded", "holds": True}]
    assert json.loads(json.dumps(built)) == built
    nothing = no_privacy("zhou-chowdhury-2024").to_builtins()
    assert list(nothing) == [*KEYS, "also"]
    assert (nothing["claimed"], nothing["exact"], nothing["status"]) == (None, None, "none")
    assert nothing["caveats"] == ["no privacy"]
    assert nothing["also"] == nothing["conditions"] == []
    assert nothing["noise_std"] == {}


@pytest.mark.parametrize("kind", [Certificate, SideCertificate])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"exact": None}, 'exact must be a Guarantee when status is "proven"'),
        ({"conditions": [HOLDS, FAILS]}, "every condition must hold"),
        ({"exact": Guarantee(1.1, 0.01)}, "is above claimed epsilon 1, delta 0.01"),
        ({"exact": Guarantee(0.5, 0.02)}, "a failed ClaimCondition must say so"),
        ({"exact": Guarantee(1.1, 0.01), "conditions": [MET]}, "is above claimed"),
        (
            {"exact": Guarantee(1.1, 0.01), "conditions": [FAILS, MISSED]},
            "every condition must hold",
        ),
        ({"status": "conditional"}, 'a condition must fail when status is "conditional"'),
        # That the claim is missed makes nothing conditional.
        (
            {"status": "conditional", "exact": Guarantee(1.1, 0.01), "conditions": [MISSED]},
            'a condition must fail when status is "conditional"',
        ),
        (
            {"status": "conditional", "exact": None, "conditions": [FAILS]},
            'exact must be a Guarantee when status is "conditional"',
        ),
        (
            {"status": "conditional", "exact": Guarantee(1.1, 0.01), "conditions": [FAILS]},
            "a failed ClaimCondition must say so",
        ),
        ({"status": "unproven"}, 'exact must be None when status is "unproven"'),
        ({"status": "none"}, 'exact must be None when status is "none"'),
        ({"status": "prooven"}, 'did you mean "proven"?'),
        ({"unit": "client"}, "unit must be one of"),
        ({"relation": "swap"}, "relation must be one of"),
        ({"source": " "}, "source must be a non-empty text"),
        ({"noise_std": {"bias": float("nan")}}, "noise_std[bias] must be >= 0, got nan"),
    ],
)
def test_certificates_refuse_to_overstate(
    kind: type, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as error:
        kind(**fields(**changed))
    assert message in str(error.value)


def test_an_exceeded_claim_excuses_no_other_condition() -> None:
    """Check unbounded rewards, which void the account whether or not the claim holds."""
    with pytest.raises(InputError):
        Certificate(**fields(exact=Guarantee(11.88, 0.01), conditions=[FAILS]))


def test_valid_certificates_are_accepted() -> None:
    Certificate(**fields())
    # An exact value above the claim is allowed if the certificate says that the claim is not met.
    Certificate(**fields(exact=Guarantee(11.88, 0.01), conditions=[HOLDS, MISSED]))
    Certificate(**fields(claimed=None))
    Certificate(**fields(exact=Guarantee(1 + 1e-12, 0.01)))
    Certificate(**fields(status="unproven", exact=None, conditions=[FAILS]))
    Certificate(**fields(status="conditional", conditions=[FAILS]))
    Certificate(
        **fields(status="conditional", exact=Guarantee(11.88, 0.01), conditions=[FAILS, MISSED])
    )
    # A claim was made, and yet there is no finite epsilon.
    Certificate(**fields(status="none", exact=None))
    with pytest.raises(InputError, match="epsilon must be >= 0, got inf"):
        Guarantee(float("inf"), 0.1)
    with pytest.raises(InputError, match="also must hold SideCertificate"):
        Certificate(**fields(also=[Certificate(**fields())]))


def test_certificates_compare_by_value() -> None:
    certificate = Certificate(**fields())
    assert certificate == Certificate(**fields())
    with pytest.raises(AttributeError):
        certificate.status = "none"  # type: ignore[misc]
    noise = {"bias": 1.0}
    with_noise = Certificate(**fields(noise_std=noise))
    noise["bias"] = 0.0
    assert with_noise.noise_std == {"bias": 1.0}


def test_a_certificate_accepts_the_account_of_a_tree() -> None:
    tree = calibrate_tree(Budget(1, 0.01), 400)
    filled = fields(
        exact=Guarantee(tree.exact(), 0.01),
        conditions=tree.conditions(),
        noise_std=tree.noise_stds,
        source=tree.source,
    )
    exact = Certificate(**filled).exact
    assert exact is not None
    assert exact.epsilon == pytest.approx(1.0)
    assert exact.delta == 0.01
    # The noise of the published code misses its claim, and the certificate must say so.
    code = calibrate_tree(Budget(5, 0.1), 400, "published-code")
    filled = fields(
        claimed=Guarantee(5, 0.1),
        exact=Guarantee(code.exact(), 0.1),
        conditions=code.conditions(),
    )
    certificate = Certificate(**filled)
    assert certificate.exact is not None
    assert certificate.exact.epsilon == pytest.approx(11.88, abs=5e-3)
    # Without the sentence that the claim is not met, nothing is certified.
    with pytest.raises(InputError, match="a failed ClaimCondition must say so"):
        Certificate(**{**filled, "conditions": []})


def test_text_contains_all_fields_within_88_columns() -> None:
    certificate = Certificate(
        **fields(
            status="unproven",
            exact=None,
            conditions=[HOLDS, Condition("a rather long condition " * 8, False)],
            caveats=["first caveat", "a caveat " * 30],
            also=[SideCertificate(**fields(unit="item", exact=Guarantee(0.98765432, 0.01)))],
        )
    )
    text = as_text(certificate)
    assert max(len(line) for line in text.splitlines()) <= 88
    flat = " ".join(text.split())
    for message in (
        "status unproven",
        "claimed epsilon 1, delta 0.01",
        "exact none",
        "[holds] rewards bounded",
        "[fails] a rather long",
        "noise std bias 11.3 covariance 11.3",
        "caveats first caveat",
        "Also",
        "unit item",
        "exact epsilon 0.9877, delta 0.01",
        "source zhou-chowdhury-2024, Theorem 5.1",
    ):
        assert message in flat
    assert flat.count("a caveat") == 30
    assert text.endswith("\n")
    assert "no privacy" in as_text(no_privacy("huang-2023"))


def test_numbers_are_rounded_to_the_safe_side() -> None:
    assert rounded_up(0.1) == "0.1"
    assert rounded_up(1.0) == "1"
    assert rounded_up(0.98761) == "0.9877"
    assert rounded_up(11.8701) == "11.88"
    assert rounded_up(1e-5) == "1e-05"
    assert rounded_up(0.0) == "0"
