"""`LinUCB` as a standalone agent for other tools, with replay of logs and saving to files."""

from __future__ import annotations

import copy
import io
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fastfed import off_policy
from fastfed._display import Located
from fastfed._files import write_whole
from fastfed._kernels import checked, linalg
from fastfed._memory import available, format_size
from fastfed._validate import (
    InputError,
    array,
    axes,
    boolean,
    integer,
    is_list,
    number,
    reward_number,
    show,
    unknown_argument,
    unmasked,
    with_example,
)
from fastfed.bandits.linucb import Estimate, check_actions

#: Sparse rows are converted to dense blocks of about this many entries.
MAX_BLOCK_ENTRIES = 2**17
#: Name and version of the format of saved files.
FORMAT, VERSION = "LinUCB of fastfed", 1


@dataclass(frozen=True)
class Replayed:
    """Result of `LinUCB.replay`: the agent's choices and estimates of its mean reward.

    Attributes
    ----------
    actions : ndarray of int64, shape (n,)
        Index of the action that the agent chose in each round of the log.
    matched : ndarray of bool, shape (n,)
        True in rounds in which the agent chose the logged action, whose reward is known.
    mean_reward : float
        Mean logged reward of the matched rounds. If the logging policy was uniform, it is an
        unbiased estimate of the reward per round of the agent that learns from these rounds (Li et
        al. 2011). NaN if no round matched.
    inverse_propensity, self_normalised : PolicyValue or None
        Off-policy estimates for any logging policy, see `fastfed.off_policy`. If the agent learns
        during the replay, they estimate its mean reward over the rounds of the log.
        Both are None if no round matched.
    """

    actions: np.ndarray
    matched: np.ndarray
    mean_reward: float
    inverse_propensity: off_policy.PolicyValue | None
    self_normalised: off_policy.PolicyValue | None


def _bytes_of(dimension: int) -> int:
    """Return the bytes that an agent with d features needs for its Cholesky factor and its sums."""
    # 8 d^2 for the factor, and 4 d^2 for the lower triangle of the sums.
    return 12 * dimension**2


class LinUCB(Located):
    """A LinUCB agent (Abbasi-Yadkori et al. 2011) without privacy, for use in other tools.

    Every call passes the features of the actions, so the number of actions may change from round to
    round. Features may be float32 or sparse (any SciPy format). Sparse rows are converted to dense
    blocks.

    Parameters
    ----------
    dimension : int
        d, the length of a feature vector.
    regularizer : float, default 1
        lambda > 0.
    failure_probability : float, default 0.01
        alpha, in (0, 1).
    reward_scale : float, default 0.5
        R, the sub-Gaussian scale of the reward noise. It is 1/2 for rewards in [0, 1].
    radius_multiplier : float, default 1
        Factor on the confidence radius. The radius is proven for factor 1, ||theta*|| <= 1 and
        ||x|| <= 1.
    discount : float, default 1
        gamma in (0, 1]: each new row multiplies the weight of all earlier rows by gamma, so the
        agent forgets (Russac et al. 2019, D-LinUCB, with the larger bonus ||x||_{V^-1}). The radius
        is proven if theta* does not change. With gamma < 1 learning a row takes O(d^3) time instead
        of O(d^2).

    Raises
    ------
    InputError
        For an invalid value, or a dimension whose matrices do not fit into the available memory.
        The message names the parameter.

    Examples
    --------
    >>> agent = LinUCB(dimension=2)
    >>> a = agent.select([[1.0, 0.0], [0.0, 1.0]])
    >>> agent.observe(reward=1.0)
    """

    @with_example("LinUCB(dimension=3)")
    def __init__(
        self,
        dimension: int,
        *,
        regularizer: float = 1.0,
        failure_probability: float = 0.01,
        reward_scale: float = 0.5,
        radius_multiplier: float = 1.0,
        discount: float = 1.0,
        **others: object,
    ) -> None:
        for name in others:
            raise TypeError(f"LinUCB: {unknown_argument(name, _PARAMETERS)}")
        self.dimension = integer("dimension", dimension, at_least=1)
        # Query the available memory only for large dimensions, because the query takes time.
        needed_bytes, limit_bytes = _bytes_of(self.dimension), None
        if needed_bytes > 10**9:
            limit_bytes = available()
        if limit_bytes is not None and needed_bytes > limit_bytes:
            raise InputError(
                f"dimension = {self.dimension} needs about {format_size(needed_bytes)} for "
                f"matrices of d rows and columns, and {format_size(limit_bytes)} are available: "
                "use fewer features"
            )
        self.regularizer = number("regularizer", regularizer, above=0.0)
        self.failure_probability = number(
            "failure_probability", failure_probability, above=0.0, below=1.0
        )
        self.reward_scale = number("reward_scale", reward_scale, at_least=0.0)
        self.radius_multiplier = number("radius_multiplier", radius_multiplier, at_least=0.0)
        self.discount = number("discount", discount, above=0.0, at_most=1.0)
        self._forget()

    def _forget(self) -> None:
        """Reset the agent to its state before the first round."""
        d = self.dimension
        self.round = 0
        self._estimate = Estimate(d, self.regularizer)
        # With a discount, rows are added to `_sums`; `_stale` is true until the estimate is
        # recomputed from them.
        self._sums = None if self.discount == 1.0 else np.zeros(d + d * (d + 1) // 2)
        self._stale = False
        # `_chosen` holds the features (n, d) of selected actions whose rewards have not been
        # observed. After `select` it is `_row_2d`, a view of the reused buffer `_row`.
        self._row = np.empty(d)
        self._row_2d = self._row[None]
        self._chosen: np.ndarray | None = None

    def where_is(self, name: str) -> str:
        """Return the call that replaces the method ``name`` of other libraries, such as "act".

        Return "" for names that no other library uses. Error messages show the result.
        """
        calls_by_name = {
            **dict.fromkeys(("choose", "act", "recommend", "pull"), "agent.select(actions)"),
            **dict.fromkeys(("update", "learn"), "agent.observe(reward)"),
            **dict.fromkeys(("predict_expectations", "predict_proba"), "agent.scores(actions)"),
        }
        return calls_by_name.get(name, "")

    # ---- parameters, by the protocol of scikit-learn ---------------------------------------------

    def __repr__(self) -> str:
        """Return the call that makes a new agent with these parameters.

        A comment after the call says how many rounds this agent has learned.
        """
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in _PARAMETERS)
        rounds = f"  # {self.round} round" + "s" * (self.round != 1)
        return f"LinUCB({values})" + rounds * (self.round > 0)

    def get_params(self, deep: bool = True) -> dict[str, float]:
        """Return the arguments of the constructor. `sklearn.base.clone` uses them to copy an agent.

        Parameters
        ----------
        deep : bool
            Without effect, because no argument of this agent is an estimator.

        Returns
        -------
        dict
            Name -> value.
        """
        return {name: getattr(self, name) for name in _PARAMETERS}

    def set_params(self, **parameters: Any) -> LinUCB:
        """Change arguments of the constructor. The agent forgets what it has learned.

        Parameters
        ----------
        **parameters
            Name -> value.

        Returns
        -------
        LinUCB
            This agent.

        Raises
        ------
        InputError
            For an unknown name or an invalid value. The agent is then unchanged.
        """
        # The constructor checks all values before anything changes.
        self.__dict__.update(LinUCB(**{**self.get_params(), **parameters}).__dict__)
        return self

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's description of an estimator: a regressor that accepts sparse X."""
        from sklearn.utils import InputTags, RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=True),
            regressor_tags=RegressorTags(),
            input_tags=InputTags(sparse=True),
            requires_fit=False,
        )

    def __sklearn_is_fitted__(self) -> bool:
        """Return True: before the first reward, the agent predicts 0."""
        return True

    # ---- the model -------------------------------------------------------------------------------

    @property
    def theta(self) -> np.ndarray:
        """The ridge regression estimate theta_hat, shape (d,)."""
        return self._model().theta.copy()

    @property
    def confidence_radius(self) -> float:
        """The confidence radius beta of the next round.

        Source: Abbasi-Yadkori et al. (2011), Theorem 2, with the trace of V instead of its
        determinant. With a discount: Russac et al. (2019), Theorem 1.
        """
        squared_discount, row_count = self.discount**2, float(self.round)
        if squared_discount < 1.0:
            # The sum of the squared weights of all rows.
            row_count = (1.0 - squared_discount**self.round) / (1.0 - squared_discount)
        return linalg.radius_at(
            self.radius_multiplier,
            self.reward_scale,
            2.0 * math.log(1.0 / self.failure_probability),
            math.sqrt(self.regularizer),
            self.regularizer,
            row_count,
            self.dimension,
        )

    def _model(self) -> Estimate:
        """Return the current estimate.

        With a discount, the estimate is recomputed first if rows were added since the last call.
        """
        if self._stale:
            assert self._sums is not None
            self._estimate.refresh(self._sums, self.regularizer)
            self._stale = False
        return self._estimate

    # ---- choices ---------------------------------------------------------------------------------

    def scores(self, actions: object) -> np.ndarray:
        """Return the upper confidence bound of each action.

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
            If the shape is wrong, there are no actions, or features are not finite.
        """
        model = self._model()
        if is_sparse(actions):
            blocks = dense_blocks("actions", actions, self.dimension)
            return np.concatenate([self.scores(block) for block in blocks])
        model_numbers = model.w, model.theta, self.confidence_radius
        # The compiled function returns None for arguments that Python must convert or refuse.
        scores = checked.scores(actions, *model_numbers, 0.0, True)
        if scores is None or scores.ndim != 1:
            scores = linalg.scores(check_actions(actions, self.dimension), *model_numbers, 0.0)
        if not np.isfinite(scores).all():
            raise InputError("actions must be smaller: their scores overflow a float64")
        return scores

    def select(self, actions: object) -> int:
        """Choose an action. Pass its reward to ``observe``.

        Parameters
        ----------
        actions : array_like or sparse, shape (K, d)
            Features, K >= 1.

        Returns
        -------
        int
            Index of the largest upper confidence bound, the lowest index in case of a tie.

        Raises
        ------
        InputError
            If the shape is wrong, there are no actions, or features are not finite.
        """
        index = self._best(actions, self._row)
        self._chosen = self._row_2d
        return index

    def _best(self, actions: object, chosen: np.ndarray) -> int:
        """Return the index of the best action, and write its features (d,) into ``chosen``."""
        model = self._model()
        # The compiled function returns None for arguments that Python must convert or refuse.
        fast_index = checked.choose(actions, model.w, model.theta, self.confidence_radius, chosen)
        if fast_index is not None:
            return fast_index
        if is_sparse(actions):
            return self._best_sparse(actions, chosen)
        dense_actions = check_actions(actions, self.dimension)
        index, chosen[:] = model.select(dense_actions, self.confidence_radius)
        return index

    def _best_sparse(self, actions: Any, chosen: np.ndarray) -> int:
        """Return the index of the best of sparse actions, and write its features into ``chosen``.

        Actions are converted to dense blocks. The bits of a score do not depend on the block, so
        the choice equals the choice among dense actions.
        """
        best_score, index, block_start = -math.inf, 0, 0
        for block in dense_blocks("actions", actions, self.dimension):
            scores = self.scores(block)
            best_in_block = int(scores.argmax())
            if scores[best_in_block] > best_score:
                best_score, index = float(scores[best_in_block]), block_start + best_in_block
                chosen[:] = block[best_in_block]
            block_start += len(block)
        return index

    def select_many(self, actions: ArrayLike | Sequence[ArrayLike]) -> np.ndarray:
        """Choose an action for each of n users with the current model.

        For each user the choice equals that of ``select``. Pass the rewards to ``observe_many``.

        Parameters
        ----------
        actions : array_like, shape (n, K, d), or sequence of n (K_i, d)
            Features of each user's actions. In a sequence, users may have different numbers of
            actions, dense or sparse.

        Returns
        -------
        ndarray of int64, shape (n,)
            Index of each user's chosen action.

        Raises
        ------
        InputError
            If the shape is wrong, a user has no actions, or features are not finite.
        """
        if isinstance(actions, np.ndarray) and actions.ndim == 3:
            model, d = self._model(), self.dimension
            index = checked.argmax(actions, model.w, model.theta, self.confidence_radius, 0.0, True)
            if index is not None and actions.shape[2] == d:
                rows = np.take_along_axis(actions, index[:, None, None], axis=1)
                self._chosen = rows.reshape(-1, d).astype(np.float64)
                return np.asarray(index)
        actions = unmasked("actions", actions)
        if is_sparse(actions) or not is_list(actions):
            raise InputError(
                "actions must have shape (n, K, d), or be a sequence of the actions (K, d) of "
                f"each user, got {show(actions)}"
            )
        users: Any = actions
        if not is_sparse(users[0] if len(users) else users) and axes("actions", users[:1]) == 2:
            raise InputError(
                f"actions must have shape (n, K, {self.dimension}), the actions of n users, got "
                f"{np.shape(users)}: use select for one user"
            )
        chosen, index = np.empty((len(users), self.dimension)), np.empty(len(users), np.int64)
        for i, chosen_row in enumerate(chosen):
            index[i] = self._best(users[i], chosen_row)
        self._chosen = chosen
        return index

    # ---- learning --------------------------------------------------------------------------------

    def observe(self, reward: float, action: object = None) -> None:
        """Learn the reward of one action.

        Parameters
        ----------
        reward : float
            The observed reward.
        action : array_like, shape (d,), optional
            Features of the rewarded action. The default is the action that ``select`` chose.

        Raises
        ------
        InputError
            If ``action`` is not given and not exactly one action was selected, or if a value is not
            finite.
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
            x = self._row if self._chosen is self._row_2d else self._chosen[0]
        if self._sums is not None or not checked.update(
            self._estimate.w, self._estimate.theta, x, reward, True
        ):
            self._learn(x, reward_number("reward", reward))
        self._chosen = None
        self.round += 1

    def observe_many(self, rewards: object, actions: object = None) -> None:
        """Learn n rewards, with the same bits as n calls of ``observe`` in this order.

        Parameters
        ----------
        rewards : array_like, shape (n,)
            The rewards.
        actions : array_like or sparse, shape (n, d), optional
            Features of the rewarded actions. The default is the actions that ``select_many`` chose.

        Raises
        ------
        InputError
            If no actions were selected or given, if there is not one reward for each action, or if
            the width ||x||_{V^-1} of an action is above 1e75. After an error nothing is learned.
        """
        y = array("rewards", rewards, ndim=1)
        if actions is None and self._chosen is None:
            raise InputError("observe_many needs a select_many before it, or the actions' features")
        rewarded_actions = self._chosen if actions is None else actions
        if is_sparse(rewarded_actions):
            blocks: Iterator[np.ndarray] = dense_blocks("actions", rewarded_actions, self.dimension)
            n = int(rewarded_actions.shape[0])  # type: ignore[attr-defined]
        else:
            dense_actions = array("actions", rewarded_actions, shape=(None, self.dimension))
            blocks, n = iter([dense_actions]), len(dense_actions)
        if len(y) != n:
            raise InputError(f"rewards must have shape ({n},), one for each action, got {y.shape}")
        block_start = 0
        with self._all_or_none() if is_sparse(rewarded_actions) else nullcontext():
            for block in blocks:
                rows = np.ascontiguousarray(block, dtype=np.float64)
                self._learn_rows(rows, y[block_start : block_start + len(rows)])
                block_start += len(rows)
        self._chosen = None
        self.round += n

    def _features(self, action: object) -> np.ndarray:
        """Return the features (d,) of one dense or sparse action, checked to be finite."""
        if is_sparse(action):
            (row,) = dense_blocks("action", action, self.dimension)
            if len(row) != 1:
                raise InputError(f"action must be one row, got {len(row)}")
            action = row[0]
        return array("action", action, shape=(self.dimension,))

    def _learn_rows(self, rows: np.ndarray, rewards: np.ndarray) -> None:
        """Learn rows (n, d) with rewards (n,), or none of the rows if one is refused."""
        model = self._estimate
        if self._sums is None and checked.update(model.w, model.theta, rows, rewards, True):
            return
        with self._all_or_none():
            for row, reward in zip(rows, rewards, strict=True):
                self._learn(np.ascontiguousarray(row), float(reward))

    @contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """Return a context that restores the model if its body raises InputError."""
        model = self._estimate
        w, theta = model.w.copy(), model.theta.copy()
        try:
            yield
        except InputError:
            model.w[...], model.theta[...] = w, theta
            raise

    def _learn(self, x: np.ndarray, reward: float) -> None:
        """Add one row x (d,) with its reward to the model."""
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
        """Learn more rows: ``observe_many(y, X)`` under scikit-learn's name.

        Parameters
        ----------
        X : array_like or sparse, shape (n, d)
            Features of the chosen actions.
        y : array_like, shape (n,)
            Rewards of these actions.

        Returns
        -------
        LinUCB
            The agent itself.

        Raises
        ------
        InputError
            If the shapes do not agree, a value is not finite, or the width ||x||_{V^-1} of a row is
            above 1e75.
        """
        if not is_sparse(X):
            X = array("X", X, shape=(None, self.dimension))
        self.observe_many(array("y", y, ndim=1), X)
        return self

    def fit(self, X: object, y: object) -> LinUCB:
        """Forget everything, then learn rows X (n, d) with rewards y (n,). Return the agent.

        Parameters, return value and errors are those of ``partial_fit``. After an error the agent
        is unchanged.
        """
        state_before = self.__dict__.copy()
        self._forget()
        try:
            return self.partial_fit(X, y)
        except InputError:
            self.__dict__.update(state_before)
            raise

    def predict(self, X: object) -> np.ndarray:
        """Return the estimated mean reward <x, theta_hat> of each row of X.

        The name follows scikit-learn. mabwiser has a method ``predict`` that returns an arm: it is
        called ``select`` here, and mabwiser's ``predict_expectations`` is called ``scores``.

        Parameters
        ----------
        X : array_like or sparse, shape (n, d)
            Features.

        Returns
        -------
        ndarray, shape (n,)
            Zeros before the first reward: without data, theta_hat = 0.

        Raises
        ------
        InputError
            If the shape is wrong or a value is not finite.
        """
        theta = self._model().theta
        if is_sparse(X):
            blocks = dense_blocks("X", X, self.dimension)
            return np.concatenate([np.empty(0), *(block @ theta for block in blocks)])
        return array("X", X, shape=(None, self.dimension)) @ theta

    def score(self, X: object, y: object) -> float:
        """Return the coefficient of determination R^2 of the predictions ``predict(X)``.

        The method ``score`` of scikit-learn's regressors returns the same number.

        Parameters
        ----------
        X : array_like or sparse, shape (n, d)
            Features, n >= 1.
        y : array_like, shape (n,)
            Rewards.

        Returns
        -------
        float
            1 - sum (y - predict(X))^2 / sum (y - mean(y))^2. If all rewards are equal: 1 if the
            predictions are exact, else 0.

        Raises
        ------
        InputError
            If the shapes do not agree, there are no rows, or a value is not finite.
        """
        predicted = self.predict(X)
        rewards = array("y", y, shape=predicted.shape)
        if not len(rewards):
            raise InputError("X must have at least one row, got none")
        residual = float(((rewards - predicted) ** 2).sum())
        total = float(((rewards - rewards.mean()) ** 2).sum())
        return 1.0 - residual / total if total > 0.0 else float(residual == 0.0)

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
        largest_reward: float | None = None,
    ) -> Replayed:
        """Replay the log of another policy, and estimate the mean reward of this agent.

        In each round of the log the agent chooses an action. If this is the logged action, the
        agent learns the logged reward. The rewards of all other rounds are ignored. The agent
        changes unless ``learn`` is false. The estimates are computed from raw rewards and are not
        private.

        Parameters
        ----------
        contexts : array_like, shape (n, K, d), or sequence of n (K_i, d)
            Features of every action of each round, dense or sparse.
        actions : array_like of int, shape (n,)
            The logged actions.
        rewards : array_like, shape (n,)
            Rewards of the logged actions.
        propensities : array_like, shape (n,), optional
            Probabilities with which the logging policy chose the logged actions. The default is a
            uniform logging policy.
        learn : bool, default True
            False to evaluate the agent as it is, without learning.
        confidence : float, default 0.95
            Two-sided confidence level of the intervals of the estimates.
        largest_reward : float, optional
            If given, rewards lie in [0, largest_reward], and ``inverse_propensity`` has the
            interval ``bounded``, which holds for any number of rewarded rounds.

        Returns
        -------
        Replayed
            The choices and the estimates.

        Raises
        ------
        InputError
            If shapes do not agree or a value is out of range. After an error nothing is learned.

        Notes
        -----
        Source: Li, Chu, Langford and Wang 2011, Algorithm 2 (an event is used only if the choice is
        the logged action). The estimators are in `fastfed.off_policy`.
        """
        learn = boolean("learn", learn)
        contexts = unmasked("contexts", contexts)
        if is_sparse(contexts) or not is_list(contexts):
            raise InputError(
                "contexts must have shape (n, K, d), or be a sequence of the actions (K, d) of "
                f"each round, got {show(contexts)}"
            )
        actions_by_round: Any = contexts
        n = len(actions_by_round)
        if n and axes("contexts", actions_by_round[0]) == 1:
            raise InputError(
                "contexts must have shape (n, K, d), the actions of each round, got rows "
                f"{np.shape(actions_by_round[0])}: if all rounds have the same actions, write "
                "[actions] * n"
            )
        if n < 2:
            raise InputError(f"contexts must hold at least 2 rounds, got {n}")
        logged = array("actions", actions, shape=(n,))
        logged_rewards = array("rewards", rewards, shape=(n,))
        counts = np.array(
            [_action_count(features, i) for i, features in enumerate(actions_by_round)]
        )
        if not ((logged == np.floor(logged)) & (logged >= 0) & (logged < counts)).all():
            i = int(np.argmax((logged != np.floor(logged)) | (logged < 0) | (logged >= counts)))
            raise InputError(
                f"actions must be integers from 0 to K - 1 = {counts[i] - 1}, got {logged[i]:g} at "
                f"index {i}: they are indices of actions, counted from 0"
            )
        if propensities is None:
            logged_probabilities = 1.0 / counts
        else:
            logged_probabilities = array("propensities", propensities, shape=(n,))
        # Estimate the value of a policy that always matches the log, only to check all arguments
        # before anything is learned.
        inverse_propensity = partial(off_policy.inverse_propensity, largest_reward=largest_reward)
        _value_of_choices(
            np.ones(n, bool), logged_rewards, logged_probabilities, confidence, inverse_propensity
        )
        chosen = np.empty(n, np.int64)
        chosen_row = np.empty(self.dimension)
        state_before = copy.deepcopy(self.__dict__)
        try:
            for t in range(n):
                chosen[t] = self._best(actions_by_round[t], chosen_row)
                if learn and chosen[t] == logged[t]:
                    self.observe(float(logged_rewards[t]), chosen_row)
        except InputError as error:
            self.__dict__.update(state_before, _row=self._row, _row_2d=self._row_2d)
            raise InputError(f"contexts, index {t}: {error}") from None
        matched = chosen == logged
        values = [
            _value_of_choices(matched, logged_rewards, logged_probabilities, confidence, estimator)
            if matched.any()
            else None
            for estimator in (inverse_propensity, off_policy.self_normalised)
        ]
        return Replayed(
            actions=chosen,
            matched=matched,
            mean_reward=float(logged_rewards[matched].mean()) if matched.any() else math.nan,
            inverse_propensity=values[0],
            self_normalised=values[1],
        )

    # ---- files -----------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the agent to one file, which `LinUCB.load` reads.

        The file is a NumPy .npz file without pickles. A temporary file is written first and then
        renamed, so a crash leaves the complete old file or the complete new file.

        Parameters
        ----------
        path : path-like
            The file. It may have any suffix.

        Raises
        ------
        InputError
            If the file cannot be written. An existing file is then unchanged.
        """
        model = self._model()
        header = {
            "format": FORMAT,
            "version": VERSION,
            "round": self.round,
            **{name: getattr(self, name) for name in _PARAMETERS},
        }
        arrays = {
            "about": np.array(json.dumps(header)),
            "factor": model.w,
            "theta": model.theta,
            "sums": np.empty(0) if self._sums is None else self._sums,
            "chosen": np.empty((0, self.dimension)) if self._chosen is None else self._chosen,
        }
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        write_whole(Path(path), buffer.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LinUCB:
        """Return the agent in a file that `save` wrote. It continues as the saved agent would.

        Parameters
        ----------
        path : path-like
            The file.

        Returns
        -------
        LinUCB
            An agent with the parameters and the state of the saved agent, bit for bit.

        Raises
        ------
        InputError
            If the file cannot be read, was not written by `save`, is damaged, or has a different
            format version.
        """
        try:
            with np.load(path, allow_pickle=False) as npz:
                names = "about", "factor", "theta", "sums", "chosen"
                arrays = {name: npz[name] for name in names}
            header = json.loads(str(arrays["about"]))
            if header.get("format") != FORMAT:
                raise KeyError("format")
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
        except Exception:  # a damaged file may make NumPy raise anything
            raise InputError(f"{path} is not a file of LinUCB.save, or is damaged") from None
        if header.get("version") != VERSION:
            raise InputError(
                f"{path} has version {show(header.get('version'))}, this fastfed reads {VERSION}: "
                "load it with the fastfed that saved it"
            )
        try:
            agent = cls(**{name: header[name] for name in _PARAMETERS})
            agent._restore(integer("round", header["round"], at_least=0), arrays)
        except (KeyError, InputError) as error:
            raise InputError(f"{path} is damaged: {error}") from None
        return agent

    def _restore(self, rounds: int, arrays: dict[str, np.ndarray]) -> None:
        """Set the agent's state to the arrays of a saved file, after ``rounds`` rounds.

        Raise InputError for an array whose shape or values are invalid.
        """
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
    """Return True for a sparse matrix or array of SciPy, without importing SciPy."""
    return type(value) is not np.ndarray and hasattr(value, "tocsr")


def dense_blocks(name: str, rows: Any, dimension: int) -> Iterator[np.ndarray]:
    """Return sparse rows (n, d) as dense blocks of rows, each of about `MAX_BLOCK_ENTRIES` entries.

    float32 stays float32, and every other type becomes float64. ``name`` is the argument's name in
    error messages.

    Raises
    ------
    InputError
        If the shape is wrong or an entry is complex or not finite.
    """
    if rows.ndim != 2 or rows.shape[1] != dimension:
        raise InputError(f"{name} must have shape (any, {dimension}), got {rows.shape}")
    if name == "actions" and not rows.shape[0]:
        raise InputError(f"actions must hold at least one action, got shape {rows.shape}")
    csr_rows = rows.tocsr()
    if np.iscomplexobj(csr_rows.data):
        raise InputError(f"{name} must be real, got {csr_rows.dtype}")
    if not np.isfinite(csr_rows.data).all():
        bad_value = csr_rows.data[~np.isfinite(csr_rows.data)][0]
        raise InputError(f"{name} must be finite, got {bad_value} among the stored entries")
    dtype = np.float32 if csr_rows.dtype == np.float32 else np.float64
    rows_per_block = max(1, MAX_BLOCK_ENTRIES // dimension)
    return (
        csr_rows[first : first + rows_per_block].toarray().astype(dtype, copy=False)
        for first in range(0, csr_rows.shape[0], rows_per_block)
    )


# ---- helpers of replay and save ------------------------------------------------------------------


def _action_count(actions: Any, index: int) -> int:
    """Return K, the number of actions of the logged round at this index.

    Raise InputError unless ``actions`` has the shape (K, d) with K >= 1.
    """
    if not hasattr(actions, "shape"):
        axes("contexts", actions)
    shape = actions.shape if hasattr(actions, "shape") else np.shape(actions)
    if len(shape) != 2 or not shape[0]:
        raise InputError(f"contexts must hold actions (K, d), K >= 1, got {shape} at index {index}")
    return int(shape[0])


def _value_of_choices(
    matched: np.ndarray,
    rewards: np.ndarray,
    propensities: np.ndarray,
    confidence: float,
    estimator: Any = off_policy.inverse_propensity,
) -> off_policy.PolicyValue:
    """Return an off-policy estimate of the mean reward of an agent's choices in a log's rounds.

    ``matched`` (n,) is true in rounds in which the agent chose the logged action. ``rewards`` and
    ``propensities`` (n,) are those of the logged actions. ``confidence`` is the level of the
    interval. The estimators expect the probability of each action, so each round is reduced to two
    actions: 0 is the logged action, 1 any other action.
    """
    action_probabilities = np.stack([matched, ~matched], axis=1).astype(np.float64)
    logged = np.zeros(len(matched), np.int64)
    policy_value: off_policy.PolicyValue = estimator(
        logged, rewards, propensities, action_probabilities, confidence=confidence
    )
    return policy_value
