"""`fastfed audit`."""

from __future__ import annotations

import rich_click as click

from fastfed.cli.options import json_option
from fastfed.cli.output import print_json, print_table, say


@click.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--trials", type=int, metavar="N",
    help="Runs on each of the two datasets; enough for a verdict by default.",
)  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, metavar="N", help="Of the runs.")
@json_option
def audit(name: str, trials: int | None, seed: int, as_json: bool) -> None:
    """Attack a mechanism or a system, and see how much privacy is provably lost.

    NAME is a mechanism (gaussian-tree, vector-sum, ...), a system (private-fedlinucb), a planted
    fault (fault-...), or "all"; "list" names all audits and what each attacks. The implementation
    itself is run on two neighbouring datasets; the result is a lower bound on the true epsilon with
    95 % confidence. "caught" means that it is above the claim; "pass" that these runs did not
    refute it, which proves no privacy.
    """
    from fastfed.simulation import audits

    if name == "list":
        _list(as_json)
        return
    names = list(audits.AUDITS) if name == "all" else [name]
    found = []
    for each in names:
        if len(names) > 1:
            say(each)
        found.append(audits.run_audit(each, trials, seed))
    if as_json:
        print_json(found[0].to_builtins() if len(found) == 1 else [f.to_builtins() for f in found])
        return
    headings = ("audit", "claimed", "lower bound", "trials", "verdict")
    rows = []
    for result in found:
        expected = " (as it must be)" if result.name in audits.FAULTY else ""
        verdict = result.verdict + (expected if result.verdict == "caught" else "")
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


def _list(as_json: bool) -> None:
    """All audits, one line each."""
    import msgspec

    from fastfed.simulation.audit_list import listed

    found = listed()
    if as_json:
        print_json([msgspec.to_builtins(each) for each in found])
        return
    rows = [
        (each.name, each.attacks, each.unit, each.relation, "planted fault" if each.planted else "")
        for each in found
    ]
    print_table(("audit", "attacks", "unit", "relation", ""), rows)


COMMANDS = {"audit": audit}
