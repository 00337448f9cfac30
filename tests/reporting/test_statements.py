"""Statements about a figure: verdicts against differences computed by hand, and bad tables."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from fastfed import experiments
from fastfed._validate import InputError
from fastfed.cli import cli
from fastfed.reporting.claims import TAGS, beyond, judge
from fastfed.reporting.figure import check_figure
from fastfed.reporting.table import difference_texts, two_verdicts
from fastfed.results.results import CurveResult, Results
from fastfed.simulation.experiment import expand


def curve(
    label: str, finals: list[float], replicates: tuple[int, ...] | None = None, silos: int = 2
) -> Any:
    """Return a curve with these final regrets."""
    return CurveResult(
        label=label,
        algorithm="fedlinucb",
        protocol="none",
        silos=silos,
        dimension=1,
        horizon=10,
        rounds=np.array([5, 10]),
        group_regret=np.array([[0.0, f] for f in finals]),
        replicates=tuple(range(len(finals))) if replicates is None else replicates,
        synchronisation_counts=np.array([[0, 1]] * len(finals)),
        bits_up_counts=np.array([[0.0, 8.0]] * len(finals)),
        bits_down_counts=np.array([[0.0, 8.0]] * len(finals)),
        certificate={},
        events={},
    )


def verdict(statement: dict[str, Any], *curves: Any, **axis: str) -> str:
    """Return the verdict on a statement about curves."""
    figure = {"statement": [{"says": "so it is", **statement}], **axis}
    (judged,) = judge(Results("x", 10, 2, curves, figure))
    return judged.verdict


# Differences A - B are 1.5, 2, 2.5: mean 2, standard error 0.5 / sqrt 3 = 0.2887. The mean is
# beyond 4.527 standard errors, Student's limit for three replicates.
A = curve("A", [11.5, 22.0, 32.5])
B = curve("B", [10.0, 20.0, 30.0])
# Differences B - C are -1, 0, 4: mean 1, standard error sqrt(7 / 3), so within the limit.
C = curve("C", [11.0, 20.0, 26.0])


def test_differences_are_paired() -> None:
    results = Results(
        "x", 10, 2, (A, B, C), {"statement": [{"says": "s", "below": ["B", "A", "C"]}]}
    )
    (judged,) = judge(results)
    first, second = judged.differences
    assert (first.first, first.second, first.mean) == ("B", "A", -2.0)
    assert first.stderr == pytest.approx(0.5 / math.sqrt(3.0))
    assert (second.first, second.second) == ("A", "C")
    assert second.mean == pytest.approx((0.5 + 2 + 6.5) / 3)
    # Unpaired differences would decide nothing: the curves themselves vary by ten.
    assert A.stderr[-1] > 6.0


def test_below() -> None:
    assert verdict({"below": ["B", "A"]}, A, B) == "holds"
    assert verdict({"below": ["A", "B"]}, A, B) == "fails"
    assert verdict({"below": ["C", "B"]}, B, C) == "undecided"
    assert verdict({"below": ["B", "C"]}, B, C) == "undecided"
    # One pair that fails decides; otherwise one undecided pair leaves the claim undecided.
    assert verdict({"below": ["A", "B", "C"]}, A, B, C) == "fails"
    assert verdict({"below": ["C", "B", "A"]}, A, B, C) == "undecided"


def test_exactly_two_standard_errors_decide_nothing() -> None:
    # Differences of -1 and -3: mean -2, standard error 1.
    one, other = curve("one", [1.0, 1.0]), curve("other", [2.0, 4.0])
    assert verdict({"below": ["one", "other"]}, one, other) == "undecided"
    assert verdict({"below": ["other", "one"]}, one, other) == "undecided"


def test_few_replicates_have_students_limit() -> None:
    """Compare with closed forms of Student's quantile for 1 and 2 degrees of freedom."""
    p = 0.5 * (1.0 + math.erf(2.0 / math.sqrt(2.0)))
    assert beyond(2) == pytest.approx(math.tan(math.pi * (p - 0.5)))
    assert beyond(3) == pytest.approx((2.0 * p - 1.0) / math.sqrt(2.0 * p * (1.0 - p)))
    assert math.isnan(beyond(1)) and beyond(25) == pytest.approx(2.11, abs=0.01)
    assert beyond(10**7) == pytest.approx(2.0, abs=1e-5)


#: Curves of regret 2 x^2 at x = 1, 2, 3, times 1, 1.5 and 2 in the three replicates.
SQUARE = [curve(f"x = {x}", [2.0 * x * x * k for k in (1.0, 1.5, 2.0)]) for x in (1, 2, 3)]


def test_an_exponent_is_fitted_in_each_replicate() -> None:
    power = {"power": [c.label for c in SQUARE], "of": [1, 2, 3]}
    for exponent, expected in [([1.5, 2.5], "holds"), ([2.1, 3], "fails"), ([0, 1.9], "fails")]:
        assert verdict({**power, "exponent": exponent}, *SQUARE) == expected
    noisy = [*SQUARE[:2], curve("x = 3", [18.0, 9.0, 90.0])]
    assert verdict({**power, "exponent": [2.0, 2.1]}, *noisy) == "undecided"
    assert verdict({**power, "exponent": [1.5, 2.5]}, *SQUARE[:2]) == "undecided"  # one is missing
    statement = {"says": "s", **power, "exponent": [1.5, 2.5]}
    (claim,) = judge(Results("x", 10, 2, tuple(SQUARE), {"statement": [statement]}))
    (slope,) = claim.differences
    assert slope.mean == pytest.approx(2.0) and slope.stderr == pytest.approx(0.0, abs=1e-12)
    assert difference_texts(claim) == ["exponent: 2.0000 ± 0, wanted: 1.5 to 2.5"]


def test_groups_are_ordered_by_their_spread() -> None:
    """Compute the largest over the smallest regret by hand: 2, 2 and 2 against 4, 3 and 5."""
    tight = [curve("t1", [1.0, 2.0, 3.0]), curve("t2", [2.0, 4.0, 6.0])]
    loose = [curve("l1", [4.0, 3.0, 5.0]), curve("l2", [1.0, 1.0, 1.0])]
    groups = [["t1", "t2"], ["l1", "l2"]]
    assert verdict({"spread": groups}, *tight, *loose) == "holds"
    assert verdict({"spread": groups[::-1]}, *tight, *loose) == "fails"
    assert verdict({"spread": [["t1", "t2"], ["t2", "t1"]]}, *tight) == "undecided"
    table = {"statement": [{"says": "s", "spread": groups}]}
    (claim,) = judge(Results("x", 10, 2, (*tight, *loose), table))
    (difference,) = claim.differences
    assert difference.mean == pytest.approx(math.log(8.0 / 60.0) / 3.0)
    assert (difference.first_regret, difference.second_regret) == (
        pytest.approx(2.0),
        pytest.approx(60.0 ** (1.0 / 3.0)),
    )
    assert difference_texts(claim)[0].endswith("(2 x against 3.91 x)")
    assert (difference.first, difference.second) == ("t1", "l1")


def test_groups_are_named_by_the_common_part_of_their_labels() -> None:
    """Check also that groups keep their order in a store, which sorts keys."""
    labels = [[f"F, gap = {g}, epsilon = {e}" for e in (1, 2)] for g in ("b", "a")]
    curves = [curve(x, [i + 1.0, i + 2.0]) for i, x in enumerate(labels[0] + labels[1])]
    table = {"statement": [{"says": "s", "spread": labels}]}
    figure = msgspec.json.decode(msgspec.json.encode(table, order="sorted"))
    (claim,) = judge(Results("x", 10, 2, tuple(curves), figure))
    assert (claim.differences[0].first, claim.differences[0].second) == ("F, gap = b", "F, gap = a")


def test_a_paper_s_claim_has_two_verdicts() -> None:
    below = {"below": ["B", "A"], "tag": "paper"}
    with_privacy = judged_with_certificate(below, certificate())
    assert (with_privacy.picture, with_privacy.guarantee, with_privacy.verdict) == (
        "holds",
        "holds",
        "holds",
    )
    without_privacy = judged_with_certificate(below, certificate(exact=(1.5, 1e-5)))
    assert (without_privacy.picture, without_privacy.guarantee, without_privacy.verdict) == (
        "holds",
        "fails",
        "unproven",
    )
    assert two_verdicts(without_privacy) == "the plot is reproduced, the guarantee does not hold"
    # The verdict on the guarantee depends only on certificates, not on the plot.
    reversed_order = judged_with_certificate({**below, "below": ["A", "B"]}, certificate())
    assert (reversed_order.picture, reversed_order.guarantee) == ("fails", "holds")
    without_claim = judged_with_certificate(below, certificate("none", None, None))
    assert (without_claim.picture, without_claim.guarantee) == ("holds", "none claimed")
    assert two_verdicts(judged_with_certificate({"below": ["B", "A"]}, certificate())) == ""
    stored = without_privacy.to_builtins()
    assert (stored["tag"], stored["picture"], stored["guarantee"]) == ("paper", "holds", "fails")


def test_nothing_is_judged_in_fewer_rounds_than_the_figure_has() -> None:
    """Check also an experiment that --set has changed."""
    statement = {"below": ["B", "A"]}
    assert judged_with_certificate(statement, certificate(), judged_from=10).verdict == "holds"
    short = judged_with_certificate(statement, certificate(), judged_from=100_000, size="all")
    assert (short.verdict, short.picture, short.order) == ("not judged", "not judged", "holds")
    assert short.reason == "judged only with at least 100 000 rounds, as in the figure"
    other = judged_with_certificate(statement, certificate(), changed=["horizon=5"])
    assert other.verdict == "not judged" and "--set horizon=5" in other.reason


def test_equal_curves_are_near_and_have_no_order() -> None:
    same = curve("same", [10.0, 20.0, 30.0])
    assert verdict({"below": ["B", "same"]}, B, same) == "undecided"
    assert verdict({"near": ["B", "same"], "within": 1e-12}, B, same) == "holds"


def test_near() -> None:
    # |2| and 4.527 standard errors, 1.3067, against a fraction of B's mean of 20.
    for within, expected in [(0.166, "holds"), (0.165, "undecided"), (0.035, "undecided"),
                             (0.034, "fails")]:  # fmt: skip
        assert verdict({"near": ["A", "B"], "within": within}, A, B) == expected
    # The fraction is of the second curve's mean; A's mean is 22.
    assert verdict({"near": ["B", "A"], "within": 0.157}, A, B) == "holds"


def test_one_replicate_or_a_missing_curve_decides_nothing() -> None:
    one, other = curve("one", [1.0]), curve("other", [100.0])
    assert verdict({"below": ["one", "other"]}, one, other) == "undecided"
    assert verdict({"near": ["one", "other"], "within": 9.0}, one, other) == "undecided"
    assert verdict({"below": ["B", "A", "absent"]}, A, B) == "undecided"
    apart = curve("apart", [1.0, 2.0], replicates=(7, 8))
    assert verdict({"below": ["B", "apart"]}, B, apart) == "undecided"
    assert verdict({"near": ["B", "apart"], "within": 1.0}, B, apart) == "undecided"


def test_only_shared_replicates_count() -> None:
    few = curve("few", [10.5, 21.0], replicates=(1, 2))  # against B's 20 and 30
    assert verdict({"below": ["few", "B"]}, few, B) == "holds"


# Ten silos: together they have more regret than FEW's two, but each has less: 4, 5, 6 against 10.
MANY = curve("many", [40.0, 50.0, 60.0], silos=10)
FEW = curve("few", [20.0, 20.0, 20.0])


def test_per_silo_divides_each_curve_by_its_own_silos() -> None:
    below = {"below": ["many", "few"]}
    assert verdict(below, MANY, FEW) == "fails"
    assert verdict(below, MANY, FEW, y="cumulative") == "fails"
    assert verdict(below, MANY, FEW, y="time-average") == "fails"
    # -6, -5, -4: mean -5, standard error 1 / sqrt 3 = 0.577.
    assert verdict(below, MANY, FEW, y="per-silo") == "holds"
    figure = {"statement": [{"says": "s", **below}], "y": "per-silo"}
    results = Results("x", 10, 2, (MANY, FEW), figure)
    (difference,) = judge(results)[0].differences
    assert difference.mean == pytest.approx(-5.0)
    assert difference.stderr == pytest.approx(1.0 / math.sqrt(3.0))
    assert results.paired_difference("many", "few", per_silo=True) == (
        difference.mean,
        difference.stderr,
    )
    # The default in Python is group regret, whatever the figure draws: 20, 30 and 40.
    assert results.paired_difference("many", "few") == pytest.approx((30.0, 10.0 / math.sqrt(3.0)))


def test_differences_pair_replicates_by_their_number() -> None:
    """Use a second curve that lacks a replicate, and has its rows in a different order."""
    first, second = curve("first", [10.0, 20.0, 30.0]), curve("second", [27.0, 9.0], (2, 0))
    results = Results("x", 10, 2, (first, second), {})
    # 10 - 9 and 30 - 27: mean 2, standard error 1.
    assert results.paired_difference("first", "second") == pytest.approx((2.0, 1.0))


def test_near_is_a_fraction_of_the_second_regret_per_silo() -> None:
    # |-5| and 4.527 standard errors, 2.613, against a fraction of few's 10 per silo.
    near = ["many", "few"]
    for within, expected in [(0.77, "holds"), (0.76, "undecided"), (0.24, "undecided"),
                             (0.23, "fails")]:  # fmt: skip
        assert verdict({"near": near, "within": within}, MANY, FEW, y="per-silo") == expected
    assert verdict({"near": near, "within": 0.1}, MANY, FEW) == "fails"


def certificate(
    status: str = "proven",
    claimed: tuple[float, float] | None = (1.0, 1e-5),
    exact: tuple[float, float] | None = (1.0, 1e-5),
    **more: Any,
) -> dict[str, Any]:
    """Return a certificate with this status and these pairs of (epsilon, delta)."""
    pairs = {"claimed": claimed, "exact": exact}
    values = {k: v and dict(zip(("epsilon", "delta"), v, strict=True)) for k, v in pairs.items()}
    return {
        "unit": "user", "relation": "replace", "status": status, **values,
        "conditions": [], "caveats": [], "also": [], **more,
    }  # fmt: skip


def judged_with_certificate(
    statement: dict[str, Any], stored: dict[str, Any], **figure: Any
) -> Any:
    """Return the judged statement about A and B, if A's certificate is ``stored``."""
    claims = replace(A, certificate=stored)
    table = {"statement": [{"says": "so it is", **statement}], **figure}
    (judged,) = judge(Results("x", 10, 2, (claims, B), table))
    return judged


def test_an_order_of_curves_without_the_privacy_they_claim_is_unproven() -> None:
    below, wrong = {"below": ["B", "A"]}, {"below": ["A", "B"]}
    for kept in (
        certificate(),
        certificate(exact=(0.7, 1e-5)),
        certificate(exact=(1.0 + 1e-9, 1e-5)),
        certificate("none", None, None, caveats=["no privacy"]),
    ):
        judged = judged_with_certificate(below, kept)
        assert (judged.verdict, judged.order, judged.reason) == ("holds", "holds", "")
    broken = {"text": "silos are lazy", "holds": False}
    for lost, words in (
        (certificate(exact=(1.5, 1e-5)), "A claims (1, 1e-05) and has (1.5, 1e-05)"),
        (certificate(exact=(1.0, 1e-4)), "A claims (1, 1e-05) and has"),
        (
            certificate("unproven", exact=None, conditions=[broken]),
            "A claims (1, 1e-05), which is unproven; condition that fails: silos are lazy",
        ),
        (
            certificate("none", exact=None, caveats=["raw data decide"]),
            "A claims (1, 1e-05), and no epsilon holds; raw data decide",
        ),
    ):
        judged = judged_with_certificate(below, lost)
        assert (judged.verdict, judged.order) == ("unproven", "holds")
        assert judged.why.startswith(words)
        assert (judged.reason, judged.unexpected) == (judged.why, False)
        other = judged_with_certificate({**below, "why": {"fails": "Noise."}}, lost)
        assert other.reason == f"not as expected (fails); {other.why}" and other.unexpected
        # A claim that fails or is undecided does not depend on what is proven.
        assert judged_with_certificate(wrong, lost).verdict == "fails"
        assert (
            judged_with_certificate({"near": ["A", "B"], "within": 0.1}, lost).verdict
            == "undecided"
        )
        assert (
            judged_with_certificate({"near": ["A", "B"], "within": 0.166}, lost).verdict
            == "unproven"
        )


def test_the_stated_reason_is_shown_only_for_an_expected_verdict() -> None:
    below = {"below": ["B", "A"], "why": {"fails": "Noise.", "undecided": "Too short."}}
    wrong = {**below, "below": ["A", "B"]}
    judged = judged_with_certificate(wrong, certificate())
    assert (judged.verdict, judged.reason, judged.unexpected) == ("fails", "Noise.", False)
    judged = judged_with_certificate(below, certificate())
    assert (judged.verdict, judged.unexpected) == ("holds", True)
    assert judged.reason == "not as expected (fails or undecided)"
    # A quick run is never judged, whatever verdict is expected.
    judged = judged_with_certificate(wrong, certificate(), size="quick")
    assert (judged.verdict, judged.order, judged.unexpected) == ("not judged", "fails", False)
    assert "--quick" in judged.reason
    for size in ("all", "full"):
        assert judged_with_certificate(wrong, certificate(), size=size).verdict == "fails"


@pytest.mark.parametrize("y", ["cumulative", "time-average", "per-silo"])
def test_curves_of_one_size_are_judged_alike_on_every_axis(y: str) -> None:
    assert verdict({"below": ["B", "A"]}, A, B, y=y) == "holds"
    assert verdict({"below": ["A", "B"]}, A, B, y=y) == "fails"
    assert verdict({"below": ["C", "B"]}, B, C, y=y) == "undecided"
    for within, expected in [(0.166, "holds"), (0.165, "undecided"), (0.034, "fails")]:
        assert verdict({"near": ["A", "B"], "within": within}, A, B, y=y) == expected


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("x", "list of tables"),
        ({"says": "s", "below": ["A", "B"]}, "list of tables"),
        ([3], "tables, got 3"),
        ([{"below": ["A", "B"]}], "says"),
        ([{"says": "", "below": ["A", "B"]}], "says"),
        ([{"says": "s"}], "one of below, near, power"),
        (
            [{"says": "s", "below": ["A", "B"], "near": ["A", "B"]}],
            "one of below, near, power and spread",
        ),
        ([{"says": "s", "near": ["A", "B"]}], "within"),
        ([{"says": "s", "below": ["A", "B"], "within": 0.1}], "within"),
        ([{"says": "s", "near": ["A", "B"], "within": 0}], "within must be > 0"),
        ([{"says": "s", "near": ["A", "B", "C"], "within": 1}], "two labels"),
        ([{"says": "s", "below": ["A"]}], "two labels or more"),
        ([{"says": "s", "below": ["A", "A"]}], "two labels or more"),
        ([{"says": "s", "below": ["A", 1]}], "two labels or more"),
        ([{"says": "s", "bellow": ["A", "B"]}], 'did you mean "below"'),
        ([{"says": "s", "below": ["A", "B"], "tag": "papers"}], 'did you mean "paper"'),
        ([{"says": "s", "below": ["A", "B"], "of": [1, 2]}], "belong together"),
        ([{"says": "s", "power": ["A", "B"], "of": [1, 2]}], "power, of and exponent belong"),
        (
            [{"says": "s", "power": ["A", "B"], "of": [1], "exponent": [1, 2]}],
            "of must be a number for each curve, got [1]",
        ),
        (
            [{"says": "s", "power": ["A", "B"], "of": [1, 2], "exponent": [2, 1]}],
            "exponent must be from, to, got [2, 1]",
        ),
        ([{"says": "s", "spread": [["A", "B"]]}], "spread must be two lists of labels or more"),
        (
            [{"says": "s", "spread": [["A", "B"], ["A", "D"]]}],
            'unknown curve "D" in figure.statement.spread',
        ),
        ([{"says": "s", "below": ["A", "B"], "why": "so"}], "why must be a table"),
        ([{"says": "s", "below": ["A", "B"], "why": {"fail": "x"}}], 'did you mean "fails"'),
        ([{"says": "s", "below": ["A", "B"], "why": {"fails": " "}}], "why.fails must be a"),
        (
            [{"says": "s", "below": ["A", "LDP, epsilon = 1"]}],
            'unknown curve "LDP, epsilon = 1" in figure.statement.below; '
            'did you mean "LDP, epsilon = 1.0"',
        ),
    ],
)
def test_bad_tables(statement: Any, words: str) -> None:
    with pytest.raises(InputError) as error:
        check_figure({"statement": statement}, ["A", "B", "C", "LDP, epsilon = 1.0"])
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        ({"full": 3}, "figure.full must be a table, got 3"),
        ({"quick": {"horizon": 0}}, "figure.quick.horizon must be an integer >= 1, got 0"),
        ({"all": {"replicate": 3}}, 'did you mean "replicates"'),
        ({"all": {"silos": 3}}, 'unknown key "silos" in figure.all'),
        ({"size": "small"}, "figure.size must be one of"),
        ({"long": 3}, "figure.long must be a text"),
    ],
)
def test_bad_sizes(figure: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        check_figure(figure)
    assert words in str(error.value)


@pytest.mark.parametrize("name", experiments.figure_ids())
def test_statements_of_every_figure_are_about_its_curves(name: str) -> None:
    """Check also that no claim expects less regret with a smaller epsilon."""
    spec = experiments.figure(name).spec
    labels = [c["label"] for table in spec["curve"] for c in expand(table)]
    check_figure(spec["figure"], labels)
    # A single curve cannot be compared.
    assert spec["figure"].get("statement") or len(labels) == 1
    for statement in spec["figure"].get("statement", ()):
        assert statement.get("tag") in TAGS
        if statement["tag"] == "paper":  # of a printed figure, run as printed
            assert not name.endswith(("-exact", "-column"))
            assert spec["figure"]["paper"] not in ("fastfed", "huang-2023", "gao-2024")
        below = statement.get("below", ())
        private = [v for v in below if v.startswith("LDP, ") and " = " in v and "bonus" not in v]
        values = [float(v.split("= ")[-1]) for v in private]
        assert values == sorted(values, reverse=True)


SPEC = """
name = "small"
horizon = 80
silos = 6
replicates = 4
[figure]
says = "In one sentence."
[[figure.statement]]
says = "Privacy costs."
below = ["open", "LDP, epsilon = 2.0"]
[[figure.statement]]
says = "Privacy is free."
near = ["LDP, epsilon = 2.0", "open"]
within = 0.01
[environment]
kind = "sphere"
dimension = 3
actions = 5
[[curve]]
label = "open"
algorithm = "fedlinucb"
batch_size = 10
[[curve]]
label = "LDP"
algorithm = "private-fedlinucb"
epsilon = [0.5, 2.0]
delta = 1e-5
batch_size = 10
"""


def run(*args: object) -> Any:
    """Run the command line in this process."""
    return CliRunner().invoke(cli, [str(a) for a in args])


def test_statements_are_printed_below_the_table_and_in_the_json(tmp_path: Path) -> None:
    spec, out = tmp_path / "s.toml", tmp_path / "out"
    spec.write_text(SPEC)
    assert run("run", spec, "-o", out).exit_code == 0
    listed = json.loads(run("results", out, "--json").stdout)
    costs, free = listed["statements"]
    assert (costs["says"], costs["verdict"]) == ("Privacy costs.", "holds")
    assert (free["says"], free["verdict"]) == ("Privacy is free.", "fails")
    (difference,) = costs["differences"]
    means = {c["label"]: c["group_regret"]["mean"] for c in listed["curves"]}
    assert difference["first"] == "open" and difference["second"] == "LDP, epsilon = 2.0"
    assert difference["mean"] == pytest.approx(means["open"] - means["LDP, epsilon = 2.0"])
    assert difference["stderr"] > 0
    text = (out / "table.txt").read_text()
    assert "(4 replicates, 80 rounds)\nholds      Privacy costs.\n" in text
    assert "fails      Privacy is free.\n" in text

    # A quick run is not judged, and its size is printed; one replicate decides nothing.
    quick = run("run", spec, "-o", tmp_path / "quick", "--quick", "--replicates", 1)
    assert "(1 replicate, 10 rounds)\nnot judged Privacy costs." in quick.stdout
    assert "judged only with at least 80 rounds" in quick.stdout
    alone = json.loads(run("results", tmp_path / "quick", "--json").stdout)["statements"][0]
    assert alone["verdict"] == "not judged" and alone["differences"][0]["stderr"] is None


def test_the_table_names_the_regret_on_which_statements_are_judged(tmp_path: Path) -> None:
    spec, out = tmp_path / "s.toml", tmp_path / "out"
    spec.write_text(SPEC.replace("[figure]", '[figure]\ny = "per-silo"'))
    assert run("run", spec, "-o", out).exit_code == 0
    text = (out / "table.txt").read_text()
    assert "judged on paired differences in regret per silo beyond two standard errors" in text
    listed = json.loads(run("results", out, "--json").stdout)
    means = {c["label"]: c["per_silo_regret"]["mean"] for c in listed["curves"]}
    (difference,) = listed["statements"][0]["differences"]
    assert difference["first_regret"] == pytest.approx(means["open"])
    assert difference["second_regret"] == pytest.approx(means["LDP, epsilon = 2.0"])
    assert difference["mean"] == pytest.approx(means["open"] - means["LDP, epsilon = 2.0"])


def test_a_statement_about_an_unknown_curve_is_refused_before_the_run(tmp_path: Path) -> None:
    spec, out = tmp_path / "s.toml", tmp_path / "out"
    spec.write_text(SPEC.replace('["open", "LDP, epsilon = 2.0"]', '["open", "LDP, epsilon = 2"]'))
    result = run("run", spec, "-o", out)
    assert result.exit_code == 2 and not out.exists()
    assert 'did you mean "LDP, epsilon = 2.0"' in result.stderr


def test_reproduce_prints_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "FOLDER", tmp_path / "figures")
    (tmp_path / "figures").mkdir()
    text = SPEC.replace("[figure]", '[figure]\nid = "free"\npaper = "p"\ntitle = "t"')
    (tmp_path / "figures" / "free.toml").write_text(text)
    out = run("reproduce", "free", "-o", tmp_path / "out").stdout
    assert out.endswith(
        "p: Privacy costs. (holds)\np: Privacy is free. (fails)\n"
        "p: In one sentence. (a summary; not judged separately)\n"
    )
    (tmp_path / "figures" / "free.toml").write_text(text.replace('"open", "LDP', '"opne", "LDP'))
    refused = run("reproduce", "free", "-o", tmp_path / "other")
    assert refused.exit_code == 2 and 'did you mean "open"' in refused.stderr
    assert not (tmp_path / "other").exists()
