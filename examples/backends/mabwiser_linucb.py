"""LinUCB with an estimate per arm, in the manner of mabwiser, on fastfed.kernels.

The methods are those of `mabwiser.mab.MAB(arms, LearningPolicy.LinUCB(alpha, l2_lambda))` and so
are the predictions. mabwiser is not needed to run this; `scale` and `warm_start` are not offered.

    python examples/backends/mabwiser_linucb.py
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Literal

import numpy as np

from fastfed import InputError, kernels


class LinUCB:
    """Disjoint LinUCB (Li et al. 2010, Algorithm 1): ridge regression and a width for each arm.

    arms: distinct values. alpha >= 0 scales the width, l2_lambda > 0 is the regularizer.

    untrained: what an arm without a row counts as. "ridge": V = l2_lambda I, so that its width is
    alpha ||x|| / sqrt(l2_lambda). "mabwiser": alpha ||x|| sqrt(l2_lambda), what mabwiser 2.7 takes
    until an arm's first row, since it starts A^{-1} at l2_lambda I; the same where l2_lambda = 1.
    """

    def __init__(
        self,
        arms: Sequence[Hashable],
        alpha: float = 1.0,
        l2_lambda: float = 1.0,
        *,
        untrained: Literal["mabwiser", "ridge"] = "mabwiser",
    ) -> None:
        if len(set(arms)) != len(arms) or not arms:
            raise InputError(f"arms must be distinct, and at least one, got {list(arms)!r}")
        if not alpha >= 0 or not l2_lambda > 0:
            raise InputError(
                f"alpha must be >= 0 and l2_lambda > 0, got {alpha!r} and {l2_lambda!r}"
            )
        if untrained not in ("mabwiser", "ridge"):
            raise InputError(f'untrained must be "mabwiser" or "ridge", got {untrained!r}')
        self.arms = list(arms)
        self.alpha, self.l2_lambda, self.untrained = float(alpha), float(l2_lambda), untrained
        self.dimension: int | None = None
        # Of each arm: W of V = l2_lambda I + X'X, V^{-1} X'y, and whether there is a row in them.
        self._factors, self._thetas = np.empty((0, 0, 0)), np.empty((0, 0))
        self._trained = [False] * len(self.arms)

    def add_arm(self, arm: Hashable) -> None:
        """A further arm, without rows."""
        if arm in self.arms:
            raise InputError(f"arm {arm!r} is there already")
        self.arms.append(arm)
        self._trained.append(False)
        if self.dimension is not None:
            self._factors = np.concatenate([self._factors, self._cold()[None]])
            self._thetas = np.concatenate([self._thetas, np.zeros((1, self.dimension))])

    def remove_arm(self, arm: Hashable) -> None:
        """Forget an arm."""
        self._known([arm])
        at = self.arms.index(arm)
        del self.arms[at], self._trained[at]
        if self.dimension is not None:
            self._factors = np.delete(self._factors, at, axis=0)
            self._thetas = np.delete(self._thetas, at, axis=0)

    def fit(self, decisions: Any, rewards: Any, contexts: Any) -> None:
        """Learn from these rows alone: arms (n,), rewards (n,), contexts (n, d)."""
        groups, d = self._groups(decisions, rewards, contexts, None)
        self._start(d)
        for arm, x, y in groups:
            at = self.arms.index(arm)
            factor = kernels.inverse_factor(x.T @ x + self.l2_lambda * np.eye(d))
            self._factors[at], self._thetas[at] = factor, factor.T @ (factor @ (x.T @ y))
            self._trained[at] = True

    def partial_fit(self, decisions: Any, rewards: Any, contexts: Any) -> None:
        """Learn further rows, O(d^2) each; arms that are in none of them cost nothing."""
        groups, d = self._groups(decisions, rewards, contexts, self.dimension)
        if self.dimension is None:
            self._start(d)
        for arm, x, y in groups:
            at = self.arms.index(arm)
            if not self._trained[at]:
                self._factors[at] = np.eye(d) / np.sqrt(self.l2_lambda)
                self._trained[at] = True
            factor, theta = self._factors[at], self._thetas[at]
            for row, reward in zip(x, y, strict=True):
                kernels.factor_update(factor, theta, row, float(reward), trusted=True)

    def predict(self, contexts: Any) -> Any:
        """The arm of the largest bound, ties to the first; a list where contexts has many rows."""
        best = [self.arms[i] for i in self._bounds(contexts).argmax(axis=1)]
        return best if len(best) > 1 else best[0]

    def predict_expectations(self, contexts: Any) -> Any:
        """Upper confidence bound of every arm: a dictionary, or a list of them."""
        made = [dict(zip(self.arms, row, strict=True)) for row in self._bounds(contexts)]
        return made if len(made) > 1 else made[0]

    def _bounds(self, contexts: Any) -> np.ndarray:
        """Bounds (n, arms)."""
        if self.dimension is None:
            raise InputError("fit or partial_fit must come before a prediction")
        x = np.asarray(contexts, dtype=np.float64)
        bounds = kernels.ucb_scores(x, self._factors, self._thetas, self.alpha, trusted=True)
        return bounds.T

    def _start(self, d: int) -> None:
        """All arms without rows."""
        self.dimension = d
        self._factors = np.repeat(self._cold()[None], len(self.arms), axis=0)
        self._thetas = np.zeros((len(self.arms), d))
        self._trained = [False] * len(self.arms)

    def _cold(self) -> np.ndarray:
        width = self.l2_lambda if self.untrained == "mabwiser" else 1.0 / self.l2_lambda
        return np.sqrt(width) * np.eye(self.dimension)

    def _known(self, arms: Sequence[Hashable]) -> None:
        for arm in arms:
            if arm not in self.arms:
                raise InputError(f"arm {arm!r} is not one of {self.arms!r}")

    def _groups(
        self, decisions: Any, rewards: Any, contexts: Any, dimension: int | None
    ) -> tuple[list[tuple[Hashable, np.ndarray, np.ndarray]], int]:
        """Rows by arm, in the order they came, all checked before anything is learnt."""
        decided = list(decisions)
        self._known(decided)
        x = np.asarray(contexts, dtype=np.float64)
        y = np.asarray(rewards, dtype=np.float64)
        if x.ndim != 2 or y.shape != (len(x),) or len(decided) != len(x) or not x.size:
            raise InputError(
                "decisions and rewards must have shape (n,) and contexts (n, d), "
                f"got {len(decided)}, {y.shape} and {x.shape}"
            )
        if dimension is not None and x.shape[1] != dimension:
            raise InputError(f"contexts must have {dimension} features, got {x.shape[1]}")
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            raise InputError("rewards and contexts must be finite")
        rows: dict[Hashable, list[int]] = {}
        for number, arm in enumerate(decided):
            rows.setdefault(arm, []).append(number)
        return [(arm, x[at], y[at]) for arm, at in rows.items()], x.shape[1]


def main() -> None:
    bandit = LinUCB(["Arm1", "Arm2"], alpha=1.25)
    contexts = [[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 1, 0], [3, 2, 1, 0]]
    bandit.fit(["Arm1", "Arm1", "Arm2", "Arm1"], [20, 17, 25, 9], contexts)
    print(bandit.predict([[3, 2, 0, 1]]), bandit.predict_expectations([[3, 2, 0, 1]]))
    bandit.add_arm("Arm3")
    bandit.partial_fit(["Arm3"], [30], [[3, 2, 0, 1]])
    print(bandit.predict([[3, 2, 0, 1], [0, 1, 2, 3]]))


if __name__ == "__main__":
    main()
