"""Privacy certificates: the claim, the guarantee that holds, its conditions and its caveats.

A certificate cannot state more than is proven. If no proof applies, it has no number, and an exact
value requires that all conditions of its status hold.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, NamedTuple

import msgspec

from fastfed._display import Displayed, Located
from fastfed._validate import InputError, choice, number, show
from fastfed.privacy.sensitivity import RELATIONS, UNITS, Budget

#: Caveat of simulations, whose noise comes from a seeded generator.
SIMULATION_CAVEAT = (
    "simulation: the noise comes from a seeded generator, so whoever knows the seed can remove it; "
    "this covers one replicate of one curve, since curves share their noise and replicates their "
    "records"
)
#: Caveats of noise that a simulation draws and adds in float64. Deployments release exactly.
FLOATS_CAVEAT = "the exact value is for real-valued Gaussian noise; released values are float64"
REALS_CAVEAT = (
    "the exact value is for real numbers; released values are float64, and their last bits may "
    "reveal more (Mironov 2012)"
)
CHANCES_CAVEAT = (
    "the exact value is for real-valued Laplace noise and exact probabilities; draws have 53 "
    "random bits, and released values are float64"
)
REAL_CHANCES_CAVEAT = (
    "the exact value is for exact probabilities; decisions use 53 random bits and float64 "
    "probabilities"
)
#: The caveat that replaces `FLOATS_CAVEAT`, `REALS_CAVEAT` and `CHANCES_CAVEAT` in the certificate
#: of a deployment.
EXACT_NOISE_CAVEAT = (
    "released values are exact: the real sum of fixed-point records and exactly sampled noise, "
    "rounded to a grid of at most 2^-14 noise standard deviations; random bits come from the "
    "operating system (docs/exact.md)"
)

#: The caveat that replaces `REAL_CHANCES_CAVEAT` in a deployment, where random decisions have no
#: noise.
EXACT_DECISIONS_CAVEAT = (
    "decisions are exact: losses are in fixed point, and each decision uses as many random bits "
    "of the operating system as it needs (docs/exact.md)"
)

#: Caveat of noise bits and randomized roundings in floating point.
NOISE_BITS_CAVEAT = (
    "the exact value is for exact draws; randomized rounding uses 32-bit words, and the sampler of "
    "noise bits uses 53-bit numbers"
)
#: Caveats of a secure sum: the first in a simulation, the second in a deployment.
SECURE_SUM_CAVEAT = (
    "the exact value is for binomial noise on fixed-point sums; a simulation draws normal noise of "
    "the same variance, and adds float64 sums unless it makes every message"
)
EXACT_SECURE_SUM_CAVEAT = (
    "released values are exact: integer sums, modulo 2^64, of fixed-point records and exactly "
    "sampled binomial noise; random bits come from the operating system (docs/secure-sum.md)"
)

#: Part of the caveat on a delta that allows the full disclosure of some users. Tables search
#: caveats for this text.
LARGE_DELTA = "is not small against 1 /"

#: The smallest delta of a deployment. A smaller delta would depend on how good the operating
#: system's 256-bit generator is.
MIN_DELTA = 2.0**-100

STATUSES = ("proven", "conditional", "unproven", "none")
WIDTH = 88


class Condition(msgspec.Struct, frozen=True):
    """A condition of a guarantee.

    Parameters
    ----------
    text : str
        The condition, as a sentence.
    holds : bool
        True if it holds in this run.
    """

    text: str
    holds: bool


class ClaimCondition(Condition, frozen=True):
    """The condition that the exact epsilon is at most the claimed epsilon.

    Only this condition may fail in a "proven" certificate, because the exact value holds whatever
    was claimed.

    Parameters
    ----------
    text : str
        The condition, as a sentence that states the exact epsilon and the claim.
    holds : bool
        True if the exact epsilon is at most the claimed one.
    """


def epsilon_claim(
    budget: Budget, epsilon: float, what: str, change: str = "", how: str = "proven", note: str = ""
) -> ClaimCondition:
    """Return the condition that an epsilon is at most the epsilon of its budget.

    Parameters
    ----------
    budget : Budget
        The claimed epsilon, and the delta of the account.
    epsilon : float
        The epsilon of what is released.
    what : str
        What is released, for the condition's text.
    change : str
        How neighbouring datasets differ, for the text. An empty string leaves it out.
    how : {"exact", "proven"}
        Whether the epsilon is exact or an upper bound.
    note : str
        Appended to the text in brackets, if not empty.
    """
    text = f"the {how} epsilon of {what}, {rounded_up(epsilon)} at delta {budget.delta:g}"
    text += f"{' under ' if change else ''}{change}, is at most {budget.epsilon:g}"
    return ClaimCondition(f"{text} ({note})" if note else text, epsilon <= budget.epsilon)


def noise_claim(
    budget: Budget, epsilon: float, how: str = "exact", note: str = "", unproven: str = ""
) -> ClaimCondition:
    """Return the condition that the epsilon of a mechanism's noise is at most its budget's.

    Parameters
    ----------
    budget : Budget
        The claimed epsilon. The noise is accounted for at the budget's delta and relation.
    epsilon : float
        The epsilon of the noise; infinite if no finite epsilon is proven.
    how : {"exact", "proven"}
        Whether the epsilon is exact or an upper bound.
    note : str
        Appended to the text in brackets, if not empty.
    unproven : str
        The condition's text if no finite epsilon is proven. Empty for a default text.
    """
    if math.isfinite(epsilon):
        return epsilon_claim(budget, epsilon, "this noise", budget.relation, how, note)
    text = unproven or (
        f"an epsilon of at most {budget.epsilon:g} is proven for this noise (none is proven)"
    )
    return ClaimCondition(f"{text} ({note})" if note else text, False)


class Guarantee(Located, msgspec.Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """The pair (epsilon, delta) of a claim or of an exact account.

    Parameters
    ----------
    epsilon : float
        >= 0.
    delta : float
        In [0, 1).
    mu : float, optional
        The parameter of Gaussian differential privacy (GDP; Dong, Roth and Su 2022), if all that is
        released about one unit is a Gaussian mechanism: its L2 sensitivity divided by the standard
        deviation of its noise. The guarantee then holds at every delta; see `epsilon_at`.

    Raises
    ------
    InputError
        For values out of range.
    """

    epsilon: float
    delta: float
    mu: float | None = None

    def __post_init__(self) -> None:
        """Check the numbers and convert them to float."""
        epsilon = number("epsilon", self.epsilon, at_least=0)
        delta = number("delta", self.delta, at_least=0, below=1)
        mu = None if self.mu is None else number("mu", self.mu, at_least=0)
        msgspec.structs.force_setattr(self, "epsilon", epsilon)
        msgspec.structs.force_setattr(self, "delta", delta)
        msgspec.structs.force_setattr(self, "mu", mu)

    def where_is(self, name: str) -> str:
        """Return "", because a guarantee has no inner object whose attributes could be meant."""
        return ""

    @property
    def rho(self) -> float | None:
        """The parameter of zero-concentrated DP, mu^2 / 2; None without a mu."""
        return None if self.mu is None else self.mu**2 / 2.0

    def epsilon_at(self, delta: float) -> float:
        """Return the epsilon of the same noise at a different delta.

        Parameters
        ----------
        delta : float
            In [0, 1); above 0 if the guarantee has a mu.

        Returns
        -------
        float
            The epsilon. Without a mu it is the guarantee's epsilon, which also holds at every
            larger delta.

        Raises
        ------
        InputError
            If delta is out of range, or below the guarantee's delta in a guarantee without a mu.
        """
        if self.mu is not None:
            from fastfed.privacy.accounting.gdp import gaussian_epsilon

            delta = number("delta", delta, above=0, below=1)
            return 0.0 if self.mu == 0.0 else gaussian_epsilon(self.mu, delta)
        delta = number("delta", delta, at_least=0, below=1)
        if delta < self.delta:
            raise InputError(
                f"delta must be at least {self.delta:g}, got {delta:g}: the guarantee has no mu, "
                "so nothing is known below its own delta"
            )
        return self.epsilon

    def delta_at(self, epsilon: float) -> float:
        """Return the delta of the same noise at a different epsilon.

        Parameters
        ----------
        epsilon : float
            At least 0.

        Returns
        -------
        float
            The delta. Without a mu it is the guarantee's delta, which also holds at every larger
            epsilon.

        Raises
        ------
        InputError
            If epsilon is negative, or below the guarantee's epsilon in a guarantee without a mu.
        """
        epsilon = number("epsilon", epsilon, at_least=0)
        if self.mu is not None:
            from fastfed.privacy.accounting.gdp import gaussian_delta

            return 0.0 if self.mu == 0.0 else gaussian_delta(epsilon, self.mu)
        if epsilon < self.epsilon:
            raise InputError(
                f"epsilon must be at least {self.epsilon:g}, got {epsilon:g}: the guarantee has no "
                "mu, so nothing is known below its own epsilon"
            )
        return self.delta

    def to_dp_event(self) -> Any:
        """Return the guarantee as an event of Google's dp_accounting, for your own accountant.

        Returns
        -------
        dp_accounting.DpEvent
            A ``GaussianDpEvent`` with noise multiplier 1 / mu, or a ``NoOpDpEvent`` if nothing is
            released. For relation "replace", mu already counts both records of a replacement: use
            the event as it is, and do not double it.

        Raises
        ------
        InputError
            If the guarantee has no mu, or dp_accounting is not installed.
        """
        if self.mu is None:
            raise InputError("to_dp_event needs a guarantee with a mu: this noise is not Gaussian")
        try:
            import dp_accounting
        except ImportError:
            raise InputError(
                "to_dp_event needs dp_accounting: pip install 'fastfed[accounting]'"
            ) from None
        if self.mu == 0.0:
            return dp_accounting.NoOpDpEvent()
        return dp_accounting.GaussianDpEvent(1.0 / self.mu)


class Side(NamedTuple):
    """A guarantee of a mechanism under a trust model other than that of its main claim.

    ``model`` says who is trusted, ``source`` names the proof, and ``epsilon`` holds at the delta of
    the main claim.
    """

    model: str
    source: str
    epsilon: float
    conditions: tuple[Condition, ...] = ()


class SideCertificate(Displayed, Located, msgspec.Struct, frozen=True, kw_only=True):
    """A guarantee with its unit, relation and trust model: one entry of `Certificate.also`.

    Parameters
    ----------
    unit : {"user", "item", "silo", "reward"}
        The protected unit.
    relation : {"replace", "zero-out"}
        Neighbouring datasets.
    model : str
        Who is trusted, in a few words ("silo-level LDP", "shuffle", "central", ...).
    claimed : Guarantee or None
        The requested budget, or the budget that the source states.
    exact : Guarantee or None
        The guarantee that holds ("proven") or would hold ("conditional"); None for other statuses.
    status : {"proven", "conditional", "unproven", "none"}
        "proven": the exact value holds for this run; compare it with the claim. "conditional": the
        exact value would hold, but this run breaks a condition or cannot establish it.
        "unproven": there may be privacy, but no proof covers this run. "none": no finite epsilon
        holds, or nothing is protected.
    noise_std : dict of str to float
        Standard deviation of the noise in each released sum, by the sum's name, in its units.
    conditions : sequence of Condition
        The conditions of the guarantee.
    caveats : sequence of str
        The limits of the guarantee.
    source : str
        Authors and year of a paper, with its theorem or algorithm.

    Raises
    ------
    InputError
        If status and exact value do not fit: "proven" and "conditional" need an exact value,
        "unproven" and "none" must have none. If a condition fails and the status is "proven", or no
        condition fails and the status is "conditional", not counting a ClaimCondition. If the exact
        value is above the claim, but no failed ClaimCondition says so.
    """

    unit: str
    relation: str
    model: str
    claimed: Guarantee | None
    exact: Guarantee | None
    status: str
    noise_std: dict[str, float] = msgspec.field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    caveats: tuple[str, ...] = ()
    source: str

    def where_is(self, name: str) -> str:
        """Return the expression to write instead of ``certificate.<name>``, for error messages.

        The expression reads the attribute from one of the certificate's guarantees. Return "" if
        ``name`` is no attribute of `Guarantee`.
        """
        if name == "to_dp_event":
            return "certificate.exact.to_dp_event()"
        if name not in (*Guarantee.__struct_fields__, "rho"):
            return ""
        return f"certificate.exact.{name} (what holds) or certificate.claimed.{name}"

    def __post_init__(self) -> None:
        """Check every field, and that status, exact value and conditions agree."""
        # Most certificates come from `account` with valid values: skip the call of `choice` then.
        for name, options in (("unit", UNITS), ("relation", RELATIONS), ("status", STATUSES)):
            if getattr(self, name) not in options:
                choice(name, getattr(self, name), options)
        for name in ("model", "source"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise InputError(f"{name} must be a non-empty text, got {show(value)}")
        stds = dict(self.noise_std)
        if not all(type(std) is float and 0.0 <= std < math.inf for std in stds.values()):
            stds = {k: number(f"noise_std[{k}]", v, at_least=0) for k, v in stds.items()}
        msgspec.structs.force_setattr(self, "noise_std", stds)
        # Lists are accepted, but a frozen value must be hashable, so they become tuples.
        msgspec.structs.force_setattr(self, "conditions", tuple(self.conditions))
        msgspec.structs.force_setattr(self, "caveats", tuple(self.caveats))
        self._check_consistency()

    def _check_consistency(self) -> None:
        """Raise InputError unless status, exact value, claim and conditions agree."""
        if self.status not in ("proven", "conditional"):
            if self.exact is not None:
                raise InputError(
                    f'exact must be None when status is "{self.status}", got {show(self.exact)}'
                )
            return
        if self.exact is None:
            raise InputError(f'exact must be a Guarantee when status is "{self.status}", got None')
        failed = [c.text for c in self.conditions if not c.holds and type(c) is not ClaimCondition]
        if self.status == "conditional" and not failed:
            raise InputError(
                'a condition must fail when status is "conditional", but all of them hold'
            )
        if self.status == "proven" and failed:
            raise InputError(
                f'every condition must hold when status is "proven", got failed {show(failed[0])}'
            )
        claim, tolerance = self.claimed, 1.0 + 1e-9  # tolerates rounding errors only
        exceeded = claim is not None and (
            self.exact.epsilon > claim.epsilon * tolerance
            or self.exact.delta > claim.delta * tolerance
        )
        claim_failed = any(type(c) is ClaimCondition and not c.holds for c in self.conditions)
        if exceeded and not claim_failed:
            raise InputError(
                f"exact {_show_pair(self.exact)} is above claimed {_show_pair(claim)}: "
                "a failed ClaimCondition must say so"
            )

    def __str__(self) -> str:
        """Return the certificate as plain text, see `as_text`."""
        return as_text(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the text form in IPython terminals."""
        printer.text(str(self))

    def epsilon_at(self, delta: float) -> float:
        """Return the epsilon of ``exact`` at a different delta; see `Guarantee.epsilon_at`.

        Raises
        ------
        InputError
            If there is no exact guarantee, or delta is out of range for `Guarantee.epsilon_at`.
        """
        return self._guarantee("epsilon_at").epsilon_at(delta)

    def delta_at(self, epsilon: float) -> float:
        """Return the delta of ``exact`` at a different epsilon; see `Guarantee.delta_at`.

        Raises
        ------
        InputError
            If there is no exact guarantee, or epsilon is out of range for `Guarantee.delta_at`.
        """
        return self._guarantee("delta_at").delta_at(epsilon)

    def _guarantee(self, name: str) -> Guarantee:
        """Return the guarantee ``exact``. Raise InputError with the reason if there is none.

        ``name`` is the method that needs the guarantee, for the message.
        """
        if self.exact is None:
            reasons = "; ".join(c.text for c in self.conditions if not c.holds)
            raise InputError(
                f'{name} needs a guarantee that holds, but status is "{self.status}" and exact is '
                f"None{f' (condition that fails: {reasons})' if reasons else ''}"
            )
        return self.exact

    def to_builtins(self) -> dict[str, Any]:
        """Return the certificate as plain data.

        Returns
        -------
        dict
            Dicts, lists, strings and numbers, with the keys of the JSON output.
        """
        result: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return result


class Certificate(SideCertificate, frozen=True, kw_only=True):
    """The certificate of a run: the main guarantee, and further guarantees under `also`.

    If ``status`` is "proven", two datasets that differ in one ``unit``, as ``relation`` says, are
    (epsilon, delta)-indistinguishable to everybody whom ``model`` does not trust. The pair
    (epsilon, delta) is ``exact``; compare it with ``claimed``.

    Parameters
    ----------
    unit : {"user", "item", "silo", "reward"}
        The protected unit: one context with all its possible rewards, one realised pair (x, y),
        all data of one silo, or the rewards of one user whose contexts are public.
    relation : {"replace", "zero-out"}
        Neighbouring datasets: one unit's data become any other data, or its contribution becomes
        zero, which is weaker.
    model : str
        Who is trusted, in a few words ("central: the server is trusted, ...").
    claimed : Guarantee or None
        The requested budget, or the budget that the source states.
    exact : Guarantee or None
        The guarantee of the noise in this run; None if no number is known.
    status : {"proven", "conditional", "unproven", "none"}
        "proven": the exact value holds for this run. "conditional": it would hold, but this run
        breaks a condition or cannot establish it. "unproven": there may be privacy, but no proof
        covers this run. "none": no finite epsilon holds, or nothing is protected.
    noise_std : dict of str to float, default {}
        Standard deviation of one draw of noise for each released sum, by the sum's name, in its
        units.
    conditions : sequence of Condition, default ()
        The conditions of the guarantee, each with whether it holds. Stored as a tuple.
    caveats : sequence of str, default ()
        The limits of the guarantee, one sentence each. Stored as a tuple.
    source : str
        Authors and year of a paper, with its theorem or algorithm.
    also : sequence of SideCertificate, default ()
        Further guarantees of the same run, under other trust models or for other units.

    Raises
    ------
    InputError
        In the cases of `SideCertificate`, and for a Certificate under `also`.
    """

    also: tuple[SideCertificate, ...] = ()

    def __post_init__(self) -> None:
        """Check all fields."""
        SideCertificate.__post_init__(self)
        also = tuple(self.also)
        if any(isinstance(entry, Certificate) for entry in also):
            raise InputError("also must hold SideCertificate values, got a Certificate inside one")
        msgspec.structs.force_setattr(self, "also", also)

    @classmethod
    def from_builtins(cls, data: Mapping[str, Any] | str | bytes) -> Certificate:
        """Return the certificate that is described by plain data or JSON.

        Parameters
        ----------
        data : mapping, str or bytes
            The result of `to_builtins`, a certificate in the JSON of ``fastfed privacy`` or
            ``fastfed results``, or ``results[label].certificate``. Version, date and spec digest
            in the data are ignored.

        Returns
        -------
        Certificate
            The certificate. All its fields are checked.

        Raises
        ------
        InputError
            If the data is no certificate.
        """
        try:
            plain = msgspec.json.decode(data) if isinstance(data, (str, bytes)) else data
        except msgspec.MsgspecError as error:
            is_name = isinstance(data, str) and "{" not in data and len(data) < 256
            hint = f": {show(data)} is no JSON; read the file first" if is_name else f" ({error})"
            raise InputError(f"this is no certificate as fastfed writes it{hint}") from None
        if not isinstance(plain, Mapping) or "claimed" not in plain:
            raise InputError(_misplaced(plain))
        try:
            plain = dict(plain)
            also = tuple(SideCertificate(**_fields_of(side)) for side in plain.pop("also", ()))
            return cls(**_fields_of(plain), also=also)
        except (msgspec.MsgspecError, TypeError, ValueError, KeyError) as error:
            raise InputError(f"this is no certificate as fastfed writes it ({error})") from None


def _misplaced(data: object) -> str:
    """Return the error message for data that is no certificate.

    If the data contains certificates, the message says where.
    """
    if isinstance(data, Mapping) and data.get("curves"):
        where = ': take data["curves"][i]["certificate"]'
    elif isinstance(data, Mapping) and "certificate" in data:
        where = ': take data["certificate"]'
    elif isinstance(data, Mapping):
        where = ': it has no "claimed"'
    else:
        where = ": a certificate is a table, or its JSON"
    return f"this is no certificate as fastfed writes it, got {show(data)}{where}"


def _fields_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `SideCertificate` by name, converted from its plain data.

    JSON does not say which condition is a `ClaimCondition`, the only kind that may fail in a
    "proven" guarantee. A `ClaimCondition` is recognised by its text, which contains "is at most"
    and the claimed epsilon.
    """
    type_by_field = {field.name: field.type for field in msgspec.structs.fields(SideCertificate)}
    fields = {
        name: msgspec.convert(data[name], type_by_field[name])
        for name in type_by_field
        if name in data
    }
    for name in ("claimed", "exact"):
        if fields.get(name) is not None:
            _check_mu(name, fields[name])
    claim = fields["claimed"]
    # Without a claim there is no `ClaimCondition`. So compare with a character that no text has.
    comparison = f" is at most {claim.epsilon:g}" if claim is not None else "\0"
    fields["conditions"] = [
        ClaimCondition(c.text, c.holds) if comparison in c.text else c
        for c in fields.get("conditions", ())
    ]
    return fields


def _check_mu(name: str, guarantee: Guarantee) -> None:
    """Raise InputError if a guarantee states a smaller epsilon than its mu gives at its delta.

    ``name`` is the field of the guarantee, for the message.
    """
    if not guarantee.mu:
        return
    # With delta = 0 no finite epsilon holds for Gaussian noise.
    proven = guarantee.epsilon_at(guarantee.delta) if guarantee.delta else math.inf
    # The tolerance covers differences of rounding between versions of fastfed.
    if guarantee.epsilon < proven * (1.0 - 1e-6):
        raise InputError(
            f"{name}.epsilon must be at least {proven:.4g}, "
            f"which its mu = {guarantee.mu:g} gives at delta {guarantee.delta:g}, got "
            f"{guarantee.epsilon:g}: the certificate was changed"
        )


def deployed(certificate: Certificate) -> Certificate:
    """Return the certificate as that of a deployment, whose noise comes from the operating system.

    The caveats of seeded simulations are replaced by those of exact releases. Raises InputError for
    a delta below `MIN_DELTA`, because such a claim would be about the random generator.
    """
    simulation_caveats = (
        SIMULATION_CAVEAT,
        FLOATS_CAVEAT,
        REALS_CAVEAT,
        CHANCES_CAVEAT,
        REAL_CHANCES_CAVEAT,
        SECURE_SUM_CAVEAT,
    )
    caveats = tuple(c for c in certificate.caveats if c not in simulation_caveats)
    if len(caveats) == len(certificate.caveats):
        return certificate
    exact = certificate.exact
    if exact is not None and 0.0 < exact.delta < MIN_DELTA:
        raise InputError(
            f"delta must be at least {MIN_DELTA:.3g} in a deployment, whose random bits are the "
            f"operating system's, got {exact.delta:g}"
        )
    if any(c in certificate.caveats for c in (FLOATS_CAVEAT, REALS_CAVEAT, CHANCES_CAVEAT)):
        caveats += (EXACT_NOISE_CAVEAT,)
    if REAL_CHANCES_CAVEAT in certificate.caveats:
        caveats += (EXACT_DECISIONS_CAVEAT,)
    if SECURE_SUM_CAVEAT in certificate.caveats:
        caveats += (EXACT_SECURE_SUM_CAVEAT,)
    return msgspec.structs.replace(certificate, caveats=caveats)


def no_privacy(
    source: str,
    *,
    unit: str = "user",
    relation: str = "replace",
    model: str = "none",
    caveats: Sequence[str] = (),
) -> Certificate:
    """Return the certificate of a system that protects nothing and claims nothing.

    Parameters
    ----------
    source : str
        Authors and year of the paper that describes the system.
    unit, relation, model : str
        See `SideCertificate`.
    caveats : sequence of str
        Further caveats, after "no privacy".

    Returns
    -------
    Certificate
        A certificate with status "none".
    """
    return Certificate(
        unit=unit,
        relation=relation,
        model=model,
        claimed=None,
        exact=None,
        status="none",
        caveats=("no privacy", *caveats),
        source=source,
    )


def nothing_sent(
    source: str, *, model: str, delta: float = 0.0, caveats: Sequence[str] = ()
) -> Certificate:
    """Return the certificate of a system that sends nothing, for which epsilon = 0 is proven."""
    return Certificate(
        unit="user",
        relation="replace",
        model=model,
        claimed=None,
        exact=Guarantee(0.0, delta),
        status="proven",
        caveats=tuple(caveats),
        source=source,
    )


def rounded_up(value: float) -> str:
    """Return the text of a number with four significant digits, rounded up (for an epsilon)."""
    return _rounded(value, ROUND_CEILING)


def rounded_down(value: float) -> str:
    """Return the text of a number with four significant digits, rounded down (for lower bounds)."""
    return _rounded(value, ROUND_FLOOR)


def _rounded(value: float, rounding: str) -> str:
    """Return the text of a number with four significant digits.

    ``rounding`` is a rounding mode of the module `decimal`.
    """
    # Round the shortest decimal form: 0.1 must stay 0.1, although its double is slightly larger.
    rounded_value = Context(prec=4, rounding=rounding).create_decimal(Decimal(repr(float(value))))
    return f"{float(rounded_value):g}"


def as_text(certificate: SideCertificate | dict[str, Any]) -> str:
    """Return a certificate as plain text of at most 88 columns, for terminals and files.

    Parameters
    ----------
    certificate : SideCertificate or dict
        A certificate, or its plain data as in stores and in JSON.

    Returns
    -------
    str
        Lines that end with a newline.
    """
    data = certificate if isinstance(certificate, dict) else certificate.to_builtins()
    lines = ["Privacy certificate", *_guarantee_lines(data, "  "), *_provenance_lines(data, "  ")]
    for entry in data.get("also", ()):
        lines += ["", "Also", *_guarantee_lines(entry, "  ")]
    return "\n".join(lines) + "\n"


def _provenance_lines(data: dict[str, Any], indent: str) -> list[str]:
    """Return the lines with version, spec digest and date, if the data has them."""
    if "date" not in data:
        return []
    return [
        f"{indent}{'made':<12}by fastfed {data['version']} on {data['date']} (UTC)",
        f"{indent}{'spec':<12}SHA-256 {data['spec_digest']}",
    ]


def _show_pair(guarantee: Guarantee | None) -> str:
    """Return the text of a guarantee's epsilon and delta, both rounded up; "none" for None."""
    if guarantee is None:
        return "none"
    return f"epsilon {rounded_up(guarantee.epsilon)}, delta {rounded_up(guarantee.delta)}"


def _guarantee_lines(data: dict[str, Any], indent: str) -> list[str]:
    """Return the lines of text that show one guarantee, given as plain data.

    Each entry has a label in the first column.
    """
    marks = {True: "[holds] ", False: "[fails] "}
    pairs = {key: data[key] and Guarantee(**data[key]) for key in ("claimed", "exact")}
    labelled_texts: list[tuple[str, list[str]]] = [
        ("status", [data["status"]]),
        ("unit", [data["unit"]]),
        ("relation", [data["relation"]]),
        ("model", [data["model"]]),
        ("claimed", [_show_pair(pairs["claimed"])]),
        ("exact", [_show_pair(pairs["exact"])]),
        ("noise std", [f"{name} {std:.6g}" for name, std in data["noise_std"].items()]),
        ("conditions", [marks[c["holds"]] + c["text"] for c in data["conditions"]]),
        ("caveats", data["caveats"]),
        ("source", [data["source"]]),
    ]
    lines: list[str] = []
    for label, texts in labelled_texts:
        line_start = f"{indent}{label:<12}"
        for text in texts:
            lines += textwrap.wrap(
                text, WIDTH, initial_indent=line_start, subsequent_indent=" " * len(line_start)
            )
            line_start = " " * len(line_start)
    return lines
