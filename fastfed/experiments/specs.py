"""Experiments from spec files and figures, at the requested sizes."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastfed._validate import InputError, nearest, nearest_label, show
from fastfed.experiments import FOLDER, Figure, figure_experiment, figure_ids, figure_spec
from fastfed.reporting.claims import labels_of
from fastfed.reporting.figure import check_figure
from fastfed.reporting.panels import check_grammar
from fastfed.simulation.experiment import (
    TOP_KEYS,
    Experiment,
    expand,
    experiment_from_spec,
    find_beside,
    read_toml,
    replicate_range,
)
from fastfed.simulation.systems import algorithm

#: Quick runs have this many replicates, and the horizon divided by QUICK_SHARE.
QUICK_REPLICATES = 2
QUICK_SHARE = 10


def import_beside(path: Path) -> None:
    """Make modules in the folder of a spec importable, because the spec may name them."""
    # At the end of the path: a file beside the spec must not hide an installed module.
    folder = os.path.realpath(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)


def load_spec(
    path: str | Path,
    *,
    replicates: int | tuple[int, int] | None = None,
    seed: int | None = None,
    quick: bool = False,
    changes: Mapping[str, Any] | None = None,
) -> Experiment:
    """Load an experiment from a spec file and check it completely, including [figure].

    The spec may name modules in the same folder.

    Parameters
    ----------
    path : str or Path
        TOML file.
    replicates : int or (int, int), optional
        Replaces the value in the file. A pair is a range, such as (5, 10) for replicates 5 to 9.
    seed : int, optional
        Replaces the value in the file.
    quick : bool
        Run a short version: two replicates and a tenth of the horizon.
    changes : mapping, optional
        Values that replace keys, such as {"horizon": 500, "curve.LDP.epsilon": 2.0}; see
        `apply_changes`.

    Raises
    ------
    InputError
        If the spec is invalid. The message names the file and the key.
    """
    path = Path(path)
    if str(path) in figure_ids() and not path.exists():
        raise InputError(f"{path}: no such file; for the figure, `fastfed reproduce {path}`")
    import_beside(path)
    spec = read_toml(path)
    try:
        apply_changes(spec, changes or {})
        original_spec = dict(spec)
        first, end = replicate_range(replicates)
        spec.update(changed_keys(spec, end, seed, quick))
        store_full_horizon(spec, original_spec)
        find_beside(spec.get("environment"), path)
        experiment = replace(experiment_from_spec(spec), first_replicate=first)
        _check_figure(experiment)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return experiment


# ---- Changes of single keys: --set KEY=VALUE -----------------------------------------------------

#: Keys that can change without invalidating claims.
KEYS_WITHOUT_CLAIMS = ("seed", "replicates", "checkpoints", "checkpoint_spacing")


def parse_changes(texts: Iterable[str]) -> dict[str, Any]:
    """Parse texts such as "horizon=500". A value that is not TOML becomes a string."""
    changes = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InputError(f"--set must be KEY=VALUE, such as horizon=500, got {show(text)}")
        changes[key.strip()] = _toml_value(value.strip())
    return changes


def _toml_value(text: str) -> Any:
    """Return the TOML value of a text, or the text itself if it is not TOML."""
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if len(table) == 1 else text


def apply_changes(spec: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Change single keys of a spec's tables, in place.

    A key is a top-level key (``horizon``), or names a key of a table (``environment.dimension``,
    ``figure.log``). ``curve.epsilon`` changes all curves whose algorithm has this key, and
    ``curve.LABEL.epsilon`` changes only the curves with this label. If a change affects the
    experiment, claims are not judged, and claims about removed curves are deleted.

    Raises
    ------
    InputError
        If no table has the key, or ``changes`` is not a mapping.
    """
    if not isinstance(changes, Mapping):
        raise InputError(
            f'changes must be a mapping such as {{"horizon": 500}}, got {show(changes)}'
        )
    for key, value in changes.items():
        table_name, _, inner_key = key.partition(".")
        if table_name not in TOP_KEYS:
            if not inner_key and any(key in t or key in _keys_of(t) for t in _curves(spec)):
                raise InputError(
                    f'--set: "{key}" is a key of curves: curve.{key}={show(value)} changes it'
                )
            if table_name in _labels(_curves(spec)):
                raise InputError(
                    f'--set: "{table_name}" is the label of a curve: '
                    f"curve.{table_name}.{inner_key or 'KEY'}={show(value)} changes it"
                )
            raise InputError(f'unknown key "{key}" in --set{nearest(table_name, TOP_KEYS)}')
        if table_name == "curve":
            _change_curves(spec, key, value)
        elif table_name in ("environment", "figure"):
            if not inner_key:
                raise InputError(f"--set {key} must name a key of the table, as {key}.KEY")
            table = spec.setdefault(table_name, {})
            *path, last = inner_key.split(".")
            for part in path:
                table = table.setdefault(part, {}) if isinstance(table, dict) else None
            if not isinstance(table, dict):
                raise InputError(f'--set "{key}": {table_name} has no such table')
            table[last] = value
        elif inner_key:
            raise InputError(f'--set "{key}": {table_name} is no table')
        else:
            spec[key] = value
    effective_keys = [
        k for k in changes if k not in KEYS_WITHOUT_CLAIMS and not k.startswith("figure.")
    ]
    figure = spec.get("figure")
    if effective_keys and isinstance(figure, dict):
        figure["changed"] = [f"{k}={changes[k]}" for k in effective_keys]
        _delete_entries_without_curves(figure, spec.get("curve"))


def _curves(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the curve tables of a spec that is not checked yet, without entries of other types."""
    tables = spec.get("curve")
    return [t for t in tables if isinstance(t, dict)] if isinstance(tables, list) else []


def _labels(tables: list[dict[str, Any]]) -> list[str]:
    """Return the labels of curve tables. The default label is the name of the algorithm."""
    return [str(t.get("label", t.get("algorithm"))) for t in tables]


def _change_curves(spec: dict[str, Any], key: str, value: Any) -> None:
    """Change one key of curve tables, in place.

    ``key`` is "curve.KEY", for all curves that have this key, or "curve.LABEL.KEY", for the curves
    with this label.
    """
    tables = _curves(spec)
    label, _, name = key.removeprefix("curve").lstrip(".").rpartition(".")
    labels = _labels(tables)
    # "LDP, epsilon = 1.0" is the label of one curve of the sweep "LDP". If a user writes this label
    # in --set, KEY ends at its first =, so it is only "curve.LDP, epsilon".
    swept = key.removeprefix("curve").lstrip(".")
    for sweep in labels:
        if swept.startswith(f"{sweep}, ") and label not in labels:
            raise InputError(
                f'--set: "{swept}" names one curve of the sweep "{sweep}", whose curves share one '
                f"table: curve.{sweep}.KEY=VALUE changes all of them. To change one of them, give "
                "it a curve table in the spec"
            )
    if not name:
        raise InputError("--set curve must name a key, as curve.KEY or curve.LABEL.KEY")
    if label:
        if label not in labels:
            raise InputError(f'--set: unknown curve "{label}"{nearest_label(label, labels)}')
        chosen_tables = [
            t for t, table_label in zip(tables, labels, strict=True) if table_label == label
        ]
    else:
        chosen_tables = [t for t in tables if name in t or name in _keys_of(t)]
        if not chosen_tables:
            known_keys = sorted({k for t in tables for k in (*t, *_keys_of(t))})
            raise InputError(f'--set: no curve has a key "{name}"{nearest(name, known_keys)}')
    for table in chosen_tables:
        table[name] = value


def _keys_of(table: dict[str, Any]) -> tuple[str, ...]:
    """Return the keys that the algorithm of a curve has; none if the algorithm is unknown."""
    try:
        return tuple(algorithm(table.get("algorithm")).config.__struct_fields__)
    except InputError:  # reported later, with the curve's label
        return ()


def _delete_entries_without_curves(figure: dict[str, Any], tables: Any) -> None:
    """Delete claims and bounds (``statement``, ``line``) whose curves were renamed or removed.

    A note under the title says how many were deleted.
    """
    try:
        labels = {
            c["label"]
            for table in tables
            for c in expand({"label": table.get("algorithm"), **table})
        }
    except (InputError, TypeError, AttributeError, KeyError):  # reported later
        return
    still_present = {
        "statement": lambda claim: labels.issuperset(labels_of(claim)),
        "line": lambda line: line.get("curve") in labels,
    }
    deleted = []
    for key, has_curves in still_present.items():
        if isinstance(entries := figure.get(key), list):
            figure[key] = [table for table in entries if has_curves(table)]
            if deleted_count := len(entries) - len(figure[key]):
                deleted.append(f"{deleted_count} {key}{'s' if deleted_count > 1 else ''}")
    if deleted:
        note = figure.get("note", [])
        notes = [note] if isinstance(note, str) else note
        sentence = f"omitted, because their curves were renamed or removed: {', '.join(deleted)}"
        figure["note"] = [*notes, sentence] if isinstance(notes, list) else note


def environment_table(path: str | Path, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the [environment] table of a spec file, which may name modules in the same folder.

    ``path`` may be the id of a figure. ``changes`` replaces keys of the table, each written as
    ``environment.KEY``.
    """
    path = file_or_figure(path)
    changes = changes or {}
    for key in changes:
        if not key.startswith("environment."):
            raise InputError(
                f"--set must change the environment, as environment.KEY=VALUE, got {show(key)}: "
                "no other part of the spec is read"
            )
    import_beside(path)
    spec = read_toml(path)
    if not isinstance(spec.get("environment"), dict):
        raise InputError(f"{path}: environment is required: an [environment] table")
    apply_changes(spec, changes)
    find_beside(spec["environment"], path)
    return spec["environment"]


def file_or_figure(path: str | Path) -> Path:
    """Return ``path``; if it is no file but a figure's id, return the path of the figure's spec."""
    path = Path(path)
    return FOLDER / f"{path}.toml" if str(path) in figure_ids() and not path.exists() else path


def sized_experiment(
    figure: Figure,
    data: str | Path | None = None,
    size: str | None = None,
    replicates: int | tuple[int, int] | None = None,
    seed: int | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Experiment:
    """Return the experiment of a figure at a size (see `figure_spec`).

    ``replicates``, ``seed`` and ``changes`` (see `apply_changes`) replace values of the spec.
    """
    spec = figure_spec(figure, data, size)
    first, end = replicate_range(replicates)
    spec.update(changed_keys(spec, end, seed, size == "quick"))
    if size == "quick":
        spec.update(spec["figure"].get("quick", {}))
    if end is not None:
        spec["replicates"] = end
    try:
        apply_changes(spec, changes or {})
    except InputError as error:
        raise InputError(f'figure "{figure.id}": {error}') from None
    store_full_horizon(spec, figure.spec)
    experiment = replace(figure_experiment(figure, spec), first_replicate=first)
    _check_figure(experiment)
    return experiment


def changed_keys(
    spec: dict[str, Any], replicates: int | None, seed: int | None, quick: bool
) -> dict[str, Any]:
    """Return the new values of the top-level keys that the other arguments replace."""
    changed = {"replicates": replicates, "seed": seed}
    if quick:
        changed["replicates"] = replicates or QUICK_REPLICATES
        changed["horizon"] = quick_horizon(spec)
    return {key: value for key, value in changed.items() if value is not None}


def store_full_horizon(spec: dict[str, Any], original: dict[str, Any]) -> None:
    """Store the original horizon in ``[figure]`` of a spec whose horizon is shorter, in place.

    Claims of the figure are judged only from this horizon on.
    """
    full_horizon, horizon = original.get("horizon"), spec.get("horizon")
    if isinstance(full_horizon, int) and isinstance(horizon, int) and horizon < full_horizon:
        table = spec.setdefault("figure", {})
        if isinstance(table, dict):
            table.setdefault("judged_from", full_horizon)


def quick_horizon(spec: dict[str, Any]) -> int | None:
    """Return a tenth of the horizon, but at least one batch or phase of every curve.

    Returns None if the spec's horizon is not an integer.
    """
    horizon, curves = spec.get("horizon"), spec.get("curve")
    if not isinstance(horizon, int):
        return None
    tables = [c for c in curves if isinstance(c, dict)] if isinstance(curves, list) else []
    batches = []
    for value in (c.get(key) for c in tables for key in ("batch_size", "phase_length")):
        values = value if isinstance(value, list) else [value]
        batches += [b for b in values if isinstance(b, int)]
    return min(horizon, max([1, horizon // QUICK_SHARE, *batches]))


def _check_figure(experiment: Experiment) -> None:
    """Raise InputError if the [figure] table of an experiment is invalid."""
    check_figure(experiment.figure, list(experiment.bound_names), experiment.bound_names)
    check_grammar(experiment.figure, experiment.identity()["curves"])
