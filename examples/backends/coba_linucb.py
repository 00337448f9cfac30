"""LinUCB for coba (https://pypi.org/project/coba) on fastfed: two learners, one of them private.

LinUCBLearner takes the arguments of coba's own LinUCBLearner and makes its decisions: Chu et al.
(2011) with a fixed alpha, ridge regression from V = I, ties broken at random by coba's generator.
PrivateLinUCBLearner runs a fastfed system of one agent instead: what it learns from are noisy sums.

    python examples/backends/coba_linucb.py   # plays both beside coba's own, prints rewards
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import coba
import numpy as np
from coba.encodings import InteractionsEncoder
from coba.exceptions import CobaException
from coba.primitives import Learner
from coba.random import CobaRandom

import fastfed
from fastfed import kernels

# A tie in exact arithmetic is one to this part of the score; coba asks for equal bits.
TIE = 1e-12
SPARSE = "Sparse data cannot be handled by this implementation at this time."


def _numbers(values: Any, axes: int) -> np.ndarray:
    """Dense numbers as float64; text and mappings are refused, as coba's LinUCBLearner does."""
    try:
        made = np.asarray(values)
    except ValueError:
        raise CobaException("LinUCB needs actions and contexts of one length each.") from None
    if made.dtype.kind not in "biuf":
        raise CobaException(SPARSE)
    if made.ndim == axes - 1:
        made = made[..., None]  # single numbers are vectors of one entry
    if made.ndim != axes:
        raise CobaException("LinUCB needs actions and contexts that are vectors of numbers.")
    return made.astype(np.float64)


class Features:
    """Rows (K, d) of an offer: coba's InteractionsEncoder for all actions at once.

    `terms` are coba's: a number is a constant, "x" the context, "a" the action, "ax" all their
    products. Higher powers ("xxa") go through coba's own encoder, an action at a time.
    """

    def __init__(self, terms: Sequence[str | float], context: Any) -> None:
        if not context:  # as coba has it: without a context at first, there is none
            without = (t.replace("x", "") if isinstance(t, str) else t for t in terms)
            terms = [t for t in dict.fromkeys(without) if t]
        self._terms = list(dict.fromkeys(t for t in terms if isinstance(t, str)))
        self._constant = sum(t for t in terms if not isinstance(t, str))
        simple = all(t in ("x", "a", "ax", "xa") for t in self._terms)
        self._encoder = None if simple else InteractionsEncoder(terms)

    def rows(self, context: Any, actions: Sequence[Any]) -> np.ndarray:
        a = _numbers(actions, 2)
        x = _numbers(context, 1) if context else np.empty(0)
        if self._encoder is not None:
            return np.array(
                [self._encoder.encode(x=x.tolist(), a=row) for row in a.tolist()], np.float64
            )
        blocks = [np.full((len(a), 1), float(self._constant))] if self._constant else []
        for term in self._terms:
            if term == "a":
                blocks.append(a)
            elif term == "x":
                blocks.append(np.broadcast_to(x, (len(a), len(x))))
            elif term == "ax":
                blocks.append((a[:, :, None] * x).reshape(len(a), -1))
            else:
                blocks.append((x[:, None] * a[:, None, :]).reshape(len(a), -1))
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)


class LinUCBLearner(Learner):
    """coba's LinUCBLearner with its arithmetic in fastfed.kernels.

    alpha >= 0 scales the width; features and seed are coba's. V is kept as its inverse Cholesky
    factor, so a round takes O(K d^2) and no inverse is ever made.
    """

    def __init__(
        self, alpha: float = 1, features: Sequence[str | float] = (1, "a", "ax"), seed: int = 1
    ) -> None:
        self._alpha, self._terms, self._seed = float(alpha), list(features), seed
        self._random = CobaRandom(seed)
        self._features: Features | None = None

    @property
    def params(self) -> dict[str, Any]:
        return {
            "family": "fastfed LinUCB",
            "alpha": self._alpha,
            "features": self._terms,
            "seed": self._seed,
        }

    def _rows(self, context: Any, actions: Sequence[Any]) -> np.ndarray:
        if self._features is None:
            features = Features(self._terms, context)
            d = features.rows(context, actions).shape[1]
            self._factor, self._theta = kernels.inverse_factor(np.eye(d)), np.zeros(d)
            self._features = features
        return self._features.rows(context, actions)

    def _pmf(self, context: Any, actions: Sequence[Any]) -> list[float]:
        """Chance of each action: equal over those of the largest score."""
        rows = self._rows(context, actions)
        scores = kernels.ucb_scores(rows, self._factor, self._theta, self._alpha, trusted=True)
        largest = scores.max()
        best = scores >= largest - TIE * max(abs(largest), 1.0)
        return (best / best.sum()).tolist()

    def score(self, context: Any, actions: Sequence[Any], action: Any) -> float:
        return self._pmf(context, actions)[actions.index(action)]

    def predict(self, context: Any, actions: Sequence[Any]) -> tuple[Any, float]:
        return self._random.choicew(actions, self._pmf(context, actions))

    def learn(self, context: Any, action: Any, reward: float, probability: float) -> None:
        row = self._rows(context, [action])[0]
        kernels.factor_update(self._factor, self._theta, row, reward, trusted=True)


class PrivateLinUCBLearner(Learner):
    """LinUCB that learns from tree-released noisy sums: fastfed's `linucb-jdp`, one trusted agent.

    Parameters: horizon, the most rounds it may play; dimension d of the features; epsilon, delta;
    batch_size, rounds between releases; norm, a bound on the features' lengths chosen without
    looking at the data (rows are divided by it, and clipped where they are longer); features as in
    LinUCBLearner. Rewards are clipped to [0, 1]. Further keys go to fastfed.make_system.

    Noise comes from the operating system, so two runs differ. Learning is on-policy: each predict
    is followed by the learn of its action.
    """

    def __init__(
        self,
        horizon: int,
        dimension: int,
        epsilon: float,
        delta: float,
        *,
        batch_size: int = 1,
        norm: float = 1.0,
        features: Sequence[str | float] = (1, "a", "ax"),
        **keys: Any,
    ) -> None:
        self._system = fastfed.make_system(
            "linucb-jdp",
            horizon=horizon,
            dimension=dimension,
            epsilon=epsilon,
            delta=delta,
            batch_size=batch_size,
            **keys,
        )
        self._terms, self._norm = list(features), float(norm)
        self._budget = {"epsilon": epsilon, "delta": delta, "batch_size": batch_size}
        self._features: Features | None = None

    @property
    def certificate(self) -> Any:
        """What the actions of all rounds together guarantee to a user."""
        return self._system.deployed_certificate

    @property
    def params(self) -> dict[str, Any]:
        return {"family": "fastfed private LinUCB", "features": self._terms, **self._budget}

    def predict(self, context: Any, actions: Sequence[Any]) -> tuple[Any, float]:
        if self._features is None:
            # Not before it plays: coba copies learners, and noise must not be copied with them.
            self._features = Features(self._terms, context)
            self._silo = fastfed.parties.Silo(self._system.plan)
            self._server = fastfed.parties.Server(self._system.plan)
        rows = self._features.rows(context, actions) / self._norm
        self._chosen = actions[self._silo.select(rows)]
        return self._chosen, 1.0

    def learn(self, context: Any, action: Any, reward: float, probability: float) -> None:
        if action != self._chosen:
            raise CobaException("PrivateLinUCBLearner learns the action it has just predicted.")
        self._silo.observe(reward)
        if self._silo.due:
            self._silo.receive(self._server.combine([self._silo.report()]))


def main(rounds: int = 4000) -> None:
    environment = coba.Environments.from_linear_synthetic(
        rounds, n_actions=10, n_context_features=0, n_action_features=5, seed=3
    )
    private = PrivateLinUCBLearner(
        rounds, 5, epsilon=5.0, delta=1e-5, batch_size=20, norm=5**0.5, features=["a"],
        radius_multiplier=0.1,
    )  # fmt: skip
    learners = [
        coba.RandomLearner(),
        coba.LinUCBLearner(features=["a"]),
        LinUCBLearner(features=["a"]),
        private,
    ]
    result = coba.Experiment(environment, learners).run(quiet=True)
    rewards: dict[int, list[float]] = {}
    for learner, reward in zip(
        result.interactions["learner_id"], result.interactions["reward"], strict=True
    ):
        rewards.setdefault(learner, []).append(reward)
    for number, learner in enumerate(learners):
        name = learner.params["family"]
        print(f"{name:24} mean reward {np.mean(rewards[number]):.4f}")
    print(private.certificate)


if __name__ == "__main__":
    main()
