"""Silos step by step, with a server: in batches and in phases (without one: `bandits.peer`).

Drivers and deployments run the same parties. A silo is LinUCB on what it may see, and a randomizer
for everything that leaves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fastfed._kernels import linalg
from fastfed._random import NoiseSource, SystemNoise
from fastfed._validate import InputError, Once, array, integer, number, once
from fastfed.bandits.linucb import Acting, check_actions
from fastfed.bandits.own_rounds import make_memory
from fastfed.protocols import make_randomizer
from fastfed.protocols.plan import Plan, check_plan
from fastfed.protocols.protocol import Bits, Broadcast, Report
from fastfed.protocols.release import fixed_point
from fastfed.protocols.schedule import Clock
from fastfed.protocols.secure_sum import Encoded, Encoder, SecureRandomizer
from fastfed.protocols.serverless import (
    LocalEstimate,
    Model,
    PeerPlan,
    PhasePlan,
    check_phase_plan,
    last_round,
)

# ---- With a server -------------------------------------------------------------------------------


class Silo(Acting, Once):
    """One silo of a federated linear bandit (zhou-chowdhury-2024, Algorithms 1 and 8).

    Each round: ``select(actions)``, play the action, ``observe(reward)``. When ``due`` is true,
    send ``report()`` to the server and hand its answer to ``receive``. If the plan has a trigger,
    the silo that is ``due`` first tells the others: each of them calls ``ask()`` and is due, too.
    Where users send for themselves (``User``) the silo is an agent that only acts:
    ``served()`` replaces ``observe``, and there is no report.

    Parameters
    ----------
    plan : Plan
        The curve's plan, such as ``system.plan``.
    index : int, default 0
        The silo's number, 0..M - 1.
    noise : NoiseSource, optional
        By default the operating system's generator, and no node's noise is drawn twice. Pass
        ``SeededNoise`` only to simulate.
    keys : mapping of int to bytes, optional
        With protocol "secure-sum": the key of the masks shared with each other silo, see
        `fastfed.protocols.secure_sum.Masks`. Exchange the silos' ``session`` and call ``meet``
        before the first report: a silo that is started again with these keys has other masks then.

    Attributes
    ----------
    round : int
        Rounds completed.
    release : int
        The last release received.
    clipped_features, clipped_rewards : int
        Values that were clipped so far.
    indefinite : int
        Releases whose V needed a shift to be positive definite.

    Raises
    ------
    InputError
        If the plan's numbers do not give the epsilon that it was sealed with, and for keys that
        are missing or of no use.
    """

    def __init__(
        self,
        plan: Plan | PeerPlan,
        index: int = 0,
        noise: NoiseSource | None = None,
        keys: Mapping[int, bytes] | None = None,
    ) -> None:
        plan = check_plan(plan)
        super().__init__(plan)
        self.index = integer("index", index, at_least=0, at_most=plan.silos - 1)
        self.clipped_features = self.clipped_rewards = self.indefinite = 0
        self._noise = noise if noise is not None else SystemNoise()
        self._randomizer = make_randomizer(plan, self.index, self._noise, keys)
        if plan.trigger is not None:
            own = plan.dimension, plan.horizon, self.index, self._noise
            self.trigger = Clock(plan.trigger, *own, fixed_point(plan))
        self._asked: int | None = None
        self._synchronised_at = 0
        self._refresh(np.zeros(plan.statistic_size), 0)
        self._chosen: np.ndarray | None = None
        #: Features of the actions of `select_many` whose rewards have not come.
        self._waiting: list[np.ndarray] = []
        self._own = make_memory(plan)
        #: The round whose coin was tossed last, and its 64 bits.
        self._coin = 0, 0

    @property
    def theta(self) -> np.ndarray:
        """theta_hat, (d,); in own rounds the mean of the silo's belief."""
        if self._own is not None and self.plays_own:
            return self._own.theta.copy()
        return self._estimate.theta.copy()

    @property
    def due(self) -> bool:
        """True if a report must be sent before the next round."""
        return self._required() > self._reports

    @property
    def plays_own(self) -> bool:
        """True if the next round is the silo's own, so that nothing of it is sent.

        Where a secret coin decides it is tossed here, once for each round: tell nobody outside of
        the silo.
        """
        own, round = self.plan.own, self.round + 1
        if own is None or round > own.until:
            return own is not None
        if not own.secret:
            return not own.shares(round)
        if self._coin[0] != round:
            self._coin = round, self._noise.participation(self.index, round)
        return not own.shares(round, self._coin[1])

    @property
    def session(self) -> bytes:
        """With masked messages: 32 random bytes of this object, which the other silos need."""
        return self._encoder().session

    @once
    def meet(self, sessions: Mapping[int, bytes]) -> None:
        """With masked messages: take the ``session`` of every other silo before the first report.

        Parameters
        ----------
        sessions : mapping of int to bytes
            By silo; the own one may be among them. They are not secret.

        Raises
        ------
        InputError
            Unless there is one of 32 bytes for every other silo; for others than before; after the
            first report; and where messages are not masked.
        """
        self._encoder().meet(sessions)

    def _encoder(self) -> Encoder:
        if not isinstance(self._randomizer, SecureRandomizer):
            raise InputError(
                f'sessions belong to masked messages, not to "{self.plan.protocol.id}"'
            )
        return self._randomizer.encoder

    @property
    def acts_only(self) -> bool:
        """True if users send for themselves, so that the silo sees no reward."""
        return self.plan.by_users

    @property
    def _reports(self) -> int:
        """Reports sent so far; an agent that only acts counts releases received."""
        return self.release if self.acts_only else self._randomizer.release

    @property
    def reported(self) -> bool:
        """True if a report was sent whose answer has not come back."""
        return self._reports > self.release

    @property
    def asked(self) -> int | None:
        """The round at whose end the next report is due, where a trigger fired; else None."""
        return self._asked

    @once
    def ask(self, round: int | None = None) -> None:
        """Accept another silo's request: a report is due after ``round``.

        Parameters
        ----------
        round : int, optional
            By default the current round.

        Raises
        ------
        InputError
            If the plan has no trigger, or ``round`` is over.
        """
        if self.trigger is None:
            raise InputError("ask belongs to plans with a trigger; here every batch has its length")
        if self._asked is None:
            # A leaf holds a round at least, so there are no more releases than rounds.
            earliest = max(self._synchronised_at + 1, self.round + (self._chosen is not None))
            self._asked = earliest if round is None else integer("round", round, at_least=earliest)

    def _required(self) -> int:
        """Releases that must have come back before the next round."""
        if self.trigger is None:
            return self.plan.due(self.round)
        return self.release + (self._asked is not None and self.round >= self._asked)

    @once
    def select(self, actions: object) -> int:
        """Index of the action to play for the next user.

        Parameters
        ----------
        actions : array_like, shape (K, d)
            Features of each action.

        Raises
        ------
        InputError
            If a reward, a report or a release is still due, or the plan has ended.
        """
        if self._chosen is not None or self._waiting:
            raise InputError("select was called twice; observe the reward of the last action first")
        if self._required() > self.release:
            raise InputError(
                f"silo {self.index} must report and receive release {self._required()} "
                f"before round {self.round + 1}"
            )
        if self.round == self.plan.horizon:
            raise InputError(f"the plan ends after round {self.plan.horizon}")
        checked = check_actions(actions, self.plan.dimension)
        if self.plan.policy == "random":
            chosen = self._noise.action(self.index, self.round + 1, len(checked))
            self._chosen = np.array(checked[chosen], dtype=np.float64)
            return chosen
        chosen, self._chosen = self._best(checked)
        return chosen

    @once
    def select_many(self, actions: Any) -> np.ndarray:
        """Choose for the next n users, as n calls of `select` would with `observe` between them.

        Parameters
        ----------
        actions : array_like, shape (n, K, d), or sequence of n (K_i, d)
            Features of each user's actions.

        Returns
        -------
        ndarray of int64, shape (n,)
            Indices of the actions to play; ``observe_many`` takes their rewards.

        Raises
        ------
        InputError
            As `select`; for more users than are left before the next report; and for plans whose
            model may change within a batch.
        """
        plan = self.plan
        if not plan.lazy or self.acts_only or self.trigger is not None or self._own is not None:
            raise InputError(
                "select_many needs a model that changes with releases alone, in fixed rounds: "
                "this plan's may change after any user, so use select and observe"
            )
        last = plan.end(self.release + 1) if self.release < plan.releases else plan.horizon
        if len(actions) > max(last - self.round, 1):  # one too many is `select`'s to refuse
            raise InputError(
                f"select_many can choose for {last - self.round} users before the next report or "
                f"the plan's end, got {len(actions)}"
            )
        index, rows, start = np.empty(len(actions), np.int64), [], self.round
        try:
            for i in range(len(actions)):
                self.round = start + i
                index[i] = self.select(actions[i])
                assert self._chosen is not None
                rows.append(self._chosen)
                self._chosen = None
        finally:
            self.round = start
        self._waiting = rows
        return index

    @once
    def observe_many(self, rewards: object) -> None:
        """Learn the rewards of the actions of `select_many`, in order.

        Parameters
        ----------
        rewards : array_like, shape (n,)
            The rewards.

        Raises
        ------
        InputError
            For another number of rewards, and values that are not finite; nothing is learned then.
        """
        if not self._waiting:
            raise InputError("observe_many needs a select_many before it")
        for reward in array("rewards", rewards, shape=(len(self._waiting),)):
            self._chosen = self._waiting[0]
            try:
                self.observe(float(reward))
            finally:
                self._chosen = None
            del self._waiting[0]

    def _best(self, actions: np.ndarray) -> tuple[int, np.ndarray]:
        """Index and features (d,) of the action of the largest score."""
        if self._own is not None and self.plays_own:
            radii = self._radius(), self._second_bonus
            return self._own.select(actions, self._estimate, *radii)
        return super()._best(actions)

    def _score_key(self) -> int:
        """64 uniform bits for the score function of this round."""
        return self._noise.score_key(self.index, self.round + 1)

    @once
    def observe(self, reward: float) -> None:
        """Learn the reward of the selected action; features and reward are clipped here.

        Parameters
        ----------
        reward : float
            The reward of this round.

        Raises
        ------
        InputError
            If no action was selected, or users send for themselves.
        """
        y = number("reward", reward)
        if self.acts_only:
            raise InputError(
                "observe would show the agent what only its user may see: "
                "send User(plan, number).message(x, reward), and call served()"
            )
        if self._chosen is None:
            raise InputError("observe needs a select before it")
        x, clip, outside, beyond = self._chosen.copy(), self.plan.clip, False, False
        if clip is not None:
            y, outside, beyond = clip.apply(x, y)
        self._learn(x, y)
        self._chosen = None
        self.clipped_features += outside
        self.clipped_rewards += beyond
        self.round += 1

    @once
    def served(self) -> None:
        """End a round whose user has acted and sends a message of their own."""
        if not self.acts_only:
            raise InputError("served is for plans whose users send for themselves; use observe")
        if self._chosen is None:
            raise InputError("served needs a select before it")
        self._chosen = None
        self.round += 1

    def _learn(self, x: np.ndarray, y: float) -> None:
        """Add (x, y) to trigger, randomizer and, without lazy updates, the own estimate."""
        if self.plan.policy == "random":
            return
        own = self._own
        if own is not None:
            own = own.after(x, y, self.round + 1, self.plays_own)
            if self.plays_own:
                self._own = own
                return
        # What can fail, a noise source, comes before anything has changed.
        fired = False
        if self.trigger is not None and self._asked is None:
            fired = self.trigger.observe(x, self.round + 1)
        self._randomizer.observe(x, y)
        self._own = own
        if not self.plan.lazy:
            self._estimate.observe(x, y)
        if fired and self.plan.trigger is not None:
            self._asked = self.round + 1 + self.plan.trigger.delay

    @once
    def report(self) -> Report | Bits | Encoded:
        """The batch since the last report, randomized; the batch is then forgotten.

        Returns
        -------
        Report, Bits or Encoded
            The message to the server.

        Raises
        ------
        InputError
            If no report is due, or users send for themselves.
        """
        if self.acts_only:
            raise InputError("users send for themselves here: the agent has nothing to report")
        if not self.due:
            when = "nobody has asked" if self.trigger else f"batch_size = {self.plan.batch_size}"
            raise InputError(
                f"silo {self.index} has no report due after round {self.round} ({when})"
            )
        report = self._randomizer.report()
        if self._own is not None and isinstance(report, Report):
            self._own.sends(report.values)
        return report

    @once
    def receive(self, broadcast: Broadcast) -> None:
        """Replace the statistics by the synchronised ones.

        Parameters
        ----------
        broadcast : Broadcast
            The server's answer.

        Raises
        ------
        InputError
            If it is not the release that the silo waits for, or not finite.
        """
        if not isinstance(broadcast, Broadcast):
            raise InputError(f"broadcast must be a Broadcast, got {type(broadcast).__name__}")
        waits = self._required() if self.acts_only else self._randomizer.release
        if broadcast.release <= self.release:
            raise InputError(
                f"silo {self.index} waits for release {self.release + 1}, "
                f"got release {broadcast.release} again"
            )
        if broadcast.release != waits:
            raise InputError(
                f"silo {self.index} waits for release {waits}, got release {broadcast.release}"
            )
        if broadcast.dimension != self.plan.dimension:
            raise InputError(
                f"broadcast must have dimension {self.plan.dimension}, got {broadcast.dimension}"
            )
        if not np.isfinite(broadcast.values).all():
            raise InputError("broadcast must be finite, got NaN or infinity")
        own = self._own
        if own is not None:
            own = own.released(broadcast.values, broadcast.release)
        shift = self._refresh(broadcast.values, broadcast.release)
        self._own = own
        self.release, self._asked = broadcast.release, None
        self._synchronised_at = self.round
        self.indefinite += shift > 0.0


# ---- In phases -----------------------------------------------------------------------------------


class Client(Silo):
    """One client of ROBIN (huang-2023, Algorithm 1): LinUCB alone at first, then greedy.

    Each round: ``select(actions)``, play the action, ``observe(reward)``. When ``due`` is true,
    send ``estimate()`` to the server (``Averager``) and hand its model to ``adopt``. A
    client draws no noise: the server is trusted, other clients are not.

    Parameters
    ----------
    plan : PhasePlan
        The curve's plan, such as ``system.plan``.
    index : int, default 0
        The client's number, 0..M - 1.
    """

    def __init__(self, plan: PhasePlan, index: int = 0) -> None:
        self.phases = check_phase_plan(plan)
        self._statistic = np.zeros(plan.local.statistic_size)
        self._sent = 0
        super().__init__(plan.local, index)

    @property
    def due(self) -> bool:
        """True if an estimate must be sent before the next round."""
        return self._required() > self._sent

    @property
    def reported(self) -> bool:
        """True if an estimate was sent whose model has not come back."""
        return self._sent > self.release

    @property
    def greedy(self) -> bool:
        """True if the server's model chooses, and nothing of the client's own."""
        return self.release > 0

    def _required(self) -> int:
        """Models that must have come before the next round."""
        ended = self.phases.phase_of(self.round + 1) - 1
        return max(0, min(ended - self.phases.initial + 1, len(self.phases.releasing)))

    def select(self, actions: object) -> int:
        """Index of the action to play for the next user; ``actions`` has shape (K, d)."""
        if self.due or self.reported:
            raise InputError(
                f"silo {self.index} must send its estimate and adopt the model of phase "
                f"{self.phases.releasing[self.release] + 1} before round {self.round + 1}"
            )
        return super().select(actions)

    def _radius(self) -> float:
        """beta of the next round, 0 in greedy phases."""
        return 0.0 if self.greedy else super()._radius()

    def _learn(self, x: np.ndarray, y: float) -> None:
        """Add (x, y) to the next estimate, and to the own model while it chooses."""
        linalg.accumulate(self._statistic, x, y)
        if not self.greedy:
            self._estimate.observe(x, y)

    @once
    def estimate(self) -> LocalEstimate:
        """The least-squares estimate of all rounds since the last one, which are then forgotten.

        The first estimate covers all initial phases: V is reset in greedy phases only.

        Returns
        -------
        LocalEstimate

        Raises
        ------
        InputError
            If no estimate is due.
        """
        if not self.due:
            raise InputError(f"silo {self.index} has no estimate due after round {self.round}")
        phase = self.phases.releasing[self._sent]
        (values,) = linalg.least_squares(self._statistic[None], self.plan.dimension)
        self._statistic = np.zeros(self.plan.statistic_size)
        self._sent += 1
        return LocalEstimate(phase, values, self.index)

    @once
    def adopt(self, model: Model) -> None:
        """Use the server's model in the next phase.

        Parameters
        ----------
        model : Model
            The server's answer.

        Raises
        ------
        InputError
            If it is not the model that the client waits for, or not finite.
        """
        if not isinstance(model, Model):
            raise InputError(f"model must be a Model, got {type(model).__name__}")
        waits = self.phases.releasing[self.release] + 1 if self.reported else None
        if model.phase != waits:
            raise InputError(
                f"silo {self.index} waits for "
                f"{f'the model of phase {waits}' if waits else 'no model'}, "
                f"got that of phase {model.phase}"
            )
        if model.values.shape != (self.plan.dimension,) or not np.isfinite(model.values).all():
            raise InputError(f"model must hold {self.plan.dimension} finite numbers")
        self.release += 1
        self._estimate.w[:] = 0.0
        self._estimate.theta[:] = model.values
        self._second_bonus = 0.0

    def report(self) -> Report | Bits | Encoded:
        """Raise InputError: a client sends estimates."""
        raise InputError("a client in phases sends estimates: use estimate()")

    def receive(self, broadcast: Broadcast) -> None:
        """Raise InputError: a client adopts models."""
        raise InputError("a client in phases takes models: use adopt(model)")


def rounds_between(plan: PhasePlan) -> list[tuple[int, int, int]]:
    """Greedy phases: (phase whose estimates made the model, first round, last round)."""
    return [
        (phase, last_round(phase) + 1, min(last_round(phase + 1), plan.horizon))
        for phase in plan.releasing
    ]
