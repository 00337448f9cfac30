"""`scripts/gate`: compare the checkout with a base commit; exit status 1 where it is slower."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path

from gate import builds
from gate.compare import Results, measure
from gate.statistic import EQUAL, LIMIT, SLOWER
from gate.workloads import GROUPS


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/gate", description=__doc__)
    parser.add_argument("base", nargs="?", help="a commit (default: where HEAD left main)")
    parser.add_argument(
        "--only", action="append", help="only workloads whose name contains this text"
    )
    parser.add_argument(
        "--group", action="append", choices=[*GROUPS], help="only these groups (default: all)"
    )
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"ratio allowed ({LIMIT})")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--tree", type=Path, help="a tree to compare instead of the checkout")
    return parser.parse_args()


def failures(results: Results) -> list[str]:
    """Return one sentence for each reason to refuse the checkout."""
    sentences = [f"{name}: {why}" for name, why in results.lost.items()]
    for row in results.rows:
        c = row.comparison
        if c.last_verdict == SLOWER:
            sentences.append(
                f"{row.name}: {c.ratio:.2f} times base's time ({c.low:.2f} to {c.high:.2f})"
            )
        elif row.waits:
            sentences.append(f"{row.name}: waits where base does not, in every run")
    return sentences


def table(results: Results) -> str:
    """Return a text table of times and ratios, one line for each workload."""
    lines = [f"{'workload':46}{'base us':>10}{'head us':>10}{'ratio':>7}  interval       verdict"]
    for row in results.rows:
        c = row.comparison
        sides = "".join(f"{row.microseconds(side):>10.4g}" for side in ("base", "head"))
        word = "" if c.last_verdict == EQUAL else c.last_verdict
        lines.append(
            f"{row.name:46}{sides}{c.ratio:>7.3f}  {c.low:.3f} to {c.high:.3f}"
            f"{'' if c.verdict == c.last_verdict else ' (not proven)'}  {word}".rstrip()
        )
    return "\n".join(lines)


def figures(results: Results) -> dict[str, object]:
    """Return all results as a JSON object."""
    rows = {
        row.name: {
            "ratio": (c := row.comparison).ratio,
            "low": c.low,
            "high": c.high,
            "pairs": c.pairs,
            "blocks": c.blocks,
            "verdict": c.last_verdict,
            "base_microseconds": row.microseconds("base"),
            "head_microseconds": row.microseconds("head"),
        }
        for row in results.rows
    }
    return {"rows": rows, "new": results.new, "lost": results.lost, "failures": failures(results)}


def main() -> int:
    options = arguments()
    started = time.monotonic()

    def report_progress(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", file=sys.stderr, flush=True)

    head_folder = builds.CACHE / "trees" / f"head-{os.getpid()}"
    try:
        revision = options.base or builds.default_base()
        trees = []
        for name, tree in (
            (revision, builds.base_tree(revision)),
            ("head", options.tree or builds.head_tree(head_folder)),
        ):
            path, is_new = builds.compiled(tree)
            report_progress(f"{name}: {'compiled' if is_new else 'compiled before'}")
            trees.append(path)
        name_parts = options.only or [""]
        is_selected = lambda name: any(part in name for part in name_parts)  # noqa: E731
        results = measure(
            *trees, is_selected, options.group or GROUPS, options.limit, report_progress
        )
    except builds.BuildError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(head_folder, ignore_errors=True)
    print(table(results))
    for name, why in results.new.items():
        print(f"not in base: {name} ({why})")
    if options.json:
        options.json.write_text(json.dumps(figures(results), indent=2) + "\n")
    reasons = failures(results)
    for line in reasons:
        print(f"FAILED {line}")
    if not results.rows:
        print("FAILED: nothing was compared")
        return 2
    report_progress(f"{len(results.rows)} workloads compared, {len(reasons)} failed")
    return bool(reasons)


if __name__ == "__main__":
    sys.exit(main())
