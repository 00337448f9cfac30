"""A privacy engineer: accounts, audits, certificates as JSON, composition, and checks by formula.

    python privacy.py      seconds

Nothing here is simulated but the audit. What fastfed says is compared with dp_accounting, if it is
installed, and with the formula of the Gaussian mechanism (Balle and Wang 2018, Theorem 8).
"""

import json
import math
from statistics import NormalDist

import fastfed
from fastfed.privacy import Budget, calibrate, epsilon_of, mu_of

PHI = NormalDist().cdf
EPSILON, DELTA, BATCHES = 1.0, 1e-6, 40


def delta_of(mu, epsilon):
    """Delta of the Gaussian mechanism with sensitivity / noise = mu."""
    return PHI(mu / 2 - epsilon / mu) - math.exp(epsilon) * PHI(-mu / 2 - epsilon / mu)


def tell(name, found):
    """Print the verdict of an audit."""
    bound, claimed = found.epsilon_lower_bound, found.claimed_epsilon
    print(f"audit {name}: epsilon at least {bound:.2f}, claimed {claimed:g}: {found.verdict}")


def main():
    # One mechanism: how much noise, and is the account right?
    made = calibrate("gaussian", Budget(EPSILON, DELTA), releases=1)
    mu = 2.0 / made.noise_std  # replacing a unit vector moves the sum by at most 2
    print(f"gaussian: noise {made.noise_std:.4f}, mu {made.mu:.6f}, 2 / noise {mu:.6f}")
    delta = delta_of(made.mu, EPSILON)
    print(f"its delta at epsilon {EPSILON:g} by formula: {delta:.3e}, asked for {DELTA:g}")

    # A system, and its certificate as JSON.
    system = fastfed.make_system(
        "private-fedlinucb", silos=5, horizon=400, dimension=6, batch_size=10,
        protocol="silo-ldp", release="tree", epsilon=EPSILON, delta=DELTA,
    )  # fmt: skip
    certificate = system.deployed_certificate
    said = json.loads(json.dumps(certificate.to_builtins()))
    shown = ("status", "unit", "relation", "claimed", "exact")
    print(json.dumps({key: said[key] for key in shown}))
    for condition in said["conditions"]:
        print("condition:", "holds" if condition["holds"] else "FAILS", "-", condition["text"])

    # Another delta, by the same noise: the mechanism is Gaussian, so mu says it all.
    mu = mu_of(EPSILON, DELTA)
    for delta in (1e-4, 1e-5, 1e-6, 1e-8):
        epsilon = epsilon_of(mu, delta)
        check = delta_of(mu, epsilon)
        print(f"at delta {delta:g}: epsilon {epsilon:.4f}, delta by formula {check:.2e}")

    # Three plans on the same people: mus add up as squares.
    plans = [(1.0, 1e-6), (0.5, 1e-6), (2.0, 1e-6)]
    together = math.sqrt(sum(mu_of(*plan) ** 2 for plan in plans))
    all_three = epsilon_of(together, 1e-6)
    print(f"three plans of epsilon 1, 0.5 and 2: {all_three:.4f} at 1e-6 (sum: 3.5 at 3e-6)")
    twice = epsilon_of(math.sqrt(2) * mu, DELTA)
    print(f"a person at two silos, each with noise of its own: {twice:.4f}")

    try:
        from dp_accounting.pld import privacy_loss_distribution as pld
    except ImportError:
        print("dp_accounting is not installed: not compared")
    else:
        one = [pld.from_gaussian_mechanism(1.0 / mu_of(*plan)) for plan in plans]
        theirs = one[0].compose(one[1]).compose(one[2]).get_epsilon_for_delta(1e-6)
        print(f"dp_accounting says {theirs:.4f}: equal to 1e-3", abs(theirs - all_three) < 1e-3)

    # Attack it. "pass" proves nothing; "caught" would.
    for name, trials in {"gaussian-tree": 4_000, "fault-natural-log": 60_000}.items():
        tell(name, fastfed.audit(name, trials=trials))

    # A mechanism of our own, with a mistake: the noise of epsilon 2 sold as 1.
    def ours(data, rng):
        return sum(data) + rng.laplace(scale=0.5)

    found = fastfed.audit(ours, [0.0, 1.0, 1.0], [1.0, 1.0, 1.0], epsilon=1.0, delta=0.0)
    tell("ours", found)


if __name__ == "__main__":
    main()
