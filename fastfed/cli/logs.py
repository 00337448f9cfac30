"""`fastfed run` for `kind = "log"`: train on a log, print and write the values of policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import rich_click as click

from fastfed._validate import InputError
from fastfed.cli.output import print_table, progress, say
from fastfed.reporting.sections import certificates_text
from fastfed.reporting.text import number_with_noun, privacy_text
from fastfed.results.files import replace_file
from fastfed.results.store import VALUES_FILE
from fastfed.simulation.experiment import Experiment
from fastfed.simulation.logs import LogValue, LogValues, evaluate

HEADINGS = (
    "policy", "value", "±", "95 %", "for any n", "self-normalised", "rewarded", "noise", "privacy",
)  # fmt: skip


def run_log(experiment: Experiment, folder: Path) -> LogValues:
    """Train all curves on a log, print and return the estimated values of their policies.

    The values and the certificates are written to values.json and certificates.txt in ``folder``.
    """
    total = sum(experiment.agent_rounds([i]) for i in range(len(experiment.curves)))
    with progress(total * len(experiment.replicate_numbers)) as on_progress:
        values = evaluate(experiment, on_progress)
    plain = values.to_builtins()
    certificates = [
        (row["label"], row["certificate"]) for row in plain["rows"] if row["certificate"]
    ]
    files = {
        VALUES_FILE: msgspec.json.format(msgspec.json.encode(plain), indent=2) + b"\n",
        "certificates.txt": certificates_text(certificates).encode(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror})") from None
    for name, content in files.items():
        # Estimates are computed from raw rows, so only the owner may read the files.
        replace_file(folder / name, content, private=True)
    click.secho(values.name, bold=True)
    click.echo(
        f"M = {values.silos}, at most {number_with_noun(values.actions, 'action')}, "
        f"{number_with_noun(values.replicates, 'training')}; "
        f"trained on {values.trained} rows, evaluated on {values.evaluated} other rows"
    )
    click.echo("value: expected reward per round, by inverse propensity weighting")
    print_table(HEADINGS, [_cells(row) for row in values.rows], right=range(1, 8))
    several_releases = [row.label for row in values.rows if (row.releases or 0) > 1]
    if several_releases:
        say(
            f"{', '.join(several_releases)}: several releases; the log has fixed the actions, so "
            f"one release needs the least noise: batch_size = {experiment.horizon}"
        )
    environment: Any = experiment.environment
    for doubt in environment.rounds(values.silos).doubts:
        say(f"do not trust these values: {doubt}")
    if environment.top >= values.actions:
        say(
            f"top = {environment.top} lets policies choose uniformly among all actions, at most "
            f"{values.actions}: a smaller top is needed to compare what they learned"
        )
    for row in values.rows:
        if row.value is None:
            say(f"{row.label}: chose no logged action, so there is no estimate: a larger top helps")
    say(f"{folder}: {VALUES_FILE}, certificates.txt")
    return values


def _cells(row: LogValue) -> tuple[str, ...]:
    """Return the cells of a policy's row in the printed table."""
    privacy = ""
    if row.certificate is not None:
        texts = privacy_text(row.certificate.to_builtins())
        privacy = texts.short
        if texts.claimed != "-" and texts.status != "proven" and texts.status not in privacy:
            privacy += f", {texts.status}"
    noise = "" if row.noise_std is None else f"{row.noise_std:.2g}"
    if row.value is None or row.normalised is None:
        return (row.label, "", "", "", "", "", "0", noise, privacy)
    value: Any = row.value
    return (
        row.label,
        f"{value.value:.4g}",
        f"{value.stderr:.2g}",
        # If none of the evaluated actions was rewarded, low and high are NaN.
        _interval(value.low, value.high) if value.rewarded else "",
        "" if value.bounded is None else _interval(*value.bounded),
        f"{row.normalised.value:.4g}",
        str(value.rewarded),
        noise,
        privacy,
    )


def _interval(low: float, high: float) -> str:
    """Return the text of an interval."""
    return f"{low:.3g} to {high:.3g}"
