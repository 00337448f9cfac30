"""`LinUCB` for other tools: one agent that chooses, learns, forgets, is replayed and is saved."""

from __future__ import annotations

import copy
import io
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fastfed import off_policy
from fastfed._files import write_whole
from fastfed._kernels import checked, linalg
from fastfed._validate import InputError, array, boolean, integer, number, show
from fastfed.bandits.linucb import Estimate, check_actions

#: Sparse rows become dense in blocks of about so many entries.
BLOCK = 2**17
#: What a saved file calls itself, and the version of its layout.
FORMAT, VERSION = "LinUCB of fastfed", 1


@dataclass(frozen=True)
class Replayed:
    """What `LinUCB.replay` found.

    Attributes
    ----------
    actions : ndarray of int64, shape (n,)
        The policy's choice in every round of the log.
    matched : ndarray of bool, shape (n,)
        Rounds in which the log holds the choice's reward.
    mean_reward : float
        Mean logged reward of matched rounds: an unbiased estimate of the reward per round of the
        policy that learns from those rounds, where the logging policy was uniform (Li et al.
        2011). NaN if none matched.
    inverse_propensity, self_normalised : PolicyValue or None
        Estimates that any logging policy may stand behind, see `fastfed.off_policy`; of a learning
        policy its mean over the rounds of the log. self_normalised is None if none matched.
    """

    actions: np.ndarray
    matched: np.ndarray
    mean_reward: float
    inverse_propensity: off_policy.PolicyValue
    self_normalised: off_policy.PolicyValue | None


class LinUCB:
    """Linear UCB (Abbasi-Yadkori et al. 2011) for one agent, to be used in other tools.

    Actions are given by their features in every call, so their number may change from round to
    round. They may be float32, and sparse (SciPy, any format): sparse rows become dense in blocks.

    Parameters
    ----------
    dimension : int
        d, the length of a feature vector.
    regularizer : float, default 1
        lambda > 0.
    failure_probability : float, default 0.01
        alpha, in (0, 1).
    reward_scale : float, default 0.5
        R, the sub-Gaussian scale of the reward noise; 1/2 for rewards in [0, 1].
    radius_multiplier : float, default 1
        Factor on the confidence radius. At 1 it is the proven one, for ||theta*|| <= 1 and
        ||x|| <= 1.
    discount : float, default 1
        gamma in (0, 1]: a row counts gamma times less with every later one, so that the agent
        forgets (Russac et al. 2019, D-LinUCB, with the larger bonus ||x||_{V^-1}). The radius is
        proven while theta* stays. Below 1 a round of learning takes O(d^3), not O(d^2).

    Raises
    ------
    InputError
        For a bad value, which it names.

    Examples
    --------
    >>> agent = LinUCB(dimension=2)
    >>> a = agent.select([[1.0, 0.0], [0.0, 1.0]])
    >>> agent.observe(reward=1.0)
    """

    def __init__(
        self,
        dimension: int,
        *,
        regularizer: float = 1.0,
        failure_probability: float = 0.01,
        reward_scale: float = 0.5,
        radius_multiplier: float = 1.0,
        discount: float = 1.0,
    ) -> None:
        self.dimension = integer("dimension", dimension, at_least=1)
        self.regularizer = number("regularizer", regularizer, above=0.0)
        self.failure_probability = number(
            "failure_probability", failure_probability, above=0.0, below=1.0
        )
        self.reward_scale = number("reward_scale", reward_scale, at_least=0.0)
        self.radius_multiplier = number("radius_multiplier", radius_multiplier, at_least=0.0)
        self.discount = number("discount", discount, above=0.0, at_most=1.0)
        self._forget()

    def _forget(self) -> None:
        d = self.dimension
        self.round = 0
        self._estimate = Estimate(d, self.regularizer)
        # Where rows are discounted: the sums, and whether the estimate is older than they are.
        self._sums = None if self.discount == 1.0 else np.zeros(d + d * (d + 1) // 2)
        self._stale = False
        # Rows that were selected and not yet observed; a single one is written in place.
        self._row = np.empty(d)
        self._one = self._row[None]
        self._chosen: np.ndarray | None = None

    # ---- the model -------------------------------------------------------------------------------

    @property
    def theta(self) -> np.ndarray:
        """theta_hat, shape (d,)."""
        return self._model().theta.copy()

    @property
    def confidence_radius(self) -> float:
        """beta of the next round: Abbasi-Yadkori et al. (2011), Theorem 2, trace form.

        Where rows are discounted: Russac et al. (2019), Theorem 1.
        """
        square, count = self.discount**2, float(self.round)
        if square < 1.0:
            count = (1.0 - square**self.round) / (1.0 - square)
        return linalg.radius_at(
            self.radius_multiplier,
            self.reward_scale,
            2.0 * math.log(1.0 / self.failure_probability),
            math.sqrt(self.regularizer),
            self.regularizer,
            count,
            self.dimension,
        )

    def _model(self) -> Estimate:
        """The estimate, which discounted rows change when it is asked for."""
        if self._stale:
            assert self._sums is not None
            self._estimate.refresh(self._sums, self.regularizer)
            self._stale = False
        return self._estimate

    # ---- choices ---------------------------------------------------------------------------------

    def scores(self, actions: object) -> np.ndarray:
        """Upper confidence bound of each action.

        Parameters
        ----------
        actions : array_like or sparse, shape (K, d)
            Features.

        Returns
        -------
        ndarray, shape (K,)
            In the units of the rewards.

        Raises
        ------
        InputError
            For another shape, no actions, and features that are not finite.
        """
        model = self._model()
        if is_sparse(actions):
            blocks = dense_blocks("actions", actions, self.dimension)
            return np.concatenate([self.scores(block) for block in blocks])
        given = model.w, model.theta, self.confidence_radius
        made = checked.scores(actions, *given, 0.0, True)
        if made is not None and made.ndim == 1:
            return made
        return linalg.scores(check_actions(actions, self.dimension), *given, 0.0)

    def select(self, actions: object) -> int:
        """Choose an action, whose reward ``observe`` then takes.

        Parameters
        ----------
        actions : array_like or sparse, shape (K, d)
            Features, K >= 1.

        Returns
        -------
        int
            Index of the largest upper confidence bound; ties go to the lowest.

        Raises
        ------
        InputError
            As ``scores``.
        """
        index = self._best(actions, self._row)
        self._chosen = self._one
        return index

    def _best(self, actions: object, chosen: np.ndarray) -> int:
        """Index of the best action; its features into chosen."""
        model = self._model()
        found = checked.choose(actions, model.w, model.theta, self.confidence_radius, chosen)
        if found is not None:
            return found
        if is_sparse(actions):
            return self._best_sparse(actions, chosen)
        given = check_actions(actions, self.dimension)
        index, chosen[:] = model.select(given, self.confidence_radius)
        return index

    def _best_sparse(self, actions: Any, chosen: np.ndarray) -> int:
        """As `_best` for sparse actions: a score has the same bits in whatever block it is."""
        best, index, first = -math.inf, 0, 0
        for block in dense_blocks("actions", actions, self.dimension):
            scores = self.scores(block)
            a = int(scores.argmax())
            if scores[a] > best:
                best, index = float(scores[a]), first + a
                chosen[:] = block[a]
            first += len(block)
        return index

    def select_many(self, actions: ArrayLike | Sequence[ArrayLike]) -> np.ndarray:
        """Choose an action for each of n users, all under the current model.

        ``observe_many`` then takes their rewards. Each choice is the one of ``select``.

        Parameters
        ----------
        actions : array_like, shape (n, K, d), or sequence of n (K_i, d)
            Features of each user's actions; users may have different numbers of actions, dense or
            sparse.

        Returns
        -------
        ndarray of int64, shape (n,)
            Index of each user's choice.

        Raises
        ------
        InputError
            For other shapes, a user without actions, and features that are not finite.
        """
        if isinstance(actions, np.ndarray) and actions.ndim == 3:
            model, d = self._model(), self.dimension
            index = checked.argmax(actions, model.w, model.theta, self.confidence_radius, 0.0, True)
            if index is not None and actions.shape[2] == d:
                rows = np.take_along_axis(actions, index[:, None, None], axis=1)
                self._chosen = rows.reshape(-1, d).astype(np.float64)
                return np.asarray(index)
        if is_sparse(actions) or not hasattr(actions, "__len__"):
            raise InputError(
                "actions must have shape (n, K, d), or be a sequence of the actions (K, d) of "
                f"each user, got {show(actions)}"
            )
        users: Any = actions
        if not is_sparse(users[0] if len(users) else users) and np.ndim(users[:1]) == 2:
            raise InputError(
                f"actions must have shape (n, K, {self.dimension}), the actions of n users, got "
                f"{np.shape(users)}: select chooses for one"
            )
        chosen, index = np.empty((len(users), self.dimension)), np.empty(len(users), np.int64)
        for i, row in enumerate(chosen):
            index[i] = self._best(users[i], row)
        self._chosen = chosen
        return index

    # ---- learning --------------------------------------------------------------------------------

    def observe(self, reward: float, action: object = None) -> None:
        """Learn a reward.

        Parameters
        ----------
        reward : float
            The reward.
        action : array_like, shape (d,), optional
            Features of the action played; by default those of the action last selected.

        Raises
        ------
        InputError
            If no action was selected or given, or several were selected.
        """
        if action is not None:
            x = self._features(action)
        elif self._chosen is None:
            raise InputError("observe needs a select before it, or the action's features")
        elif len(self._chosen) != 1:
            raise InputError(
                f"observe learns one reward, {len(self._chosen)} actions were selected: "
                "use observe_many"
            )
        else:
            x = self._row if self._chosen is self._one else self._chosen[0]
        if self._sums is not None or not checked.update(
            self._estimate.w, self._estimate.theta, x, reward, True
        ):
            self._learn(x, number("reward", reward))
        self._chosen = None
        self.round += 1

    def observe_many(self, rewards: object, actions: object = None) -> None:
        """Learn n rewards, in order: as n calls of ``observe``, bit for bit.

        Parameters
        ----------
        rewards : array_like, shape (n,)
            The rewards.
        actions : array_like or sparse, shape (n, d), optional
            Features of the actions played; by default those that ``select_many`` chose.

        Raises
        ------
        InputError
            If no actions were selected or given, or another number of them, or an action's width
            ||x||_{V^-1} is above 1e75; nothing is learned then.
        """
        y = array("rewards", rewards, ndim=1)
        if actions is None and self._chosen is None:
            raise InputError("observe_many needs a select_many before it, or the actions' features")
        given = self._chosen if actions is None else actions
        if is_sparse(given):
            blocks: Iterator[np.ndarray] = dense_blocks("actions", given, self.dimension)
            n = int(given.shape[0])  # type: ignore[attr-defined]
        else:
            dense = array("actions", given, shape=(None, self.dimension))
            blocks, n = iter([dense]), len(dense)
        if len(y) != n:
            raise InputError(f"rewards must have shape ({n},), one for each action, got {y.shape}")
        first = 0
        with self._all_or_none() if is_sparse(given) else nullcontext():
            for block in blocks:
                rows = np.ascontiguousarray(block, dtype=np.float64)
                self._learn_rows(rows, y[first : first + len(rows)])
                first += len(rows)
        self._chosen = None
        self.round += n

    def _features(self, action: object) -> np.ndarray:
        """The finite features (d,) of one action."""
        if is_sparse(action):
            (row,) = dense_blocks("action", action, self.dimension)
            if len(row) != 1:
                raise InputError(f"action must be one row, got {len(row)}")
            action = row[0]
        return array("action", action, shape=(self.dimension,))

    def _learn_rows(self, rows: np.ndarray, rewards: np.ndarray) -> None:
        model = self._estimate
        if self._sums is None and checked.update(model.w, model.theta, rows, rewards, True):
            return
        with self._all_or_none():
            for row, reward in zip(rows, rewards, strict=True):
                self._learn(np.ascontiguousarray(row), float(reward))

    @contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """Forget the rows before one that is refused."""
        model = self._estimate
        w, theta = model.w.copy(), model.theta.copy()
        try:
            yield
        except InputError:
            model.w[...], model.theta[...] = w, theta
            raise

    def _learn(self, x: np.ndarray, reward: float) -> None:
        if self._sums is None:
            model = self._estimate
            if not checked.update(model.w, model.theta, x, reward, True):
                raise InputError("action must have a width ||x||_{V^-1} of at most 1e75")
            return
        self._sums *= self.discount
        linalg.accumulate(self._sums, x, reward)
        self._stale = True

    # ---- names of other libraries ----------------------------------------------------------------

    def partial_fit(self, X: object, y: object) -> LinUCB:
        """Learn more rows, as scikit-learn names it: ``observe_many(y, X)``.

        Parameters
        ----------
        X : array_like or sparse, shape (n, d)
            Features of the actions played.
        y : array_like, shape (n,)
            Their rewards.

        Returns
        -------
        LinUCB
            The agent itself.

        Raises
        ------
        InputError
            For shapes that do not agree, values that are not finite, and rows whose width
            ||x||_{V^-1} is above 1e75.
        """
        if not is_sparse(X):
            X = array("X", X, shape=(None, self.dimension))
        self.observe_many(array("y", y, ndim=1), X)
        return self

    def fit(self, X: object, y: object) -> LinUCB:
        """Forget everything, then learn rows X, shape (n, d), with rewards y, shape (n,).

        Parameters, result and errors are those of ``partial_fit``; after an error the agent is what
        it was.
        """
        held = self.__dict__.copy()
        self._forget()
        try:
            return self.partial_fit(X, y)
        except InputError:
            self.__dict__.update(held)
            raise

    def predict(self, X: object) -> np.ndarray:
        """Estimate the expected reward <x, theta_hat> of rows X, as scikit-learn names it.

        mabwiser's ``predict``, the arm to play, is ``select``; its ``predict_expectations`` are
        ``scores``.

        Parameters
        ----------
        X : array_like or sparse, shape (n, d)
            Features.

        Returns
        -------
        ndarray, shape (n,)

        Raises
        ------
        InputError
            For another shape and values that are not finite.
        """
        theta = self._model().theta
        if is_sparse(X):
            blocks = dense_blocks("X", X, self.dimension)
            return np.concatenate([np.empty(0), *(block @ theta for block in blocks)])
        return array("X", X, shape=(None, self.dimension)) @ theta

    # ---- offline evaluation ----------------------------------------------------------------------

    def replay(
        self,
        contexts: ArrayLike | Sequence[ArrayLike],
        actions: ArrayLike,
        rewards: ArrayLike,
        propensities: ArrayLike | None = None,
        *,
        learn: bool = True,
        confidence: float = 0.95,
    ) -> Replayed:
        """Replay the log of another policy, to estimate what this one would have earned.

        Round by round the agent chooses; where the log holds that choice's reward, it learns it.
        The rest of the log is not used. The agent is changed unless ``learn`` is false; the
        estimates are of raw rewards, which no certificate covers.

        Parameters
        ----------
        contexts : array_like, shape (n, K, d), or sequence of n (K_i, d)
            Features of every action of each round, dense or sparse.
        actions : array_like of int, shape (n,)
            The logged actions.
        rewards : array_like, shape (n,)
            Their rewards.
        propensities : array_like, shape (n,), optional
            The logging policy's probabilities of the logged actions; by default it was uniform.
        learn : bool, default True
            False: the agent stays as it is, and so does what is evaluated.
        confidence : float, default 0.95
            Two-sided confidence level of the estimates' intervals.

        Returns
        -------
        Replayed
            The choices and the estimates.

        Raises
        ------
        InputError
            For shapes that do not agree and values out of range, before anything is learned.

        Notes
        -----
        Source: Li, Chu, Langford and Wang 2011, Algorithm 2 (an event is kept if the choice is the
        logged one); estimators: `fastfed.off_policy`.
        """
        learn = boolean("learn", learn)
        if is_sparse(contexts) or not hasattr(contexts, "__len__"):
            raise InputError(
                "contexts must have shape (n, K, d), or be a sequence of the actions (K, d) of "
                f"each round, got {show(contexts)}"
            )
        offered: Any = contexts
        n = len(offered)
        if n < 2:
            raise InputError(f"contexts must hold at least 2 rounds, got {n}")
        logged = array("actions", actions, shape=(n,))
        y = array("rewards", rewards, shape=(n,))
        sizes = np.array([_action_count(each, i) for i, each in enumerate(offered)])
        if not ((logged == np.floor(logged)) & (logged >= 0) & (logged < sizes)).all():
            i = int(np.argmax((logged != np.floor(logged)) | (logged < 0) | (logged >= sizes)))
            raise InputError(
                f"actions must be integers from 0 to K - 1, got {logged[i]:g} of {sizes[i]} "
                f"at index {i}"
            )
        if propensities is None:
            chances = 1.0 / sizes
        else:
            chances = array("propensities", propensities, shape=(n,))
        # Looks at the values before anything is learned: a policy that never matches will do.
        _one_hot(np.zeros(n, bool), y, chances, confidence)
        chosen = np.empty(n, np.int64)
        row = np.empty(self.dimension)
        held = copy.deepcopy(self.__dict__)
        try:
            for t in range(n):
                chosen[t] = self._best(offered[t], row)
                if learn and chosen[t] == logged[t]:
                    self.observe(float(y[t]), row)
        except InputError:
            self.__dict__.update(held, _row=self._row, _one=self._one)
            raise
        matched = chosen == logged
        weighted = _one_hot(matched, y, chances, confidence)
        return Replayed(
            actions=chosen,
            matched=matched,
            mean_reward=float(y[matched].mean()) if matched.any() else math.nan,
            inverse_propensity=weighted,
            self_normalised=_one_hot(matched, y, chances, confidence, off_policy.self_normalised)
            if matched.any()
            else None,
        )

    # ---- files -----------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the agent as one file, which `LinUCB.load` reads.

        The file is NumPy's .npz without pickles. It is written beside its place and moved there, so
        that a crash leaves the old file or the new one.

        Parameters
        ----------
        path : path-like
            The file, whatever its suffix.

        Raises
        ------
        InputError
            Where it cannot be written; the old file then stays.
        """
        model = self._model()
        said = {
            "format": FORMAT,
            "version": VERSION,
            "round": self.round,
            **{name: getattr(self, name) for name in _PARAMETERS},
        }
        arrays = {
            "about": np.array(json.dumps(said)),
            "factor": model.w,
            "theta": model.theta,
            "sums": np.empty(0) if self._sums is None else self._sums,
            "chosen": np.empty((0, self.dimension)) if self._chosen is None else self._chosen,
        }
        made = io.BytesIO()
        np.savez(made, **arrays)  # type: ignore[arg-type]
        write_whole(Path(path), made.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LinUCB:
        """Load an agent that `save` wrote; it goes on bit for bit.

        Parameters
        ----------
        path : path-like
            The file.

        Returns
        -------
        LinUCB

        Raises
        ------
        InputError
            For a file that cannot be read, is none of LinUCB's, or of a later version.
        """
        try:
            with np.load(path, allow_pickle=False) as held:
                names = "about", "factor", "theta", "sums", "chosen"
                arrays = {name: held[name] for name in names}
            said = json.loads(str(arrays["about"]))
            if said.get("format") != FORMAT:
                raise KeyError("format")
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
        except Exception:  # a damaged file may make NumPy raise anything
            raise InputError(f"{path} is no file of LinUCB.save, or a damaged one") from None
        if said.get("version") != VERSION:
            raise InputError(
                f"{path} has version {show(said.get('version'))}, this fastfed reads {VERSION}: "
                "load it with the fastfed that saved it"
            )
        try:
            agent = cls(**{name: said[name] for name in _PARAMETERS})
            agent._restore(integer("round", said["round"], at_least=0), arrays)
        except (KeyError, InputError) as error:
            raise InputError(f"{path} is damaged: {error}") from None
        return agent

    def _restore(self, rounds: int, arrays: dict[str, np.ndarray]) -> None:
        """Take what a file holds, once it is fit."""
        d = self.dimension
        factor = array("factor", arrays["factor"], shape=(d, d))
        if np.triu(factor, 1).any() or not factor.diagonal().min() > 0.0:
            raise InputError("factor must be lower triangular with a positive diagonal")
        theta = array("theta", arrays["theta"], shape=(d,))
        chosen = array("chosen", arrays["chosen"], shape=(None, d))
        if self._sums is not None:
            self._sums = array("sums", arrays["sums"], shape=self._sums.shape).copy()
        self._estimate.w, self._estimate.theta = factor.copy(), theta.copy()
        self._chosen = chosen.copy() if len(chosen) else None
        self.round = rounds


_PARAMETERS = (
    "dimension",
    "regularizer",
    "failure_probability",
    "reward_scale",
    "radius_multiplier",
    "discount",
)


# ---- sparse rows ---------------------------------------------------------------------------------


def is_sparse(value: object) -> bool:
    """True for a sparse matrix or array of SciPy, which need not be loaded for this."""
    return type(value) is not np.ndarray and hasattr(value, "tocsr")


def dense_blocks(name: str, rows: Any, dimension: int) -> Iterator[np.ndarray]:
    """Sparse rows (n, d) as dense blocks of about `BLOCK` entries; InputError if they do not fit.

    float32 stays float32, every other type becomes float64.
    """
    if rows.ndim != 2 or rows.shape[1] != dimension:
        raise InputError(f"{name} must have shape (any, {dimension}), got {rows.shape}")
    if name == "actions" and not rows.shape[0]:
        raise InputError(f"actions must hold at least one action, got shape {rows.shape}")
    held = rows.tocsr()
    if np.iscomplexobj(held.data):
        raise InputError(f"{name} must be real, got {held.dtype}")
    if not np.isfinite(held.data).all():
        odd = held.data[~np.isfinite(held.data)][0]
        raise InputError(f"{name} must be finite, got {odd} among the stored entries")
    dtype = np.float32 if held.dtype == np.float32 else np.float64
    step = max(1, BLOCK // dimension)
    return (
        held[first : first + step].toarray().astype(dtype, copy=False)
        for first in range(0, held.shape[0], step)
    )


# ---- helpers of replay and save ------------------------------------------------------------------


def _action_count(actions: Any, index: int) -> int:
    """K of the actions of one logged round."""
    shape = actions.shape if hasattr(actions, "shape") else np.shape(actions)
    if len(shape) != 2 or not shape[0]:
        raise InputError(f"contexts must hold actions (K, d), K >= 1, got {shape} at index {index}")
    return int(shape[0])


def _one_hot(
    matched: np.ndarray,
    rewards: np.ndarray,
    propensities: np.ndarray,
    confidence: float,
    estimator: Any = off_policy.inverse_propensity,
) -> off_policy.PolicyValue:
    """Estimate the value of choices: the logged action was chosen, or another one was."""
    policy = np.stack([matched, ~matched], axis=1).astype(np.float64)
    logged = np.zeros(len(matched), np.int64)
    made: off_policy.PolicyValue = estimator(
        logged, rewards, propensities, policy, confidence=confidence
    )
    return made
