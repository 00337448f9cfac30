"""Silos of federations with a server, in batches (`Silo`) and in phases (`Client`).

A silo runs LinUCB on the data that it may see. A randomizer adds the noise to everything that the
silo sends. Simulations and deployments use the same classes. Silos without a server are in
`bandits.peer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fastfed._kernels import linalg
from fastfed._random import NoiseSource, SystemNoise
from fastfed._validate import (
    InputError,
    Once,
    array,
    integer,
    is_list,
    once,
    reward_number,
    show,
    silo_index,
    unmasked,
)
from fastfed.bandits.linucb import Acting, check_actions
from fastfed.bandits.own_rounds import make_memory
from fastfed.protocols import make_randomizer
from fastfed.protocols.plan import Plan, check_plan
from fastfed.protocols.protocol import Bits, Broadcast, Report
from fastfed.protocols.randomizer import user_bit
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

# ---- In batches ----------------------------------------------------------------------------------


class Silo(Acting, Once):
    """One silo of a federated linear bandit (zhou-chowdhury-2024, Algorithms 1 and 8).

    In each round call ``select(actions)``, take the chosen action, and call ``observe(reward)``.
    When ``due`` is true, send ``report()`` to the server and pass the server's answer to
    ``receive``.

    Some plans have a trigger, which decides from the data when silos synchronise. The first silo
    that is ``due`` then notifies all other silos. Each of them calls ``ask()``, after which its
    own report is due as well.

    In some plans users send their messages themselves (``User``). The silo is then an agent that
    only acts: ``served()`` replaces ``observe``, and there is no report.

    Parameters
    ----------
    plan : Plan
        The curve's plan, such as ``system.plan``.
    index : int, optional
        The silo's number, 0..M - 1. It is required if M > 1.
    noise : NoiseSource, optional
        The default is the operating system's generator, which draws the noise of each node once.
        Pass ``SeededNoise`` in simulations only.
    keys : mapping of int to bytes, optional
        Required with protocol "secure-sum": for each other silo, the key of the masks shared with
        it, see `fastfed.protocols.secure_sum.Masks`. Before the first report, exchange the
        ``session`` of all silos and call ``meet``. A restarted silo has a new session, so it gets
        fresh masks with the same keys.

    Attributes
    ----------
    round : int
        Number of completed rounds.
    release : int
        Number of the last release received, 0 before the first.
    clipped_features, clipped_rewards : int
        Number of feature vectors and of rewards that have been clipped so far.
    indefinite : int
        Number of releases whose V needed a shift to be positive definite.

    Raises
    ------
    InputError
        If the noise in the plan does not give the epsilon that the plan states, or if keys are
        missing or not needed.
    """

    def __init__(
        self,
        plan: Plan | PeerPlan,
        index: int | None = None,
        noise: NoiseSource | None = None,
        keys: Mapping[int, bytes] | None = None,
    ) -> None:
        plan = check_plan(plan)
        super().__init__(plan)
        self.index = silo_index(index, plan.silos)
        self.clipped_features = self.clipped_rewards = self.indefinite = 0
        self._noise = noise if noise is not None else SystemNoise()
        self._randomizer = make_randomizer(plan, self.index, self._noise, keys)
        if plan.trigger is not None:
            clock_arguments = plan.dimension, plan.horizon, self.index, self._noise
            self.trigger = Clock(plan.trigger, *clock_arguments, fixed_point(plan))
        # The round after which a report is due, once a trigger has fired. None before.
        self._due_after: int | None = None
        # The last round before the latest synchronisation.
        self._synchronised_at = 0
        self._refresh(np.zeros(plan.statistic_size), 0)
        # Features (d,) of the action of `select` whose reward has not been observed, else None.
        self._chosen: np.ndarray | None = None
        # Features of the actions of `select_many` whose rewards have not been observed.
        self._waiting: list[np.ndarray] = []
        # State of local rounds, whose data never leave the silo. None if all rounds are shared.
        self._own = make_memory(plan)
        # The last round for which a secret coin was tossed, and its 64 random bits.
        self._coin = 0, 0

    @property
    def theta(self) -> np.ndarray:
        """The estimate theta_hat of the next round, shape (d,).

        In a local round it is the estimate of the silo's state for local rounds (`Memory.theta`).
        """
        if self._own is not None and self.plays_own:
            return self._own.theta.copy()
        return self._estimate.theta.copy()

    @property
    def due(self) -> bool:
        """True if a report must be sent before the next round."""
        return self._required() > self._reports

    @property
    def plays_own(self) -> bool:
        """True if the next round is local: its data never leave the silo.

        If the plan uses secret coins, the coin of the round is tossed here, once. Do not show this
        value outside of the silo.
        """
        own, round = self.plan.own, self.round + 1
        # Without the key `share` no round is local. With it, all rounds after `until` are local.
        if own is None or round > own.until:
            return own is not None
        if not own.secret:
            return not own.shares(round)
        if self._coin[0] != round:
            self._coin = round, self._noise.participation(self.index, round)
        return not own.shares(round, self._coin[1])

    @property
    def session(self) -> bytes:
        """32 random bytes of this object that all other silos need, if messages are masked."""
        return self._encoder().session

    @once
    def meet(self, sessions: Mapping[int, bytes]) -> None:
        """Store the sessions of all other silos, before the first report of masked messages.

        A session is 32 random bytes that a silo has drawn for its masks (attribute ``session``).

        Parameters
        ----------
        sessions : mapping of int to bytes
            The session of each silo, by the silo's number. The session of this silo may be
            included. Sessions are not secret.

        Raises
        ------
        InputError
            If a session is missing or not 32 bytes long, if different sessions were set before, if
            a report was already sent, or if messages are not masked.
        """
        self._encoder().meet(sessions)

    def _encoder(self) -> Encoder:
        """Return the encoder of masked messages, or raise InputError if there are no masks."""
        if not isinstance(self._randomizer, SecureRandomizer):
            raise InputError(
                f'sessions belong to masked messages, not to "{self.plan.protocol.id}"'
            )
        return self._randomizer.encoder

    @property
    def acts_only(self) -> bool:
        """True if users send their messages themselves, so that the silo sees no rewards."""
        return self.plan.by_users

    @property
    def _reports(self) -> int:
        """Number of reports sent. An agent that only acts sends none: its number of releases."""
        return self.release if self.acts_only else self._randomizer.release

    @property
    def reported(self) -> bool:
        """True if a report was sent and the server has not answered yet."""
        return self._reports > self.release

    @property
    def asked(self) -> int | None:
        """The round after which a report is due, if a trigger has fired, else None."""
        return self._due_after

    @once
    def ask(self, round: int | None = None) -> None:
        """Accept a request of another silo's trigger: a report becomes due after ``round``.

        Parameters
        ----------
        round : int, optional
            The round after which the report is due. The default is the earliest possible round: the
            current round or, between two rounds, the last one. But it is at least one round after
            the last synchronisation.

        Raises
        ------
        InputError
            If the plan has no trigger, or ``round`` is over.
        """
        if self.trigger is None:
            raise InputError("ask is for plans with a trigger; here the batch lengths are fixed")
        if self._due_after is None:
            # A batch has at least one round, so there are at most as many releases as rounds.
            earliest = max(self._synchronised_at + 1, self.round + (self._chosen is not None))
            self._due_after = (
                earliest if round is None else integer("round", round, at_least=earliest)
            )

    def _required(self) -> int:
        """Return the number of releases that the silo must have received before the next round."""
        if self.trigger is None:
            return self.plan.due(self.round)
        # One more release is required once round `_due_after` is completed.
        return self.release + (self._due_after is not None and self.round >= self._due_after)

    @once
    def select(self, actions: object) -> int:
        """Choose an action for the next user.

        Parameters
        ----------
        actions : array_like, shape (K, d)
            Features of each action.

        Returns
        -------
        int
            Index of the chosen action.

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
        features = check_actions(actions, self.plan.dimension)
        if self.plan.arms and not np.array_equal(features, np.eye(self.plan.dimension)):
            # Entries of x x' off the diagonal have no noise, so they must be 0.
            raise InputError(
                "the plan is for arms without contexts: actions must be the unit vectors "
                f"numpy.eye({self.plan.dimension}), got shape {features.shape}"
            )
        if self.plan.policy == "random":
            chosen_index = self._noise.action(self.index, self.round + 1, len(features))
            self._chosen = np.array(features[chosen_index], dtype=np.float64)
            return chosen_index
        chosen_index, self._chosen = self._best(features)
        return chosen_index

    @once
    def select_many(self, actions: Any) -> np.ndarray:
        """Choose an action for each of the next n users.

        The choices equal those of n calls of `select` with `observe` between them.

        Parameters
        ----------
        actions : array_like, shape (n, K, d), or sequence of n (K_i, d)
            Features of each user's actions.

        Returns
        -------
        ndarray of int64, shape (n,)
            Index of each user's chosen action. Pass the rewards to ``observe_many``.

        Raises
        ------
        InputError
            If `select` would raise one, if there are more users than rounds before the next report,
            or if the plan's model may change within a batch.
        """
        plan = self.plan
        if not plan.lazy or self.acts_only or self.trigger is not None or self._own is not None:
            raise InputError(
                "select_many needs a model that changes with releases only, in fixed rounds. The "
                "model of this plan may change after any user: use select and observe"
            )
        actions = unmasked("actions", actions)
        if not is_list(actions):
            raise InputError(
                f"actions must be the actions (K, d) of each user, got {show(actions)}"
            )
        batch_end = plan.end(self.release + 1) if self.release < plan.releases else plan.horizon
        # If no round remains before the next report, `select` refuses a single user, and its
        # message says what is due.
        if len(actions) > max(batch_end - self.round, 1):
            raise InputError(
                f"select_many can choose for {batch_end - self.round} users before the next "
                f"report or the plan's end, got {len(actions)}"
            )
        index, chosen_rows, start = np.empty(len(actions), np.int64), [], self.round
        try:
            for i in range(len(actions)):
                self.round = start + i
                index[i] = self.select(actions[i])
                assert self._chosen is not None
                chosen_rows.append(self._chosen)
                self._chosen = None
        finally:
            self.round = start
        self._waiting = chosen_rows
        return index

    @once
    def observe_many(self, rewards: object) -> None:
        """Learn the rewards of the actions that `select_many` chose, in the same order.

        Parameters
        ----------
        rewards : array_like, shape (n,)
            The rewards.

        Raises
        ------
        InputError
            If there is not one reward for each action, or a reward is not finite. After such an
            error nothing is learned.
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
        """Return the index and the features (d,) of the action of the next round.

        In a local round the state of local rounds (`Memory`) chooses it, in a shared round the
        estimate from released sums.
        """
        if self._own is not None and self.plays_own:
            radii = self._radius(), self._second_bonus
            return self._own.select(actions, self._estimate, *radii)
        return super()._best(actions)

    def _score_key(self) -> int:
        """Return 64 uniform random bits for the score function in this round."""
        return self._noise.score_key(self.index, self.round + 1)

    @once
    def observe(self, reward: float) -> None:
        """Clip the features and the reward of the selected action, and learn them.

        Parameters
        ----------
        reward : float
            The reward of this round.

        Raises
        ------
        InputError
            If no action was selected, or if users send their messages themselves.
        """
        y = reward_number("reward", reward)
        if self.acts_only:
            raise InputError(
                "observe would show the agent a reward that only the user may see: "
                "send User(plan, number).message(x, reward), and call served()"
            )
        if self._chosen is None:
            raise InputError("observe needs a select before it")
        x, clip, feature_clipped, reward_clipped = self._chosen.copy(), self.plan.clip, False, False
        if clip is not None:
            y, feature_clipped, reward_clipped = clip.apply(x, y)
        if self.plan.flips:
            # The user's device sends one random bit. Nothing below reads the reward itself.
            words = self._noise.random_u32(self.index, self.round + 1, 4)
            y = self.plan.sent_values[user_bit(self.plan, y, words)]
        self._learn(x, y)
        self._chosen = None
        self.clipped_features += feature_clipped
        self.clipped_rewards += reward_clipped
        self.round += 1

    @once
    def served(self) -> None:
        """End a round of a plan whose users send their messages themselves.

        Call it instead of ``observe`` after the user has received the chosen action.
        """
        if not self.acts_only:
            raise InputError("served is for plans whose users send messages; use observe")
        if self._chosen is None:
            raise InputError("served needs a select before it")
        self._chosen = None
        self.round += 1

    def _learn(self, x: np.ndarray, y: float) -> None:
        """Learn the features x (d,) and the reward y of a round.

        In a local round, x and y enter only the state of local rounds, which never leaves the silo.
        In a shared round they enter the state of local rounds, the trigger and the randomizer.
        Without lazy updates they also enter the silo's estimate.
        """
        if self.plan.policy == "random":
            return
        local = self._own
        if local is not None:
            local = local.after(x, y, self.round + 1, self.plays_own)
            if self.plays_own:
                self._own = local
                return
        # The trigger's noise source may raise an error, so it is called before anything changes.
        fired = False
        if self.trigger is not None and self._due_after is None:
            fired = self.trigger.observe(x, self.round + 1)
        self._randomizer.observe(x, y)
        self._own = local
        if not self.plan.lazy:
            self._estimate.observe(x, y)
        if fired and self.plan.trigger is not None:
            self._due_after = self.round + 1 + self.plan.trigger.delay

    @once
    def report(self) -> Report | Bits | Encoded:
        """Return the message about the batch since the last report, and start a new batch.

        Returns
        -------
        Report, Bits or Encoded
            The batch's sums after the randomizer: with noise, as noisy bits, or masked.

        Raises
        ------
        InputError
            If no report is due, or if users send their messages themselves.
        """
        if self.acts_only:
            raise InputError("users send their messages themselves: the agent reports nothing")
        if not self.due:
            reason = (
                "no trigger made it due" if self.trigger else f"batch_size = {self.plan.batch_size}"
            )
            raise InputError(
                f"silo {self.index} has no report due after round {self.round} ({reason})"
            )
        report = self._randomizer.report()
        if self._own is not None and isinstance(report, Report):
            self._own.sends(report.values)
        return report

    @once
    def receive(self, broadcast: Broadcast) -> None:
        """Use the server's synchronised sums, and the estimate from them, from the next round on.

        Parameters
        ----------
        broadcast : Broadcast
            The server's answer.

        Raises
        ------
        InputError
            If the silo waits for a different release, or a value is not finite.
        """
        if not isinstance(broadcast, Broadcast):
            raise InputError(f"broadcast must be a Broadcast, got {type(broadcast).__name__}")
        expected = self._required() if self.acts_only else self._reports
        if broadcast.release <= self.release:
            raise InputError(
                f"silo {self.index} waits for release {self.release + 1}, "
                f"got release {broadcast.release} again"
            )
        if broadcast.release != expected:
            raise InputError(
                f"silo {self.index} waits for release {expected}, got release {broadcast.release}"
            )
        if broadcast.dimension != self.plan.dimension:
            raise InputError(
                f"broadcast must have dimension {self.plan.dimension}, got {broadcast.dimension}"
            )
        if not np.isfinite(broadcast.values).all():
            raise InputError("broadcast must be finite, got NaN or infinity")
        # `_refresh` may fail, so the state of local rounds is replaced after it.
        local = self._own
        if local is not None:
            local = local.released(broadcast.values, broadcast.release)
        shift = self._refresh(broadcast.values, broadcast.release)
        self._own = local
        self.release, self._due_after = broadcast.release, None
        self._synchronised_at = self.round
        self.indefinite += shift > 0.0


# ---- In phases -----------------------------------------------------------------------------------


class Client(Silo):
    """One client of ROBIN (huang-2023, Algorithm 1): local LinUCB at first, then greedy choices.

    In each round call ``select(actions)``, take the chosen action, and call ``observe(reward)``.
    When ``due`` is true, send ``estimate()`` to the server (``Averager``) and pass the server's
    model to ``adopt``. A client draws no noise. The server is trusted and adds the noise; other
    clients are not trusted.

    Parameters
    ----------
    plan : PhasePlan
        The curve's plan, such as ``system.plan``.
    index : int, optional
        The client's number, 0..M - 1. It is required if M > 1.
    """

    def __init__(self, plan: PhasePlan, index: int | None = None) -> None:
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
        """True if an estimate was sent and the server's model has not been adopted yet."""
        return self._sent > self.release

    @property
    def greedy(self) -> bool:
        """True if actions are chosen by the server's model instead of the client's estimate."""
        return self.release > 0

    def _required(self) -> int:
        """Return the number of models that the client must have adopted before the next round."""
        ended_phases = self.phases.phase_of(self.round + 1) - 1
        return max(0, min(ended_phases - self.phases.initial + 1, len(self.phases.releasing)))

    def select(self, actions: object) -> int:
        """Return the index of the action for the next user. ``actions`` has shape (K, d).

        See `Silo.select`.
        """
        if self.due or self.reported:
            raise InputError(
                f"silo {self.index} must send its estimate and adopt the model of phase "
                f"{self.phases.releasing[self.release] + 1} before round {self.round + 1}"
            )
        return super().select(actions)

    def _radius(self) -> float:
        """Return the confidence radius beta of the next round, which is 0 in greedy phases."""
        return 0.0 if self.greedy else super()._radius()

    def _learn(self, x: np.ndarray, y: float) -> None:
        """Add the features x (d,) and the reward y to the sums of the next estimate.

        In the initial phases, add them also to the local LinUCB model.
        """
        linalg.accumulate(self._statistic, x, y)
        if not self.greedy:
            self._estimate.observe(x, y)

    @once
    def estimate(self) -> LocalEstimate:
        """Return the least-squares estimate of all rounds since the last estimate.

        The sums of these rounds are then set to 0. The first estimate covers all initial phases, in
        which the client chooses with its local LinUCB model.

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
            If the client waits for a different model, or a value is not finite.
        """
        if not isinstance(model, Model):
            raise InputError(f"model must be a Model, got {type(model).__name__}")
        expected = self.phases.releasing[self.release] + 1 if self.reported else None
        if model.phase != expected:
            raise InputError(
                f"silo {self.index} waits for "
                f"{f'the model of phase {expected}' if expected else 'no model'}, "
                f"got the model of phase {model.phase}"
            )
        if model.values.shape != (self.plan.dimension,) or not np.isfinite(model.values).all():
            raise InputError(f"model must hold {self.plan.dimension} finite numbers")
        self.release += 1
        # With w = 0 no action has a bonus, so choices are greedy.
        self._estimate.w[:] = 0.0
        self._estimate.theta[:] = model.values
        self._second_bonus = 0.0

    def report(self) -> Report | Bits | Encoded:
        """Raise InputError: a client in phases sends estimates instead of reports."""
        raise InputError("a client in phases sends estimates: use estimate()")

    def receive(self, broadcast: Broadcast) -> None:
        """Raise InputError: a client in phases adopts models instead of broadcasts."""
        raise InputError("a client in phases adopts models: use adopt(model)")


def rounds_between(plan: PhasePlan) -> list[tuple[int, int, int]]:
    """Return a tuple for each greedy phase: (number of the phase before it, first and last round).

    The rounds are the first and the last of the greedy phase. In a greedy phase clients use the
    average of all clients' estimates of the phase before it.
    """
    return [
        (phase, last_round(phase) + 1, min(last_round(phase + 1), plan.horizon))
        for phase in plan.releasing
    ]
