"""A recommender engineer: LinUCB in batches, sparse rows, files, logs, kernels, an own policy.

    python recommender.py [USERS]      seconds; 4 000 users by default

Users come in batches of 100 and are shown one of 20 items. Features of a user and an item are one
float32 row; the click depends on it.
"""

import sys
import tempfile
from pathlib import Path

import numba
import numpy as np
import scipy.sparse

import fastfed
from fastfed import LinUCB, kernels, off_policy
from fastfed.kernels.numba import register

D, ITEMS, BATCH = 16, 20, 100
register()  # only needed from a source tree


def click_world(seed):
    """Draws of offers (n, K, d) in float32, and the taste that clicks follow."""
    draw = np.random.default_rng(seed)
    taste = draw.normal(size=D)
    taste /= np.linalg.norm(taste)

    def offers(n):
        rows = draw.normal(size=(n, ITEMS, D)).astype(np.float32)
        return rows / np.linalg.norm(rows, axis=2, keepdims=True)

    def clicks(rows):
        return (draw.random(len(rows)) < 0.5 + 0.5 * rows @ taste).astype(float)

    return offers, clicks


class EpsilonGreedy:
    """The policy that we have today: greedy, with some random shows."""

    def __init__(self, dimension, seed, share=0.1):
        self.gram, self.bias = np.eye(dimension), np.zeros(dimension)
        self.draw, self.share = np.random.default_rng(seed), share

    def select(self, actions):
        theta = np.linalg.solve(self.gram, self.bias)
        greedy = int(np.argmax(actions @ theta))
        explores = self.draw.random() < self.share
        chosen = int(self.draw.integers(len(actions))) if explores else greedy
        self.row = actions[chosen]
        return chosen

    def observe(self, reward):
        self.gram += np.outer(self.row, self.row)
        self.bias += reward * self.row


@numba.njit
def served(offers, noise, taste, radius):
    """The loop in our own service, compiled: one user after the other."""
    factor, theta, clicks = np.eye(offers.shape[2]), np.zeros(offers.shape[2]), 0.0
    for user in range(len(offers)):
        item = kernels.ucb_argmax(offers[user], factor, theta, radius, trusted=True)
        row = offers[user, item].astype(np.float64)
        reward = 1.0 if noise[user] < 0.5 + 0.5 * row @ taste else 0.0
        kernels.factor_update(factor, theta, row, reward, trusted=True)
        clicks += reward
    return clicks / len(offers)


def tell(who, value):
    """Print an off-policy estimate."""
    print(f"{who}: {value.value:.2f} in [{value.low:.2f}, {value.high:.2f}]")


def main():
    users = int(sys.argv[1]) if sys.argv[1:] else 4000
    offers, clicks = click_world(0)

    agent = LinUCB(dimension=D, radius_multiplier=0.3)
    rates = []
    for _ in range(users // BATCH):
        shown = offers(BATCH)
        items = agent.select_many(shown)
        seen = clicks(shown[np.arange(BATCH), items])
        agent.observe_many(seen)
        rates.append(seen.mean())
    last = np.mean(rates[-5:])
    print(f"batches of {BATCH}: first click rate {rates[0]:.2f}, last five {last:.2f}")

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "agent.npz")
        agent.save(file)
        again = LinUCB.load(file)
    one = offers(1)[0]
    print("saved and loaded: same scores", np.array_equal(again.scores(one), agent.scores(one)))

    # Rows of the new catalogue are sparse.
    dense = one * (np.random.default_rng(1).random(one.shape) < 0.2)
    rows = scipy.sparse.csr_array(dense)
    print("sparse rows: same choice", again.select(rows) == agent.select(dense))

    # The log of last week: items were shown uniformly at random.
    logged, shown = offers(2000), np.random.default_rng(2).integers(ITEMS, size=2000)
    rewards = clicks(logged[np.arange(2000), shown])
    found = LinUCB(dimension=D, radius_multiplier=0.3).replay(logged, shown, rewards)
    print(f"replay: {found.matched.sum()} of 2000 rounds, logged {rewards.mean():.2f}")
    tell("a new agent", found.inverse_propensity)
    policy = np.full((2000, ITEMS), 0.5 / ITEMS)
    policy[np.arange(2000), agent.select_many(logged)] += 0.5
    chances = np.full(2000, 1 / ITEMS)
    tell("ours, half of it", off_policy.self_normalised(shown, rewards, chances, policy))

    draw = np.random.default_rng(3)
    taste = draw.normal(size=D)
    taste /= np.linalg.norm(taste)
    rate = served(offers(users), draw.random(users), taste, 0.3)
    print(f"kernels inside njit: {rate:.2f} clicks per user")

    private = {"algorithm": "private-fedlinucb", "protocol": "central"}
    curves = [
        {"label": "today", "algorithm": "policy", "policy": EpsilonGreedy},
        {"label": "each shop", "algorithm": "local-linucb", "radius_multiplier": 0.3},
        {"label": "together", "epsilon": 1.0, "delta": 1e-6, "radius_multiplier": 0.3, **private},
    ]
    world = {"kind": "sphere", "dimension": 6, "actions": ITEMS}
    shops = fastfed.simulate(world, curves=curves, silos=10, horizon=400, replicates=2)
    for curve in shops.curves:
        regret, status = curve.final(curve.silos)["mean"], curve.certificate["status"]
        print(f"{curve.label}: {regret:.1f} regret per shop, privacy {status}")


if __name__ == "__main__":
    main()
