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
from gate.compare import Found, play
from gate.statistic import EQUAL, LIMIT, SLOWER
from gate.workloads import GROUPS


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/gate", description=__doc__)
    parser.add_argument("base", nargs="?", help="a commit (default: where HEAD left main)")
    parser.add_argument("--only", action="append", help="workloads whose name has this in it")
    parser.add_argument("--group", action="append", choices=[*GROUPS], help="these alone (all)")
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"ratio allowed ({LIMIT})")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--tree", type=Path, help="a tree to compare instead of the checkout")
    return parser.parse_args()


def failures(found: Found) -> list[str]:
    """A sentence for each reason to refuse head."""
    said = [f"{name}: {why}" for name, why in found.lost.items()]
    for row in found.rows:
        c = row.comparison
        if c.last_verdict == SLOWER:
            said.append(
                f"{row.name}: {c.ratio:.2f} times base's time ({c.low:.2f} to {c.high:.2f})"
            )
        elif row.waits:
            said.append(f"{row.name}: waits where base does not, in every run")
    return said


def table(found: Found) -> str:
    lines = [f"{'workload':46}{'base us':>10}{'head us':>10}{'ratio':>7}  interval       verdict"]
    for row in found.rows:
        c = row.comparison
        sides = "".join(f"{row.microseconds(side):>10.4g}" for side in ("base", "head"))
        word = "" if c.last_verdict == EQUAL else c.last_verdict
        lines.append(
            f"{row.name:46}{sides}{c.ratio:>7.3f}  {c.low:.3f} to {c.high:.3f}"
            f"{'' if c.verdict == c.last_verdict else ' (not proven)'}  {word}".rstrip()
        )
    return "\n".join(lines)


def figures(found: Found) -> dict[str, object]:
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
        for row in found.rows
    }
    return {"rows": rows, "new": found.new, "lost": found.lost, "failures": failures(found)}


def main() -> int:
    said = arguments()
    started = time.monotonic()

    def heard(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", file=sys.stderr, flush=True)

    own = builds.CACHE / "trees" / f"head-{os.getpid()}"
    try:
        revision = said.base or builds.default_base()
        trees = []
        for name, tree in (
            (revision, builds.base_tree(revision)),
            ("head", said.tree or builds.head_tree(own)),
        ):
            path, fresh = builds.compiled(tree)
            heard(f"{name}: {'compiled' if fresh else 'compiled before'}")
            trees.append(path)
        wanted = said.only or [""]
        chosen = lambda name: any(part in name for part in wanted)  # noqa: E731
        found = play(*trees, chosen, said.group or GROUPS, said.limit, heard)
    except builds.BuildError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(own, ignore_errors=True)
    print(table(found))
    for name, why in found.new.items():
        print(f"not in base: {name} ({why})")
    if said.json:
        said.json.write_text(json.dumps(figures(found), indent=2) + "\n")
    bad = failures(found)
    for line in bad:
        print(f"FAILED {line}")
    if not found.rows:
        print("FAILED: nothing was compared")
        return 2
    heard(f"{len(found.rows)} workloads compared, {len(bad)} failed")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
