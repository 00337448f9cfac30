"""Compute digests of every figure's results and plans at its quick size, and compare them.

`scripts/digest` writes the digests into figures_quick.json, and test_figures_digest.py compares the
package with them. A curve has four: three of its results by `fastfed.run` without times, and one of
its plan.

- play: rounds, group regret of every replicate at every checkpoint, synchronisations, bits and
  bytes up and down, and events (clips, indefinite, ...);
- certificate: its plain data with all words, but without the version that made it and the date;
- bounds: the bounds of the theory at the checkpoints;
- plan: the set of its floating-point numbers; their names and places do not count. It also detects
  changes that change no action, and so no regret, such as the last bits of a radius.

Each digest is stored twice: of all bits, and of numbers rounded to 8 significant digits. A digest
is the first 16 hex digits of SHA-256, so equal digests of all bits mean equal results. All bits
must be equal where `arithmetic` is equal. The compiled core gives equal bits on all processors, but
some curves call NumPy, BLAS, libm or SciPy, whose last bits depend on processor and version. Where
`arithmetic` differs, only 8 digits must agree. This can fail without a fault, if a last bit decides
an action or a number lies at the edge of two roundings. Differences that were seen with other
kernels on one processor, all below 1e-13:

- BLAS: regret of fed-dp-ope-stoch, by the dot product of mean losses and weights;
- vectors of NumPy: regret of hedge, plans and certificates of fed-svt and the vector sum, bounds;
- libm without FMA: only bounds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import platform
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

# Set before NumPy is loaded: last bits depend on how BLAS divides sums among threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import msgspec
import numpy as np
import scipy
from scipy import special

import fastfed
from fastfed import experiments
from fastfed.experiments.specs import sized_experiment

STORED = Path(__file__).with_name("figures_quick.json")
DIGITS = 8
KINDS = ("play", "certificate", "bounds", "plan")

Digests = dict[str, list[str]]  # kind: of all bits, of rounded numbers


def names() -> list[str]:
    """Return the names of the figures that need no data of users."""
    return [figure.id for figure in experiments.figures() if not figure.needs_data]


def digests_of_figure(name: str) -> dict[str, Digests]:
    """Return the digests of a figure's curves, by label, as `reproduce NAME --quick` runs them."""
    experiment = sized_experiment(experiments.figure(name), size="quick")
    with tempfile.TemporaryDirectory() as folder:
        results = fastfed.run(experiment, folder)
    plans = {curve.label: curve.system.plan for curve in experiment.curves}
    return {curve.label: digests(curve, plans[curve.label]) for curve in results.curves}


def digests(curve: Any, plan: Any) -> Digests:
    """Return the digests of a curve's results and of its plan, by kind."""
    counts = {name: np.asarray(count, np.float64) for name, count in curve.counts.items()}
    contents = {
        "play": {
            "silos": curve.silos,
            "rounds": curve.rounds,
            "replicates": curve.replicates,
            "group_regret": curve.group_regret,
            "events": curve.events,
            **counts,
        },
        "certificate": dict(curve.certificate),
        "bounds": curve.bounds,
    }
    actual = {
        kind: [digest(content), digest(content, DIGITS)] for kind, content in contents.items()
    }
    values = set(numbers(plan))
    of_set = (sorted({_plain(value, digits) for value in values}) for digits in (None, DIGITS))
    return {**actual, "plan": [digest(texts) for texts in of_set]}


def numbers(value: Any) -> Iterator[float]:
    """Yield every float in dataclasses, structs, arrays and plain data, however deep."""
    if isinstance(value, (float, np.floating)):
        yield float(value)
    elif isinstance(value, np.ndarray):
        if value.dtype.kind == "f":
            yield from np.unique(value).tolist()
    else:
        inner: Iterable[Any] = ()
        if isinstance(value, dict):
            inner = value.values()
        elif isinstance(value, (list, tuple)):
            inner = value
        elif dataclasses.is_dataclass(value):
            inner = [getattr(value, field.name) for field in dataclasses.fields(value)]
        elif isinstance(value, msgspec.Struct):
            inner = [getattr(value, name) for name in value.__struct_fields__]
        for part in inner:
            yield from numbers(part)


def digest(value: Any, digits: int | None = None) -> str:
    """Return a digest of plain data and arrays: of all bits, or of numbers rounded to digits."""
    text = json.dumps(_plain(value, digits), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any, digits: int | None) -> Any:
    """Return a value whose floats are text: hexadecimal, or with this number of digits."""
    if isinstance(value, dict):
        return {key: _plain(inner, digits) for key, inner in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(inner, digits) for inner in value]
    if isinstance(value, (float, np.floating)):
        # Adding 0 turns -0.0 into 0.0: a sign is not a digit.
        return float(value).hex() if digits is None else f"{value + 0.0:.{digits - 1}e}"
    return int(value) if isinstance(value, np.integer) else value


def arithmetic() -> str:
    """Return a digest of some results of libm, NumPy, BLAS and SciPy.

    The functions are those that fastfed calls, on fixed numbers. It does not change with fastfed.
    """
    x = np.concatenate([np.arange(1, 300) / 300.0, np.arange(1, 300) * 0.37])
    parts = x[x < 1.0]
    collected: list[Any] = []
    for name in ("exp", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "sqrt"):
        ours = getattr(math, name)
        collected += [[ours(each) for each in x], getattr(np, name)(x)]
    collected += [[math.lgamma(v) for v in x], [math.pow(v, 0.37) for v in x], np.power(x, 0.37)]
    collected += [np.logaddexp(x, 1.0), np.cumsum(x), x.sum(), np.prod(parts), np.convolve(x, x)]
    collected += [np.fft.irfft(np.fft.rfft(x, 1024) ** 3, 1024)]
    for function in (special.ndtr, special.erfcx, special.digamma):
        collected.append(function(x))
    collected += [special.ndtri(parts), special.erfinv(parts), special.gammaincc(7.5, x)]
    collected += [special.betainc(3.5, 40.0, parts), special.betaincinv(3.5, 40.0, parts)]
    collected.append(special.rel_entr(parts, parts[::-1]))
    for d in (2, 5, 10, 21, 100):
        a = np.sin(np.arange(3 * d * d) * 1.7).reshape(3 * d, d)
        gram = np.eye(d) + a.T @ a
        collected += [gram, a @ a.T, a @ a[0], a[0] @ a[1], np.linalg.norm(a, axis=1)]
        collected += [np.linalg.inv(gram), np.linalg.solve(gram, a[0]), np.linalg.eigvalsh(gram)]
        collected += [np.linalg.qr(a, mode="r"), np.einsum("ij,ij->i", a, a)]
    return digest(collected)


def differences(
    name: str, stored: dict[str, Digests], found: dict[str, Digests], *, exact: bool
) -> list[str]:
    """Return a sentence for each curve of a figure that differs, is new or is gone.

    ``exact``: compare all bits; otherwise the first 8 digits of numbers.
    """
    messages = [f"{name}: {label}: this curve is new" for label in found if label not in stored]
    messages += [f"{name}: {label}: this curve is gone" for label in stored if label not in found]
    for label in found:
        if label not in stored:
            continue
        changes = []
        for kind in KINDS:
            old, new = stored[label].get(kind, ["", ""]), found[label][kind]
            if old[1] != new[1]:
                changes.append(kind)
            elif exact and old[0] != new[0]:
                changes.append(f"{kind} (beyond {DIGITS} digits)")
        if changes:
            messages.append(f"{name}: {label}: another {' and another '.join(changes)}")
    return messages


def load() -> dict[str, Any]:
    """Return the stored digests of figures, and the digest of the arithmetic at that time."""
    content: dict[str, Any] = json.loads(STORED.read_text())
    return content


def write(figures: dict[str, dict[str, Digests]]) -> None:
    """Store digests with one line for each curve, so that a diff names the changed curves."""
    libc = " ".join(platform.libc_ver())
    header = {
        "made_with": f"{platform.machine()}, {libc}, numpy {np.__version__}, "
        f"scipy {scipy.__version__}",
        "arithmetic": arithmetic(),
    }
    lines = [f'"{key}": {json.dumps(value)},' for key, value in header.items()]
    blocks = [
        f'"{name}": {{\n'
        + ",\n".join(f"{json.dumps(label)}: {json.dumps(each)}" for label, each in curves.items())
        + "\n}"
        for name, curves in sorted(figures.items())
    ]
    text = "\n".join(lines) + '\n"figures": {\n' + ",\n".join(blocks) + "\n}"
    STORED.write_text("{\n" + text + "\n}\n")


def main(arguments: Iterable[str]) -> int:
    """Run `scripts/digest [--write] [FIGURE...]`; return 1 if unwritten figures differ."""
    given_arguments = list(arguments)
    writing = "--write" in given_arguments
    chosen = [a for a in given_arguments if a != "--write"] or names()
    if writing and len(given_arguments) > 1:
        print("--write plays all figures: name none", file=sys.stderr)
        return 2
    if unknown := set(chosen) - set(names()):
        print(f"no figure without data: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    stored: dict[str, Any] = {"arithmetic": "", "figures": {}}
    if STORED.exists():
        stored = load()
    exact = stored["arithmetic"] == arithmetic()
    figures, lines = {}, []
    for name in chosen:
        figures[name] = digests_of_figure(name)
        changes = differences(name, stored["figures"].get(name, {}), figures[name], exact=exact)
        print("\n".join(changes) or f"{name}: equal", flush=True)
        lines += changes
    if writing:
        write(figures)
    curves = sum(map(len, figures.values()))
    comparison = (
        "all bits" if exact else f"{DIGITS} digits: libraries or processor are others than then"
    )
    print(f"{len(figures)} figures, {curves} curves, {len(lines)} differ (compared: {comparison})")
    return 1 if lines and not writing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
