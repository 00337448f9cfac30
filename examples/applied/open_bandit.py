"""Three campaigns of a shop train one model on their logs, privately, and ask what it is worth.

    python examples/applied/open_bandit.py --data obd -o open_bandit.png

The folder holds the Open Bandit Dataset's uniformly random logs (Saito et al. 2021): ``all``,
``men`` and ``women``, each with its log and ``item_context`` as .csv or .csv.gz. A silo is a
campaign; a round is one item shown to one visitor. docs/applied.md tells the story.
"""

from __future__ import annotations

import csv
import gzip
import secrets
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import click
import numpy as np

import fastfed

CAMPAIGNS = ("all", "men", "women")
DELTA, SHARE = 1e-6, 0.2
SERVERS = {"trusted server": "central", "secure sum": "secure-sum", "silo-level": "silo-ldp"}


@dataclass
class Log:
    """One campaign: n rounds, K items, d features of every item in every round."""

    contexts: np.ndarray  # (n, K, d), norms at most 1
    items: np.ndarray  # (n,), shown
    clicks: np.ndarray  # (n,)
    propensities: np.ndarray  # (n,)

    def part(self, rounds: slice) -> Log:
        return Log(
            *(v[rounds] for v in (self.contexts, self.items, self.clicks, self.propensities))
        )


def rows_of(folder: Path, name: str, needed: set[str]) -> list[dict[str, str]]:
    for path in (folder / f"{name}.csv", folder / f"{name}.csv.gz"):
        if path.is_file():
            opened = gzip.open if path.suffix == ".gz" else open
            with opened(path, "rt", newline="", encoding="utf-8-sig") as file:
                rows = list(csv.DictReader(file))
            missing = needed - set(rows[0] if rows else ())
            if missing:
                raise click.ClickException(f"{path} has no column {', '.join(sorted(missing))}")
            return rows
    raise click.ClickException(f"no data at {folder}: {name}.csv or {name}.csv.gz is missing")


def sign(hashed: str) -> float:
    """+1 or -1 from a category's hash: a coding that needs no list of categories from the data."""
    return 1.0 if int(hashed[:8], 16) % 2 else -1.0


def read(folder: Path, campaign: str) -> Log:
    """Features: (1, visitor) x (1, item, affinity). The catalogue of items is public."""
    catalogue = rows_of(folder / campaign, "item_context", {"item_id", "item_feature_0"})
    price = np.zeros(len(catalogue))
    for row in catalogue:
        price[int(row["item_id"])] = np.clip(float(row["item_feature_0"]) / 2.0, -1.0, 1.0)
    users = [f"user_feature_{j}" for j in range(4)]
    affinities = [f"user-item_affinity_{k}" for k in range(len(price))]
    needed = {"item_id", "click", "propensity_score", *users, *affinities}
    rows = rows_of(folder / campaign, campaign, needed)
    visitor = np.array([[1.0] + [sign(r[name]) for name in users] for r in rows])
    affinity = np.array([itemgetter(*affinities)(r) for r in rows], dtype=float)
    item = np.stack(
        [np.ones_like(affinity), np.broadcast_to(price, affinity.shape), np.minimum(affinity, 1.0)],
        axis=-1,
    )
    contexts = (visitor[:, None, :, None] * item[:, :, None]).reshape(*affinity.shape, -1)
    return Log(
        contexts / np.sqrt(5 * 3),  # the largest norm there can be
        np.array([int(r["item_id"]) for r in rows]),
        np.array([float(r["click"]) for r in rows]),
        np.array([float(r["propensity_score"]) for r in rows]),
    )


def make(logs: list[Log], epsilon: float | None, protocol: str) -> object:
    """Make the system of one release after all rounds; without epsilon it is not private."""
    rounds, dimension = len(logs[0].items), logs[0].contexts.shape[-1]
    algorithm, budget = "fedlinucb", {}
    if epsilon is not None:
        algorithm = "private-fedlinucb"
        # One release has one noise, whatever makes it; named, so that its draws stay the same.
        release = "factorised" if protocol == "secure-sum" else "tree"
        budget = {"epsilon": epsilon, "delta": DELTA, "protocol": protocol, "release": release}
    return fastfed.make_system(
        algorithm, silos=len(logs), horizon=rounds, dimension=dimension, batch_size=rounds, **budget
    )


def train(
    logs: list[Log], epsilon: float | None, seed: int | None, protocol: str = "silo-ldp"
) -> tuple[np.ndarray, object]:
    """theta (d,) from one private message of each campaign, and the certificate.

    The log has chosen the items, so nothing has to be learnt on the way: one release at the end
    needs the least noise. ``select`` is offered the one item that was shown.
    """
    system = make(logs, epsilon, protocol)
    many, noise, keys = range(len(logs)), None, [None] * len(logs)
    if seed is not None:  # a deployment leaves noise out: it is then the operating system's
        noise = fastfed.parties.SeededNoise(seed)
    elif epsilon is not None and protocol == "secure-sum":  # each two agree on a key of their masks
        pairs = {(i, j): secrets.token_bytes(32) for i in many for j in range(i)}
        keys = [{j: pairs[max(i, j), min(i, j)] for j in many if j != i} for i in many]
    silos = [fastfed.parties.Silo(system.plan, i, noise, keys=keys[i]) for i in many]
    server = fastfed.parties.Server(system.plan, noise)
    for silo, log in zip(silos, logs, strict=True):
        shown = log.contexts[np.arange(len(log.items)), log.items]
        for x, click_ in zip(shown, log.clicks, strict=True):
            silo.select(x[None])
            silo.observe(click_)
    broadcast = server.combine([silo.report() for silo in silos])
    for silo in silos:
        silo.receive(broadcast)
    certificate = system.deployed_certificate if seed is None else system.certificate
    return silos[0].theta, certificate


def agreement(
    early: list[Log], late: list[Log], share: float, epsilon: float, protocol: str, draws: int = 100
) -> float:
    """Part of the shown items that the model without noise shows, too: mean over drawn noises.

    The noise of the sums is drawn by its law (``plan.noise_std``); every 25th round is looked at.
    """
    plan = make(early, epsilon, protocol).plan
    d, ridge = plan.dimension, float(plan.regularizer[-1])
    # With silo-level noise every silo adds all of it; otherwise it is there once.
    copies = np.sqrt(len(early)) if protocol == "silo-ldp" else 1.0
    std, draw = plan.noise_std, np.random.default_rng(0)
    x = np.vstack([log.contexts[np.arange(len(log.items)), log.items] for log in early])
    gram, bias = x.T @ x, x.T @ np.concatenate([log.clicks for log in early])
    some = [log.part(slice(None, None, 25)) for log in late]
    best = [best_of(log, np.linalg.solve(gram + np.eye(d), bias), share) for log in some]
    found = []
    for _ in range(draws):
        lower = np.tril(draw.normal(size=(d, d)), -1) * std.off_diagonal
        noise = lower + lower.T + np.diag(draw.normal(size=d) * std.diagonal)
        noisy = gram + copies * noise + ridge * np.eye(d)
        theta = np.linalg.solve(noisy, bias + copies * std.bias * draw.normal(size=d))
        pairs = zip(best, (best_of(log, theta, share) for log in some), strict=True)
        found.append(np.mean([np.minimum(p, q).sum(axis=1).mean() for p, q in pairs]))
    return float(np.mean(found))


def best_of(log: Log, theta: np.ndarray, share: float) -> np.ndarray:
    """A policy (n, K): uniform over the best share of items by <x, theta>."""
    scores = log.contexts @ theta
    count = max(1, round(share * scores.shape[1]))
    chosen = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    policy = np.zeros_like(scores)
    np.put_along_axis(policy, chosen, 1.0 / count, axis=1)
    return policy


def stacked(arrays: list[np.ndarray]) -> np.ndarray:
    """(n, K) of all campaigns on top of each other, K the largest, 0 where there is no item."""
    width = max(a.shape[1] for a in arrays)
    return np.vstack([np.pad(a, ((0, 0), (0, width - a.shape[1]))) for a in arrays])


def joined(logs: list[Log]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Items, clicks and propensities of all campaigns."""
    names = ("items", "clicks", "propensities")
    items, clicks, propensities = (np.concatenate([getattr(g, n) for g in logs]) for n in names)
    return items, clicks, propensities


def by_obp(
    items: np.ndarray,
    clicks: np.ndarray,
    propensities: np.ndarray,
    policy: np.ndarray,
    predicted: np.ndarray,
) -> list[float] | None:
    """The same three values by the Open Bandit Pipeline, or None where it is not installed."""
    try:
        from obp.ope import (
            DoublyRobust,
            InverseProbabilityWeighting,
            SelfNormalizedInverseProbabilityWeighting,
        )
    except ImportError:
        return None
    log = {
        "reward": clicks, "action": items, "pscore": propensities,
        "action_dist": policy[:, :, None], "position": np.zeros(len(items), dtype=int),
    }  # fmt: skip
    model = predicted[:, :, None]
    return [
        InverseProbabilityWeighting().estimate_policy_value(**log),
        SelfNormalizedInverseProbabilityWeighting().estimate_policy_value(**log),
        DoublyRobust().estimate_policy_value(**log, estimated_rewards_by_reg_model=model),
    ]


@click.command()
@click.option("--data", type=click.Path(path_type=Path), required=True, help="The folder.")
@click.option("-o", "--plot", type=click.Path(path_type=Path), default=Path("open_bandit.png"))
@click.option("--epsilon", multiple=True, type=float, default=(1.0, 10.0), show_default=True)
@click.option("--share", default=SHARE, show_default=True, help="Of the items a policy may show.")
@click.option("--seed", default=0, show_default=True, help="Of the noise in a rehearsal.")
@click.option("--deployed", is_flag=True, help="Noise of the operating system, not of a seed.")
def main(
    data: Path, plot: Path, epsilon: tuple[float, ...], share: float, seed: int, deployed: bool
) -> None:
    """Train privately on the earlier half of three logs, evaluate on the later half."""
    if not data.is_dir():
        raise click.ClickException(f"no data at {data}: give the folder of the logs as --data")
    logs = [read(data, campaign) for campaign in CAMPAIGNS]
    half = min(len(log.items) for log in logs) // 2
    early = [log.part(slice(half)) for log in logs]
    late = [log.part(slice(half, None)) for log in logs]
    print("campaign  items  rounds: train, evaluate  clicks: train, evaluate")
    for name, a, b in zip(CAMPAIGNS, early, late, strict=True):
        counts = f"{len(a.items):14d}, {len(b.items)}{a.clicks.sum():19.0f}, {b.clicks.sum():.0f}"
        print(f"{name:<8}{a.contexts.shape[1]:7d}{counts}")

    uniform = [np.full(log.contexts.shape[:2], 1.0 / log.contexts.shape[1]) for log in late]
    policies, certificate = {"the log's own (uniform)": uniform}, None
    runs = {"not private": (None, "silo-ldp")}
    for name, protocol in SERVERS.items():
        runs.update({f"{name}, epsilon = {budget:g}": (budget, protocol) for budget in epsilon})
    for label, (budget, protocol) in runs.items():
        theta, certificate = train(early, budget, None if deployed else seed, protocol)
        policies[label] = [best_of(log, theta, share) for log in late]

    predicted = stacked(
        [fastfed.off_policy.cross_fitted_ridge(g.contexts, g.items, g.clicks) for g in late]
    )
    print(f"\nclicks per 1 000 rounds of a policy that shows one of the best {share:.0%} of items")
    print(f"{'policy':<30}{'estimator':<19}{'value':>7}{'±':>6}  95 % interval  any n           on")
    found = {}
    for label, parts in policies.items():
        log, policy = joined(late), stacked(parts)
        most = max(float(part.max()) * part.shape[1] for part in parts)  # the log is uniform
        found[label] = [
            fastfed.off_policy.inverse_propensity(
                *log, policy, largest_reward=1.0, largest_weight=most
            ),
            fastfed.off_policy.self_normalised(*log, policy),
            fastfed.off_policy.doubly_robust(*log, policy, predicted),
        ]
        theirs = by_obp(*log, policy, predicted)
        for i, e in enumerate(found[label]):
            line = f"{label if i == 0 else '':<30}{e.method:<19}{1e3 * e.value:7.2f}"
            line += f"{1e3 * e.stderr:6.2f}  {_interval(e.low, e.high):<15}"
            line += f"{_interval(*e.bounded) if e.bounded else '':<15}{e.rewarded:3d} clicks"
            print(line + (f"  obp {1e3 * theirs[i]:.4f}" if theirs else ""))
    if theirs is None:
        print("obp is not installed, so its estimates are not beside these")
    print("\npart of the shown items that the model without noise shows, too (mean over noises)")
    for name, (budget, protocol) in runs.items():
        if budget is not None:
            print(f"{name:<30}{agreement(early, late, share, budget, protocol):7.1%}")
    print(f"\nWhat is guaranteed to a visitor under {label!r}:\n")
    print(fastfed.privacy.as_text(certificate))
    print("Clicks and estimates above are made of raw logs: the certificate does not cover them.")
    draw(found, plot)
    print(f"plot: {plot}")


def _interval(low: float, high: float) -> str:
    return f"{1e3 * low:.2f} to {1e3 * high:.2f}"


def draw(found: dict[str, list], path: Path) -> None:
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=(7.5, 5.5), layout="constrained")).subplots()
    for at, values in enumerate(found.values()):
        for i, e in enumerate(values):
            y, colour = at + 0.2 * (i - 1), f"C{i}"
            if e.bounded:
                axes.plot([1e3 * b for b in e.bounded], [y, y], color=colour, lw=1, alpha=0.5)
            axes.plot([1e3 * e.low, 1e3 * e.high], [y, y], color=colour, lw=3, alpha=0.6)
            axes.plot(1e3 * e.value, y, "o", color=colour, label=e.method if at == 0 else None)
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    axes.set_xlabel("clicks per 1 000 rounds; thick: normal 95 % interval, thin: for any n")
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
