"""`fastfed audit`, `fastfed calibrate`, `fastfed privacy` and `fastfed plan`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from fastfed.cli.output import json_option, print_json, print_table, say, set_option, stoppable

if TYPE_CHECKING:
    from fastfed.advice import Advice, Candidate


# ---- `fastfed audit` -----------------------------------------------------------------------------


@click.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--trials", type=int, metavar="N",
    help="Number of runs on each of the two datasets (default: enough for a verdict).",
)  # fmt: skip
@click.option(
    "--seed", type=int, default=1, show_default=True, metavar="N", help="Seed of the runs."
)
@json_option
@stoppable
def audit(name: str, trials: int | None, seed: int, as_json: bool) -> None:
    """Audit a mechanism or a system: attack it, and print a lower bound on its epsilon.

    NAME is a mechanism (gaussian-tree, vector-sum, ...), a system (private-fedlinucb), a planted
    fault (fault-...), or "all". "list" lists all audits, and what each of them attacks. An audit
    runs the implementation on two neighbouring datasets. Its result is a lower bound on the true
    epsilon with 95 % confidence. "caught" means that the bound is above the claim. "pass" means
    that these runs did not refute the claim; this does not prove privacy. If the trials are too few
    to refute any claim, the largest bound that they can give is shown.
    """
    from fastfed.simulation.audit import AUDITS, FAULTY, run_audit

    if name == "list":
        _list_audits(as_json)
        return
    names = list(AUDITS) if name == "all" else [name]
    results = []
    for audit_name in names:
        if len(names) > 1:
            say(audit_name)
        results.append(run_audit(audit_name, trials, seed))
    if as_json:
        as_builtins = [result.to_builtins() for result in results]
        print_json(as_builtins[0] if len(results) == 1 else as_builtins)
        return
    headings = ("audit", "claimed", "lower bound", "trials", "verdict")
    rows = []
    for result in results:
        expected = " (as it must be)" if result.name in FAULTY else ""
        verdict = result.verdict + (expected if result.verdict == "caught" else "")
        if not result.can_refute:
            verdict += f": too few trials, which can show {result.largest_bound:.3g} at most"
        rows.append(
            (
                result.name,
                f"({result.claimed_epsilon:g}, {result.delta:g})",
                f"{result.epsilon_lower_bound:.3f}",
                f"2 x {result.trials}",
                verdict,
            )
        )
    print_table(headings, rows, right=(2, 3))


def _list_audits(as_json: bool) -> None:
    """Print all audits, one line each."""
    import msgspec

    from fastfed.simulation.audit import listed

    audits = listed()
    if as_json:
        print_json([msgspec.to_builtins(entry) for entry in audits])
        return
    rows = [
        (
            entry.name,
            entry.attacks,
            entry.unit,
            entry.relation,
            "planted fault" if entry.planted else "",
        )
        for entry in audits
    ]
    print_table(("audit", "attacks", "unit", "relation", ""), rows)


# ---- `fastfed calibrate` -------------------------------------------------------------------------

#: Mechanisms that take --users and --dimension.
SIZED_MECHANISMS = ("vector-sum", "vector-batches", "secure-sum")
#: Mechanisms of sums that are released again and again, whose noise grows with the releases.
STREAM_MECHANISMS = (
    "gaussian-tree",
    "gaussian-tree-theorem",
    "gaussian-tree-published-code",
    "honaker",
    "toeplitz",
)


@click.command()
@click.argument("mechanism", metavar="MECHANISM")
@click.option("--epsilon", type=float, metavar="E", help="Above 0.  [required]")
@click.option("--delta", type=float, metavar="D",
              help="Between 0 and 1; 0 for laplace and exponential.  [required]")  # fmt: skip
@click.option("--releases", type=int, metavar="K",
              help="Total number of releases; for a single agent, the releases with data of "
              "one user.  [default: 1]")  # fmt: skip
@click.option("--relation", default="replace", show_default=True, metavar="R",
              help="Relation of neighbouring datasets: replace, or zero-out.")  # fmt: skip
@click.option("--users", type=int, metavar="N",
              help="Number of users of all silos in one batch; for secure-sum, number of "
              "silos.")  # fmt: skip
@click.option("--dimension", type=int, metavar="D", help="Dimension of the features.")
@click.option("--sensitivity", type=float, metavar="S",
              help="Largest change of one release between neighbouring datasets (default: for the "
              "statistic of the mechanism).")  # fmt: skip
@json_option
def calibrate(
    mechanism: str,
    epsilon: float | None,
    delta: float | None,
    releases: int | None,
    relation: str,
    users: int | None,
    dimension: int | None,
    sensitivity: float | None,
    as_json: bool,
) -> None:
    """Calibrate the noise of a mechanism for a privacy budget.

    MECHANISM is one of these, or a mechanism of an installed package:

    For federations: gaussian-tree (both streams of a linear bandit through the binary tree),
    gaussian-tree-theorem or gaussian-tree-published-code (the same with the constants of the paper
    or of its code), honaker or toeplitz (the same streams with less noise), vector-sum (shuffled
    bits; needs --users and --dimension), secure-sum (masked sums; needs both options too).

    For a single agent: noisy-points (each user adds noise), shuffled-points (the same through a
    shuffler; needs --users), vector-batches (shuffled bits; needs --users and --dimension).

    For other data: gaussian (sums of unit vectors, with a record in every release), laplace (any
    statistic, L1 sensitivity), exponential (a choice, by Gumbel noise on costs), noisy-argmin
    (experts: noise on scores; only the index of the least score is released).

    "list" lists all mechanisms, with their units and the quantity that noise_std refers to.
    --sensitivity is for gaussian, noisy-argmin, laplace and exponential.
    """
    import msgspec

    from fastfed.privacy import Budget
    from fastfed.privacy import calibrate as calibrated
    from fastfed.privacy.mechanisms.catalogue import BUILTIN

    if mechanism == "list":
        _list_mechanisms(as_json)
        return
    for option, value in (("--epsilon", epsilon), ("--delta", delta)):
        if value is None:
            pure = (
                ": 0 is pure differential privacy"
                if mechanism in ("laplace", "exponential")
                else ""
            )
            raise click.UsageError(
                f"missing option '{option}'{pure if option == '--delta' else ''}"
            )
    assert epsilon is not None and delta is not None
    ours = mechanism in BUILTIN
    if ours and dimension is not None and mechanism not in SIZED_MECHANISMS:
        raise click.UsageError(
            f"--dimension belongs to {', '.join(SIZED_MECHANISMS[:-1])} and {SIZED_MECHANISMS[-1]}"
        )
    if ours and users is not None and mechanism not in (*SIZED_MECHANISMS, "shuffled-points"):
        raise click.UsageError(
            f"--users belongs to {', '.join(SIZED_MECHANISMS)} and shuffled-points"
        )
    calibrated_mechanism = calibrated(
        mechanism,
        Budget(epsilon, delta, relation),
        1 if releases is None else releases,
        users=users,
        dimension=dimension,
        sensitivity=sensitivity,
    )
    if releases is None and mechanism in STREAM_MECHANISMS:
        say(f"{mechanism} is for several releases, and this noise is for one: set --releases")
    values = msgspec.to_builtins(calibrated_mechanism)
    if as_json:
        print_json(values)
        return
    for name, value in values.items():
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        click.echo(f"{name.replace('_', ' '):<10}  {text}")


def _list_mechanisms(as_json: bool) -> None:
    """Print all mechanisms, one line each."""
    import msgspec

    from fastfed.privacy.mechanisms.catalogue import listed

    mechanisms = listed()
    if as_json:
        print_json([msgspec.to_builtins(entry) for entry in mechanisms])
        return
    rows = [
        (
            entry.name,
            entry.unit,
            entry.noise_std,
            " ".join(f"--{option}" for option in entry.needs),
            entry.default_sensitivity or "",
        )
        for entry in mechanisms
    ]
    print_table(("mechanism", "unit", "noise std", "needs", "sensitivity"), rows)


# ---- `fastfed privacy` ---------------------------------------------------------------------------


@click.command()
@click.argument("spec", type=click.Path(path_type=Path), metavar="SPEC.toml")
@click.option("--curve", metavar="LABEL", help="Print only the curve with this label.")
@set_option
@json_option
@stoppable
def privacy(spec: Path, curve: str | None, settings: tuple[str, ...], as_json: bool) -> None:
    """Print the privacy certificates of a spec, without running it.

    SPEC.toml may be the id of a figure, as `fastfed list figures` names it. The certificate of a
    curve states the claim, the exact guarantee, its conditions, and what the
    guarantee does not cover.
    """
    from fastfed._validate import choice
    from fastfed.experiments.specs import file_or_figure, load_spec, parse_changes
    from fastfed.reporting.sections import certificates_text
    from fastfed.results.store import made_now
    from fastfed.simulation.run import about_records

    experiment = load_spec(file_or_figure(spec), changes=parse_changes(settings))
    if curve is not None:
        choice("--curve", curve, [c.label for c in experiment.curves])
    date = made_now(experiment.identity())
    curves = [
        (c.label, {**c.system.certificate.to_builtins(), **date})
        for c in experiment.curves
        if curve in (None, c.label)
    ]
    about = list(dict.fromkeys(n for c in experiment.curves for n in about_records(c.problem)))
    if as_json:
        certificates = [{"label": k, "certificate": v} for k, v in curves]
        print_json({"about_records": about, "curves": certificates})
    else:
        click.echo(certificates_text(curves, about), nl=False)


# ---- `fastfed plan` ------------------------------------------------------------------------------


class SpecAsOption(click.RichCommand):
    """A command that names the right option if a spec file is passed as an argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; raise UsageError if the first is the name of a TOML file."""
        if args and args[0].endswith(".toml"):
            raise click.UsageError(
                f"{args[0]} must follow an option: write --environment {args[0]} --horizon T; "
                "plan simulates the environment of this spec, and reads no other keys of it"
            )
        return super().parse_args(ctx, args)


@click.command(cls=SpecAsOption)
@click.option("--silos", type=int, metavar="M",
              help="Number of silos (default: from the data, if they define it).")  # fmt: skip
@click.option("--horizon", type=int, required=True, metavar="T",
              help="Number of rounds of each silo.")  # fmt: skip
@click.option("--dimension", type=int, metavar="D", help="Dimension of the features.")
@click.option("--epsilon", type=float, required=True, metavar="E", help="Above 0.")
@click.option("--delta", type=float, required=True, metavar="D", help="Between 0 and 1.")
@click.option("--relation", default="replace", show_default=True, metavar="R",
              help="Relation of neighbouring datasets: replace, or zero-out.")  # fmt: skip
@click.option("--trust", multiple=True, metavar="WHO",
              help="Trust model: silo-ldp, shuffle, secure-sum or central, and user-bit with "
              "--protects reward; may be repeated (default: all).")  # fmt: skip
@click.option("--protects", default="user", show_default=True, metavar="WHAT",
              help="What is private: user (contexts and rewards), or reward if contexts are "
              "public.")  # fmt: skip
@click.option("--colluders", type=int, metavar="N",
              help="Silos of a secure sum whose noise is not counted (default: a third).",
              )  # fmt: skip
@click.option("--actions", type=int, metavar="K",
              help="Number of actions of the simulated sphere (default: 100).")  # fmt: skip
@click.option("--intercept", type=float, metavar="KAPPA",
              help="Make the last feature of the sphere the constant 1/sqrt(2 KAPPA), so that "
              "rewards can be centred, which needs less noise.")  # fmt: skip
@click.option("--environment", "spec", type=click.Path(path_type=Path), metavar="SPEC.toml",
              help="Simulate the environment of this spec, or of the figure with this id, "
              "instead of the sphere.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE",
              help="Change a key of this environment: environment.dimension=5. May be "
              "repeated.")  # fmt: skip
@click.option("--radius-multiplier", type=float, default=1.0, show_default=True, metavar="X",
              help="Factor on all confidence radii; below 1 no regret bound is proven.",
              )  # fmt: skip
@click.option("--seconds", type=float, default=3.0, show_default=True, metavar="S",
              help="Work in seconds of one core. Accounts that are not cached take some "
              "seconds more.",
              )  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, metavar="N",
              help="Seed of all randomness.")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1), metavar="N",
              help="Number of threads (default: all processors). The answer does not depend on "
              "it.")  # fmt: skip
@click.option("--write", type=click.Path(path_type=Path), metavar="SPEC.toml",
              help="Write a spec of the recommended systems to a new file, for `fastfed "
              "run`.")  # fmt: skip
@json_option
@stoppable
def plan(
    spec: Path | None,
    settings: tuple[str, ...],
    write: Path | None,
    as_json: bool,
    trust: tuple[str, ...],
    **arguments: Any,
) -> None:
    """Recommend a protocol, release and batches, or advise against sharing.

    All systems that guarantee (E, D) to every user are compared, separately for each trust model:
    first by noise and proven bounds, then by short simulations. The answer for a trust model begins
    with one sentence. It recommends a system and states what privacy costs; or it advises against
    sharing, and names the epsilon above which sharing would be better.
    """
    from fastfed._validate import InputError
    from fastfed.advice import plan as find_plan
    from fastfed.experiments.specs import environment_table, parse_changes

    if settings and spec is None:
        raise click.UsageError("--set changes the environment of a spec: give --environment too")
    for name in ("actions", "intercept"):
        if spec is not None and arguments[name] is not None:
            raise click.UsageError(
                f"--{name} belongs to the sphere; with --environment, the spec sets it"
            )
    if write is not None and not os.path.isdir(write.parent):
        raise InputError(f"--write must be in an existing folder, got {str(write)!r}")
    if write is not None and os.path.lexists(write):
        raise InputError(
            f"--write must be a new file, got {str(write)!r}, which exists: choose "
            "a different name, or remove it"
        )
    stages = 0

    def on_stage(text: str) -> None:
        """Print the text of a stage of the simulations."""
        nonlocal stages
        if not stages:  # this line is printed only after all arguments are checked
            say(f"about {arguments['seconds']:g} s of simulation on one core")
        stages += 1
        say(text)

    if arguments["actions"] is None:
        del arguments["actions"]
    # All other options are arguments of `fastfed.plan`, with the same names.
    advice = find_plan(
        environment=spec and environment_table(spec, parse_changes(settings)),
        trust=trust or None,
        on_stage=None if as_json else on_stage,
        **arguments,
    )
    if write is not None:
        write.write_text(advice.spec_text(), encoding="utf-8")
    if as_json:
        print_json(advice.to_builtins())
    else:
        _print(advice)
    if write is not None:
        say(f"{write}: run it with `fastfed run {write} -o DIR`")


def _print(advice: Advice) -> None:
    """Print the recommendation for each trust model, with a table of its candidates."""
    for note in advice.notes:
        click.echo(f"note: {note}")
    click.echo(advice.heading)
    for verdict in advice.verdicts:
        click.echo()
        click.secho(f"{verdict.trust}: {verdict.trusted}", bold=True)
        click.echo(f"=> {verdict.sentence}")
        rows = [
            _row(candidate)
            for candidate in advice.candidates
            if candidate.trust == verdict.trust and not candidate.remark
        ]
        print_table(
            ("", "noise std", "exact epsilon", "bound", "regret", "sent", "stage"),
            rows,
            right=(1, 2, 3, 4, 5),
        )
        # Candidates with a remark were not simulated. Name each pair of protocol and release once:
        # the text of a candidate's label before its batches.
        unsimulated = [
            candidate
            for candidate in advice.candidates
            if candidate.trust == verdict.trust and candidate.remark
        ]
        kinds = dict.fromkeys(
            candidate.label.partition(f", {candidate.batches}")[0] for candidate in unsimulated
        )
        if kinds:
            click.echo(f"not simulated, because they have more noise: {'; '.join(kinds)}")
        if any(", sieve" in c.label for c in advice.candidates if c.trust == verdict.trust):
            click.echo("sieve below 0.3: less exploration, with the same bound")
    click.echo()
    from fastfed.advice.answer import regret_text

    print_table(
        ("to compare with", "regret", "privacy"),
        [(b.label, regret_text(b.regret), b.privacy) for b in advice.baselines],
        right=(1,),
    )
    click.echo("\nno candidates:")
    for name, reason in advice.left_out.items():
        click.echo(f"  {name}: {reason}")


def _row(candidate: Candidate) -> tuple[str, ...]:
    """Return the cells of a candidate's row in the table of `_print`."""
    from fastfed.advice.answer import regret_text
    from fastfed.privacy.certificate import rounded_up
    from fastfed.reporting.table import sent

    bound = (
        "none"
        if candidate.bound is None
        else "vacuous"
        if candidate.vacuous
        else f"{candidate.bound:.3g}"
    )
    regret = regret_text(candidate.regret) if candidate.regret else "not simulated"
    stage = candidate.regret.stage if candidate.regret else ""
    return (
        candidate.label,
        f"{candidate.noise_std:.4g}",
        rounded_up(candidate.epsilon),
        bound,
        regret,
        sent(candidate.bytes_sent),
        stage,
    )


COMMANDS = {"audit": audit, "calibrate": calibrate, "privacy": privacy, "plan": plan}
