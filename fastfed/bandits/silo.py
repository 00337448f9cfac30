"""A silo: LinUCB on what it may see, and a randomizer before anything leaves it."""

from __future__ import annotations

import numpy as np

from fastfed._kernels import environments, linalg
from fastfed._once import Once, once
from fastfed._random import NoiseSource, SystemNoise
from fastfed._validate import InputError, integer, number
from fastfed.bandits.linucb import Estimate, check_actions
from fastfed.protocols import make_randomizer
from fastfed.protocols.messages import Bits, Broadcast, Report
from fastfed.protocols.peers import PeerPlan
from fastfed.protocols.plan import Plan, check_plan
from fastfed.protocols.release import fixed_point
from fastfed.protocols.trigger import Clock


class Silo(Once):
    """One silo of a federated linear bandit, step by step (zhou-chowdhury-2024, Alg. 1, 8).

    Each round: ``select(actions)``, play the action, ``observe(reward)``. When ``due`` is true,
    send ``report()`` to the server and hand its answer to ``receive``. Where the plan has a
    trigger the silo that is ``due`` first tells the others, who then are too: ``ask()``. Where
    users send for themselves (``fastfed.User``) the silo is an agent that only acts: ``served()``
    stands in place of ``observe``, and it reports nothing. A bare
    ``Silo(plan)`` draws its privacy noise from the operating system and never draws a node's noise
    twice; pass ``fastfed.SeededNoise`` only to simulate.
    """

    def __init__(
        self, plan: Plan | PeerPlan, index: int = 0, noise: NoiseSource | None = None
    ) -> None:
        plan = check_plan(plan)
        self.plan = plan
        self.index = integer("index", index, at_least=0, at_most=plan.silos - 1)
        self.round = 0
        self.release = 0
        self.clipped_features = self.clipped_rewards = self.indefinite = 0
        self._second_bonus, self._inflation = 0.0, 1.0
        self._noise = noise if noise is not None else SystemNoise()
        self._randomizer = make_randomizer(plan, self.index, self._noise)
        self.clock: Clock | None = None
        if plan.trigger is not None:
            kept = plan.dimension, plan.horizon, self.index, self._noise
            self.clock = Clock(plan.trigger, *kept, fixed_point(plan))
        self._asked: int | None = None
        self._synchronised_at = 0
        self._refresh(np.zeros(plan.statistic_size), 0)
        self._chosen: np.ndarray | None = None

    @property
    def theta(self) -> np.ndarray:
        """theta_hat, (d,)."""
        return self._estimate.theta.copy()

    @property
    def due(self) -> bool:
        """Whether a report has to be sent before the next round."""
        return self._wanted() > self._reports

    @property
    def acts_only(self) -> bool:
        """Whether users send for themselves, so that the silo sees no reward."""
        return self.plan.by_users

    @property
    def _reports(self) -> int:
        """Reports made so far; an agent that only acts has none of its own out."""
        return self.release if self.acts_only else self._randomizer.release

    @property
    def reported(self) -> bool:
        """Whether a report is out whose answer has not come back."""
        return self._reports > self.release

    @property
    def asked(self) -> int | None:
        """Round at whose end the next report is due, where a trigger fired; else None."""
        return self._asked

    @once
    def ask(self, round: int | None = None) -> None:
        """Another silo's trigger has fired: a report is due after ``round`` (default: this one)."""
        if self.clock is None:
            raise InputError("ask belongs to plans with a trigger; here every batch has its length")
        if self._asked is None:
            # A leaf holds a round at least, so there are no more releases than rounds.
            earliest = max(self._synchronised_at + 1, self.round + (self._chosen is not None))
            self._asked = earliest if round is None else integer("round", round, at_least=earliest)

    def _wanted(self) -> int:
        """Releases that must have come back before the next round."""
        if self.clock is None:
            return self.round // self.plan.batch_size if self.plan.batch_size else 0
        return self.release + (self._asked is not None and self.round >= self._asked)

    @once
    def select(self, actions: object) -> int:
        """Index of the action to play for the next user; ``actions`` is (K, d)."""
        if self._chosen is not None:
            raise InputError("select was called twice; observe the reward of the last action first")
        if self._wanted() > self.release:
            raise InputError(
                f"silo {self.index} must report and receive release {self._wanted()} "
                f"before round {self.round + 1}"
            )
        if self.round == self.plan.horizon:
            raise InputError(f"the plan ends after round {self.plan.horizon}")
        checked = check_actions(actions, self.plan.dimension)
        if self.plan.policy == "random":
            chosen = self._noise.action(self.index, self.round + 1, len(checked))
            self._chosen = np.array(checked[chosen], dtype=np.float64)
            return chosen
        chosen, self._chosen = self._best_of(checked)
        return chosen

    def _best_of(self, actions: np.ndarray) -> tuple[int, np.ndarray]:
        """(index, features) of the largest score."""
        widths = self._radius(), self._second_bonus
        if self.plan.score is None:
            return self._estimate.select(actions, *widths)
        key = self._noise.score_key(self.index, self.round + 1)
        return self._estimate.select_scored(self.plan.score, key, self.round + 1, actions, *widths)

    def _radius(self) -> float:
        plan, entry = self.plan, self.plan.entry(self.release)
        radius, d = plan.radius, plan.dimension
        if radius.determinant:
            return radius.of(entry, self._inflation, self._estimate.log_det, d)
        return radius.at(entry, plan.rows(self.release, self.round + 1), d)

    def _refresh(self, statistic: np.ndarray, release: int) -> float:
        """V and theta_hat from what was synchronised; returns the shift that V needed.

        Nothing changes before all is computed.
        """
        plan, k = self.plan, self.plan.entry(release)
        regularizer = full = float(plan.regularizer[k])
        inflation, second = self._inflation, self._second_bonus
        if plan.radius.direct:
            floor = float(plan.radius.floor[k])
            regularizer = linalg.choose_regularizer(statistic, full, floor, plan.dimension)
            inflation = 1.0 + (full - regularizer) / floor if regularizer < full else 1.0
        estimate, shift = Estimate.of_sums(plan.dimension, statistic, regularizer)
        if plan.radius.direct:
            bound = regularizer + shift + float(plan.radius.error_bound[k])
            second = plan.radius.multiplier * bound
        if not np.isfinite(estimate.theta).all():
            raise environments.status_error(-2)
        if self.clock is not None:
            self.clock.restart(estimate.w, statistic, regularizer + shift)
        self._estimate, self._second_bonus, self._inflation = estimate, second, inflation
        return shift

    @once
    def observe(self, reward: float) -> None:
        """Take in the reward of the selected action; features and reward are clipped here."""
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
            outside = linalg.clip_norm(x, clip.feature)
            beyond = not clip.low <= y <= clip.high
            y = min(max(y, clip.low), clip.high)
        self._learn(x, y)
        self._chosen = None
        self.clipped_features += outside
        self.clipped_rewards += beyond
        self.round += 1

    @once
    def served(self) -> None:
        """The user of this round has acted, and sends a message of their own."""
        if not self.acts_only:
            raise InputError("served is for plans whose users send for themselves; use observe")
        if self._chosen is None:
            raise InputError("served needs a select before it")
        self._chosen = None
        self.round += 1

    def _learn(self, x: np.ndarray, y: float) -> None:
        if self.plan.policy == "random":
            return
        # Whatever can fail, a noise source, comes before anything has changed.
        fired = False
        if self.clock is not None and self._asked is None:
            fired = self.clock.observe(x, self.round + 1)
        self._randomizer.observe(x, y)
        if not self.plan.lazy:
            self._estimate.observe(x, y)
        if fired and self.clock is not None:
            self._asked = self.round + 1 + self.clock.trigger.delay

    @once
    def report(self) -> Report | Bits:
        """The batch since the last report, randomized; the batch is then forgotten."""
        if self.acts_only:
            raise InputError("users send for themselves here: the agent has nothing to report")
        if not self.due:
            when = "nobody has asked" if self.clock else f"batch_size = {self.plan.batch_size}"
            raise InputError(
                f"silo {self.index} has no report due after round {self.round} ({when})"
            )
        return self._randomizer.report()

    @once
    def receive(self, broadcast: Broadcast) -> None:
        """Take over the synchronised statistics."""
        if not isinstance(broadcast, Broadcast):
            raise InputError(f"broadcast must be a Broadcast, got {type(broadcast).__name__}")
        waits = self._wanted() if self.acts_only else self._randomizer.release
        if broadcast.release != waits or broadcast.release <= self.release:
            raise InputError(
                f"silo {self.index} waits for release {waits}, got release {broadcast.release}"
            )
        if broadcast.dimension != self.plan.dimension:
            raise InputError(
                f"broadcast must have dimension {self.plan.dimension}, got {broadcast.dimension}"
            )
        if not np.isfinite(broadcast.values).all():
            raise InputError("broadcast must be finite, got NaN or infinity")
        shift = self._refresh(broadcast.values, broadcast.release)
        self.release, self._asked = broadcast.release, None
        self._synchronised_at = self.round
        self.indefinite += shift > 0.0
