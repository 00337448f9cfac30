"""Federated LinUCB in fixed batches, with and without privacy, and two baselines.

``private-fedlinucb`` is zhou-chowdhury-2024, Algorithms 1 and 8, with the paper's privacy
protocols. ``fedlinucb`` is Algorithm 1 with exact sums. Both deviate from the paper in the same
way, so that two curves differ only in privacy:

- Features and rewards are clipped to the bounds that the proof assumes. ``clip = false`` disables
  clipping.
- ``lazy = true`` (Algorithm 8) is the default. In Algorithm 1 raw data of one user determine the
  actions of later users of the batch, which the proof of Theorem 5.1 does not cover.
- The covariance noise is a symmetric matrix. The key ``layout`` selects its variances on and off
  the diagonal, which the paper does not specify.
- kappa is 1 + floor(log2(T/B)). The paper writes log.
- The default is fastfed's direct radius, which is proven and smaller than the paper's. Lemma C.2 is
  an option: its constants are computed from the distribution of the noise, with a union bound over
  silos if updates are not lazy. Lemma C.4 as printed is an option too.
- lambda is chosen for each release from its noise. The paper has one lambda for all releases.
- Release types "honaker", "toeplitz" and "factorised" add less noise than the tree. Type "flat"
  shuffles every batch once and needs no tree.
- Batches may differ in length (``batch_size = "growing"``). Early synchronisations are the most
  valuable, and frequent synchronisations need more noise.
- Each entry of a vector sum's message has 2 g + b bits, because the paper's g + b bits overflow: up
  to 2 g encode the value, and b are noise. g and b are integers, rounded such that privacy never
  decreases. Of a symmetric matrix only the entries i <= j are sent.
- In a vector sum a data point is rounded for all its tree nodes when it arrives, instead of when a
  node is released. The distribution is the same, and raw data need not be stored.
- T need not be a multiple of B. An incomplete last batch is used only by the silo, and never sent.

``local-linucb`` (huang-2023, Algorithm 2) runs a separate LinUCB at each silo, with the same
clipping and radius. ``random`` chooses random actions, as a baseline without learning.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import lru_cache, partial
from typing import ClassVar, Self

import msgspec

from fastfed._validate import InputError, choice, integer, number
from fastfed.bandits.assemble import (
    RELEASABLE,
    assemble,
    check_saturation,
    make_noise,
    useful_rounds,
    usual_release,
    with_release,
    with_saturation,
)
from fastfed.bandits.certify import certify
from fastfed.bandits.clocks import (
    ClockConfig,
    check_private_clock,
    clocks_of,
    reported_batches,
    with_clock,
)
from fastfed.bandits.delays import DelayConfig, check_private_delay, with_delay
from fastfed.bandits.own_rounds import share_of, with_own_rounds, with_trusted_silos
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.system import NOISE_DRAWS, PROTECTS, Algorithm, Config, System, check_returning
from fastfed.privacy.mechanisms.bit_counts import users_for
from fastfed.privacy.mechanisms.user_bit import FLIP_UNITS
from fastfed.privacy.releases.gaussian_release import CALIBRATIONS, RELEASES
from fastfed.privacy.sensitivity import LAYOUTS, RELATIONS, Budget
from fastfed.protocols.account import USER_BIT
from fastfed.protocols.plan import Plan
from fastfed.protocols.protocol import FLAT, PROTOCOLS, counting_ones, released_as, under_masks
from fastfed.protocols.schedule import Schedule
from fastfed.protocols.score import UCB
from fastfed.protocols.vector_sum import MAX_BITS

# ---- FedLinUCB without privacy -------------------------------------------------------------------


def build_fedlinucb(config: ClockConfig, problem: ProblemSpec) -> System:
    """Build the system of one fedlinucb curve of an experiment: its plan and certificate."""
    clip = config.bounds(published=config.radius == "published-code")
    schedule, clocks = reported_batches(config, problem), clocks_of(config, problem)
    plan, theory = assemble(config, problem, PROTOCOLS["none"], schedule, clip, clocks=clocks)
    plan, theory = with_own_rounds(plan, theory, config)
    plan, theory = with_delay(plan, theory, config.delay)
    plan, theory = with_clock(plan, theory, clocks)
    plan, certificate = certify(plan, problem, theory, None, "zhou-chowdhury-2024, Section 6")
    return System("fedlinucb", plan, certificate, theory=theory)


FEDLINUCB = Algorithm(
    id="fedlinucb",
    paper="zhou-chowdhury-2024",
    summary="federated LinUCB in fixed batches, not private",
    config=ClockConfig,
    build=build_fedlinucb,
)


# ---- Private-FedLinUCB ---------------------------------------------------------------------------

PRIVATE_PROTOCOLS = tuple(p for p in PROTOCOLS if p != "none")
MESSAGES = ("aggregate", "individual")
#: Protocols in which each silo adds Gaussian noise, and the server uses only the sum over silos.
SUMMED_NOISE_PROTOCOLS = ("silo-ldp", "silo-ldp-prefix", "shuffle-amplified")
#: Default covariance_ratio with the direct radius. Among ratios with the same privacy, it nearly
#: minimises the bound on ||N theta* - h|| in any dimension. It reduces the bound on ||N|| by 1/4.
DIRECT_RATIO = 0.7
#: Protocol "shuffle-vector": the default factor by which each batch is longer than the previous
#: one. Its noise grows with the number of batches, so few and growing batches are better.
SHUFFLED_BATCH_RATIO = 1.5
#: Protocol "shuffle-vector": by default the first batch has at most T / 50 rounds.
SHUFFLED_BATCH_DIVISOR = 50
#: With ``shuffled``, the default batch is long enough that a bit may be flipped with at most this
#: probability. The sub-Gaussian scale of a reward estimated from a bit is then 0.7, compared with
#: 0.5 without flips.
COUNTED_FLIPS = 1 / 7


class PrivateConfig(ClockConfig, frozen=True, kw_only=True):
    """Keys of a private-fedlinucb curve, in addition to the keys of `ClockConfig`.

    With protocol "shuffle-vector" and a ``sieve``, the default of ``batch_first`` follows from the
    noise, and that of ``batch_ratio`` is 1.5.

    Parameters
    ----------
    protocol : str, default "silo-ldp"
        The privacy protocol, one of ``PRIVATE_PROTOCOLS``.
    epsilon : float
        Epsilon > 0 of the guarantee for each user. Required unless ``silo_epsilon`` is given.
    delta : float
        Delta of the guarantee for each user, in (0, 1). Required, except with protocol "user-bit",
        where it is 0 by default.
    calibration : {"exact", "theorem", "published-code"}
        The rule for the noise: "exact" adds the least noise that satisfies the budget, the others
        add the noise of a theorem or of published code.
    relation : {"replace", "zero-out"}
        Neighbouring data sets: one user's data are replaced by any other data (bounded DP), or by
        zeros, which is a weaker guarantee.
    release : {"tree", "honaker", "toeplitz", "buffered", "factorised", "flat"}, optional
        The release type: how noise is added to all prefix sums. "flat" (only for
        "shuffle-vector") adds noise to each batch, and the server adds up the batches. The default
        is the type with the smallest expected loss at the problem's sizes
        (`fastfed.bandits.assemble.usual_release`).
    layout : {"iid", "goe1", "goe2"}, optional
        The variances on and off the diagonal of the symmetric noise matrix that is added to the sum
        of x x' (`fastfed.privacy.sensitivity.layout_stds`). The default depends on the calibration.
    covariance_ratio : float, optional
        The std of the noise in the sum of x x' divided by the std of the noise in the sum of x y.
        The default depends on other keys, see the property `ratio`.
    silo_epsilon : tuple of float, optional
        One epsilon for each silo instead of ``epsilon``. Only for protocols "silo-ldp" and
        "silo-ldp-prefix".
    returning : int or "every-batch", default 1
        The largest number of batches, over all silos, in which one user takes part. A user takes
        part in a batch at most once.
    messages : {"aggregate", "individual"}
        How a simulation draws messages. For "shuffle-vector": the number of ones ("aggregate"), or
        every bit ("individual"). For "secure-sum": the sum of the noise of all silos, or the masked
        message of every silo.
    vector_scale : float, default 1
        Factor on b, the number of noise bits in each entry of a message. Only for "shuffle-vector"
        with calibration "published-code".
    honest_fraction : float, default 1
        The share of users whose noise bits count in the privacy proof, only for "shuffle-vector".
    protects : {"user", "reward"}
        What is private: a user's context and rewards, or only rewards, if contexts are public.
    saturation : float, optional
        n0 in rounds, only for release "factorised": when the factorisation is optimised, noise in
        prefix sums of fewer than n0 rounds counts less (docs/releases.md). The default follows from
        the noise of a single release if there is a ``sieve``, and is 0 otherwise.
    colluders : int, optional
        The number of silos, in 0..M - 1, whose noise does not count in the privacy proof, only for
        "secure-sum". The default is M / 3, rounded down.
    shuffled : bool, default False
        True if a shuffler counts the ones among the bits of all users of each batch, and forwards
        only this count. Only for "user-bit" on arms without contexts, where all users of a batch
        get the same arm. It needs a delta above 0. The smaller the batches, the more often users
        must flip their bits. Batches have equal lengths by default (docs/user-bit.md).
    noise_draws : {"silo", "sum"}
        Whether a simulation draws the noise of each silo, or only the noise of the sum over silos.
        The sums have the same distribution, and "sum" takes less time. "sum" needs a protocol in
        ``SUMMED_NOISE_PROTOCOLS``, and no key ``share``.
    """

    protocol: str = "silo-ldp"
    epsilon: float | None = None
    delta: float | None = None
    calibration: str = "exact"
    relation: str = "replace"
    release: str | None = None
    layout: str | None = None
    covariance_ratio: float | None = None
    silo_epsilon: tuple[float, ...] | None = None
    returning: int | str = 1
    messages: str = "aggregate"
    vector_scale: float = 1.0
    honest_fraction: float = 1.0
    protects: str = "user"
    saturation: float | None = None
    colluders: int | None = None
    noise_draws: str = "silo"
    shuffled: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.silo_epsilon is not None:
            if not self.silo_epsilon:
                raise InputError("silo_epsilon must hold one number for each silo, got none")
            if self.epsilon is not None:
                raise InputError("give either epsilon or silo_epsilon, not both")
            for epsilon in self.silo_epsilon:
                number("silo_epsilon", epsilon, above=0.0)
            if self.protocol not in ("silo-ldp", "silo-ldp-prefix"):
                raise InputError(
                    'silo_epsilon needs protocol "silo-ldp" or "silo-ldp-prefix", in which each '
                    f'silo adds noise, got "{self.protocol}"'
                )
        choice("protocol", self.protocol, PRIVATE_PROTOCOLS)
        if self.protocol == USER_BIT and self.delta is None:
            msgspec.structs.force_setattr(self, "delta", 0.0)
        for key in ("epsilon", "delta"):
            if getattr(self, key) is None and not (key == "epsilon" and self.silo_epsilon):
                raise InputError(f"{key} is required")
        if self.silo_epsilon is None:
            number("epsilon", self.epsilon, above=0.0)
        if self.protocol == USER_BIT:
            number("delta", self.delta, at_least=0.0, below=1.0)
        else:
            number("delta", self.delta, above=0.0, below=1.0)
        choice("calibration", self.calibration, CALIBRATIONS)
        choice("relation", self.relation, RELATIONS)
        if self.release is not None:
            choice("release", self.release, (*RELEASES, FLAT))
        if self.layout is not None:
            choice("layout", self.layout, LAYOUTS)
        if self.covariance_ratio is not None:
            number("covariance_ratio", self.covariance_ratio, at_least=1e-3, at_most=1e3)
        check_returning(self.returning)
        choice("messages", self.messages, MESSAGES)
        check_saturation(self)
        if self.colluders is not None:
            integer("colluders", self.colluders, at_least=0)
        number("vector_scale", self.vector_scale, above=0.0)
        number("honest_fraction", self.honest_fraction, above=0.0, at_most=1.0)
        choice("protects", self.protects, PROTECTS)
        choice("noise_draws", self.noise_draws, NOISE_DRAWS)
        if self.noise_draws == "sum":
            self._check_draws()
        if self.shuffled:
            self._check_shuffled()
        if self.protocol == USER_BIT:
            self._check_bits()
        elif self.protects == "reward":
            self._check_rewards()
        self._check_protocol()
        if self.delay is not None:
            check_private_delay(self)
        if self.clock is not None:
            check_private_clock(self)

    def _check_draws(self) -> None:
        """Raise InputError for keys that do not fit ``noise_draws`` = "sum".

        "sum" draws only the noise of the sum over silos. It does not fit keys with which a silo's
        separate noise is used.
        """
        if self.protocol not in SUMMED_NOISE_PROTOCOLS:
            raise InputError(
                f'noise_draws "sum" needs protocol {", ".join(SUMMED_NOISE_PROTOCOLS[:-1])} or '
                f"{SUMMED_NOISE_PROTOCOLS[-1]}, "
                "in which each silo adds Gaussian noise and the server uses only the sum, got "
                f'"{self.protocol}"'
            )
        if self.share is not None:
            raise InputError(
                'noise_draws "sum" needs a curve without share: in local rounds a silo uses the '
                "noise of its own reports"
            )

    @property
    def clips(self) -> bool:
        """True if features and rewards are clipped to known bounds."""
        return self.bounds(published=self.calibration == "published-code") is not None

    def settled(self, problem: ProblemSpec) -> Self:
        """Return the config with the defaults that depend on the problem filled in.

        These are ``release``, ``saturation``, the keys of batches and those of the base class. The
        default of ``release`` is "factorised" if the curve sets ``saturation`` above 0. Otherwise
        it is the type with the smallest expected loss (`_default_release`).
        """
        if self.shuffled and not problem.arms:
            raise InputError(
                "shuffled = true needs arms without contexts: where contexts differ, the features "
                "of an action identify its user, so a count hides nobody"
            )
        settled = super().settled(problem)
        if self.shuffled and self.grows and self.batch_first is self.batch_ratio is None:
            settled = msgspec.structs.replace(settled, batch_size=_counted_rounds(self, problem))
        exact_vector_sum = settled.protocol == "shuffle-vector" and settled.calibration == "exact"
        _, slack_factor = settled.ranking
        has_sieve = bool(slack_factor)
        if exact_vector_sum and has_sieve and settled.grows:
            first = _first_batch_rounds(settled, problem)
            settled = settled.with_batches(first, SHUFFLED_BATCH_RATIO)
        if settled.protocol in (*RELEASABLE, "secure-sum"):
            settled = with_saturation(settled, problem, lambda c, s: make_noise(c, problem, s))
        else:
            settled = msgspec.structs.replace(settled, saturation=settled.saturation or 0.0)
        release = settled.release
        if release is None:
            release = "factorised" if self.saturation else _default_release(settled, problem)
        return with_release(settled, release)

    def _check_rewards(self) -> None:
        """Raise InputError for keys that do not fit ``protects`` = "reward"."""
        if self.protocol not in ("silo-ldp", "silo-ldp-prefix", "central"):
            raise InputError(
                'protects "reward" needs protocol "silo-ldp", "silo-ldp-prefix" or "central", got '
                f'"{self.protocol}"'
            )
        if not self.lazy or self.clip is False:
            raise InputError(
                'protects "reward" needs lazy = true and clip = true: actions must not depend on '
                "raw rewards, and rewards must be bounded"
            )
        for key, default in (
            ("calibration", "exact"),
            ("layout", None),
            ("covariance_ratio", None),
        ):
            if getattr(self, key) != default:
                raise InputError(
                    f'{key} has no meaning where protects is "reward", got {getattr(self, key)!r}'
                )

    def _check_bits(self) -> None:
        """Raise InputError for keys that do not fit protocol "user-bit", where users send bits."""
        if self.protects != "reward":
            raise InputError(
                f'protocol "{USER_BIT}" needs protects = "reward": contexts are public, got '
                f'"{self.protects}"'
            )
        if self.clip is False:
            raise InputError(
                f'protocol "{USER_BIT}" needs clip = true: a reward out of range fits into no bit'
            )
        unset = ("release", "layout", "covariance_ratio", "saturation", "reward_centre", "share")
        for key, default in (
            *((key, None) for key in unset),
            ("calibration", "exact"),
            ("relation", "replace"),
        ):
            if getattr(self, key) != default and not self._has_default_of_bits(key):
                raise InputError(
                    f'{key} has no meaning for protocol "{USER_BIT}", which adds no noise to sums, '
                    f"got {getattr(self, key)!r}"
                )

    def _check_shuffled(self) -> None:
        """Raise InputError for keys that do not fit ``shuffled`` = true; set the default sieve."""
        if self.protocol != USER_BIT:
            raise InputError(f'shuffled belongs to protocol "{USER_BIT}", got "{self.protocol}"')
        number("delta", self.delta, above=0.0, below=1.0)
        if self.sieve is None:
            # With a sieve of 1, all users of a batch get the same arm. Otherwise the arms that pass
            # the sieve would be ranked by a random draw for each user.
            msgspec.structs.force_setattr(self, "sieve", 1.0)
        arms_differ = (
            "users of a batch could get different arms, and a count of few users hides them"
        )
        for key, required, reason in (
            ("lazy", (True,), "silos would use single bits before they are counted"),
            ("returning", (1,), "the account is for users of one batch"),
            ("score", (UCB,), arms_differ),
            ("sieve", (1.0,), arms_differ),
            ("bonus", (None, 1.0), arms_differ),
        ):
            if (value := getattr(self, key)) not in required:
                raise InputError(
                    f"shuffled = true needs {key} = {json.dumps(required[-1])}, got "
                    f"{json.dumps(value)}: {reason}"
                )

    def _has_default_of_bits(self, key: str) -> bool:
        """Return True if the key has the value that `settled` fills in for protocol "user-bit"."""
        return (key, getattr(self, key)) in (("release", "tree"), ("saturation", 0.0))

    @property
    def ratio(self) -> float:
        """The key ``covariance_ratio``, or its default.

        It is the std of the noise in the sum of x x' divided by the std of the noise in the sum of
        x y.
        """
        if self.covariance_ratio is not None:
            return self.covariance_ratio
        if self.reward_centre is not None:
            # Rewards are centred. The radius contains a bound on ||N (theta* - theta0) - h||. N and
            # h are the noise in the sums of x x' and x (y - r0). theta0 is the vector that gives
            # every row the reward r0 (docs/centred.md). With a constant feature 1 / sqrt(2 kappa)
            # and kappa from 2 to 4, ratio 1 makes this bound at most 3 % larger than the best ratio
            # would.
            return 1.0
        # The other calibrations and layouts fix the ratio that their formulas assume.
        can_choose = self.calibration == "exact" and self.layout in (None, "goe2")
        return DIRECT_RATIO if self.radius == "direct" and can_choose else 1.0

    def _check_protocol(self) -> None:
        """Raise InputError for a key whose value does not fit the protocol, or has no effect."""
        may_be_flat = self.protocol == "shuffle-vector" and self.release in (FLAT, None)
        needs_ratio_1 = PROTOCOLS[self.protocol].shuffled and not may_be_flat
        if needs_ratio_1 and self.covariance_ratio not in (None, 1.0):
            raise InputError(
                f'covariance_ratio belongs to release "{FLAT}" where messages are shuffled, got '
                f'{self.covariance_ratio:g} for "{self.protocol}"'
            )
        if PROTOCOLS[self.protocol].bits:
            if self.layout not in (None, "iid"):
                raise InputError(
                    f'layout must be "iid" for {self.protocol}: each entry i <= j has separate '
                    f'bits, got "{self.layout}"'
                )
            if self.vector_scale != 1.0 and self.calibration != "published-code":
                raise InputError(
                    'vector_scale belongs to calibration "published-code", got '
                    f'{self.vector_scale:g} with "{self.calibration}"'
                )
        masked = PROTOCOLS[self.protocol].masked
        if masked and self.calibration != "exact":
            raise InputError(
                f'calibration must be "exact" for {self.protocol}: no paper states other '
                f'constants, got "{self.calibration}"'
            )
        shuffle_vector, secure_sum = ("shuffle-vector",), ("secure-sum",)
        for key, default, protocols in (
            ("messages", "aggregate", shuffle_vector + secure_sum),
            ("vector_scale", 1, shuffle_vector),
            ("honest_fraction", 1, shuffle_vector),
            ("colluders", None, secure_sum),
        ):
            if getattr(self, key) != default and self.protocol not in protocols:
                protocol_names = " or ".join(f'"{name}"' for name in protocols)
                raise InputError(
                    f"{key} belongs to protocol {protocol_names}, "
                    f'got {getattr(self, key)!r} for "{self.protocol}"'
                )


@lru_cache(maxsize=256)
def _first_batch_rounds(config: PrivateConfig, problem: ProblemSpec) -> int:
    """Return the default number of rounds of the first batch, for protocol "shuffle-vector".

    It is the smaller of n0 and T / 50. n0 is the number of rounds after which a release is useful
    (`useful_rounds`). A release before round n0 is not useful, and its noise remains in all later
    prefix sums. The limit T / 50 has two reasons. First, a batch explores only one direction if all
    rounds offer the same actions. Second, if n0 is above T / 50, sharing does not pay within T
    rounds.
    """
    single_batch = msgspec.structs.replace(config, release=FLAT)
    noise = make_noise(single_batch, problem, Schedule.at((problem.horizon,), problem.horizon))
    max_rounds = problem.horizon // SHUFFLED_BATCH_DIVISOR
    return max(1, min(math.ceil(useful_rounds(noise, problem)), max_rounds))


@lru_cache(maxsize=256)
def _counted_rounds(config: PrivateConfig, problem: ProblemSpec) -> int:
    """Return the default ``batch_size``, in rounds, if a shuffler counts the ones of users' bits.

    It is the least number of rounds with which a flip probability of `COUNTED_FLIPS` meets the
    budget. It is at least T / 500. It is at most T / (20 K) for K arms, because all users of a
    batch get the same arm and each arm must be tried.
    """
    assert config.epsilon is not None and config.delta is not None
    budget = Budget(config.epsilon, config.delta, config.relation, unit="reward")
    rounds = math.ceil(users_for(budget, int(FLIP_UNITS * COUNTED_FLIPS)) / problem.silos)
    least_rounds, most_rounds = (
        math.ceil(problem.horizon / divisor) for divisor in (500, 20 * problem.dimension)
    )
    return min(max(rounds, least_rounds), most_rounds)


@lru_cache(maxsize=256)
def _default_release(config: PrivateConfig, problem: ProblemSpec) -> str:
    """Return the release type with the smallest expected loss for a private-fedlinucb curve."""
    schedule = reported_batches(config, problem)
    noise_of = partial(make_noise, problem=problem, schedule=schedule)
    return usual_release(config, config.protocol, problem, schedule, noise_of)


def build_private(config: PrivateConfig, problem: ProblemSpec) -> System:
    """Build the system of one private-fedlinucb curve of an experiment: its plan and certificate.

    Parameters
    ----------
    config : PrivateConfig
        Keys of the curve.
    problem : ProblemSpec
        Sizes (silos M, rounds T, dimension d), and guarantees about the data.

    Raises
    ------
    InputError
        If protocol, release type and calibration do not fit together, or do not fit the problem.
    """
    release = config.release
    assert release is not None
    protocol = released_as(PROTOCOLS[config.protocol], release)
    schedule, clocks = reported_batches(config, problem), clocks_of(config, problem)
    noise = make_noise(config, problem, schedule)
    if noise.secure is not None:
        # For every release type of a secure sum, the server multiplies the masked sums by a matrix
        # of the mechanism to get prefix sums. The plan calls this "factorised".
        protocol = under_masks(protocol, problem.silos, noise.secure.colluders)
        release = "factorised"
    if config.shuffled:
        protocol = counting_ones(protocol)
    protocol = with_trusted_silos(protocol, share_of(config))
    plan, theory = assemble(
        config,
        problem,
        protocol,
        schedule,
        config.bounds(published=config.calibration == "published-code"),
        noise,
        individual=config.messages == "individual",
        # With release type "flat" the users' messages contain the noise. The plan's own field
        # `release` then keeps its default, "tree".
        release="tree" if release == FLAT else release,
        clocks=clocks,
    )
    plan = replace(plan, drawn_once=config.noise_draws == "sum")
    check_bits(plan)
    distribution = noise.distribution
    plan, theory = with_own_rounds(
        plan, theory, config, distribution.variances, float(distribution.noises)
    )
    plan, theory = with_delay(plan, theory, config.delay)
    plan, theory = with_clock(plan, theory, clocks)
    source = f"{protocol.source}; {noise.mechanism.source}"
    plan, certificate = certify(plan, problem, theory, noise, source)
    return System("private-fedlinucb", plan, certificate, theory=theory)


def check_bits(plan: Plan) -> None:
    """Raise InputError if the messages of a plan's vector sum have too many bits.

    The number of bits of one entry of a tree node must be below 2^62, so that it fits into a 64-bit
    integer. If every bit is drawn separately, all bits of a release must also fit into memory.
    """
    if plan.encoding is None or not plan.levels:
        return
    top_level = plan.levels - 1
    points = plan.silos * plan.points(top_level)
    if points * plan.encoding.message_bits(top_level) >= 2**62:
        raise InputError(
            f"epsilon or delta is too small for {plan.protocol.id}: a node would hold "
            f"{points * plan.encoding.message_bits(top_level):.3g} bits an entry, more than 2^62"
        )
    # Without a shuffler only the number of ones matters.
    if not plan.individual or not plan.protocol.shuffled:
        return
    if plan.clip is None:
        raise InputError(
            'messages = "individual" needs clip = true: a message of 2 g + b bits cannot hold an '
            "entry outside [-1, 1]"
        )
    message_bits = sum(
        plan.silos * plan.points(j) * plan.encoding.message_bits(j) * plan.statistic_size
        for j in range(plan.levels)
    )
    if message_bits > MAX_BITS:
        remedy = '"aggregate" draws the number of ones, which has the same distribution'
        if plan.by_users:
            remedy = f"a batch_size below {plan.batch_size} sends fewer"
        raise InputError(
            f'messages = "individual" would store {message_bits:.3g} bits at once, more than the '
            f"limit of {MAX_BITS:.3g}; {remedy}"
        )


PRIVATE_FEDLINUCB = Algorithm(
    id="private-fedlinucb",
    paper="zhou-chowdhury-2024",
    summary="federated LinUCB in fixed batches under a privacy protocol",
    config=PrivateConfig,
    build=build_private,
)


# ---- Local LinUCB: no federation -----------------------------------------------------------------


class LocalConfig(DelayConfig, frozen=True, kw_only=True):
    """Keys of a local-linucb curve: the keys of `DelayConfig` except batch keys and ``lazy``."""

    lazy: bool = False
    alone: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("batch_size", "release_rounds"):
            if getattr(self, key) is not None:
                raise InputError(f"{key} has no meaning for local-linucb: silos never synchronise")
        if self.lazy:
            raise InputError("lazy has no meaning for local-linucb: silos never synchronise")


def build_local(config: LocalConfig, problem: ProblemSpec) -> System:
    """Build the system of one local-linucb curve of an experiment: its plan and certificate."""
    clip = config.bounds(published=config.radius == "published-code")
    plan, theory = assemble(config, problem, PROTOCOLS["none"], Schedule(problem.horizon, 0), clip)
    plan, theory = with_delay(plan, theory, config.delay)
    source = "huang-2023, Algorithm 2; nothing leaves a silo"
    plan, certificate = certify(plan, problem, theory, None, source)
    return System("local-linucb", plan, certificate, theory=theory)


LOCAL_LINUCB = Algorithm(
    id="local-linucb",
    paper="huang-2023",
    summary="each silo alone: LinUCB without federation",
    config=LocalConfig,
    build=build_local,
)


# ---- Random actions ------------------------------------------------------------------------------


class RandomConfig(Config, frozen=True, kw_only=True):
    """Keys of a curve that chooses uniformly random actions, and so must keep all defaults."""

    lazy: bool = False

    def __post_init__(self) -> None:
        """Check that every key has its default, either unset or as the base class fills it in."""
        super().__post_init__()
        unset_keys = Config(lazy=False)
        filled_keys = Config(lazy=False, sieve=1.0, bonus=1.0, tie_bonus=1.0)
        for key in Config.__struct_fields__:
            if getattr(self, key) not in (getattr(unset_keys, key), getattr(filled_keys, key)):
                raise InputError(f"{key} has no meaning for random: it learns nothing")


def build_random(config: RandomConfig, problem: ProblemSpec) -> System:
    """Build the system of one random curve of an experiment: its plan and certificate."""
    plan, theory = assemble(config, problem, PROTOCOLS["none"], Schedule(problem.horizon, 0), None)
    plan = replace(plan, policy="random", lazy=True)
    plan, certificate = certify(plan, problem, theory, None, "uniformly random actions")
    return System("random", plan, certificate, theory=theory)


RANDOM = Algorithm(
    id="random",
    paper="none",
    summary="a uniformly random action each round: what chance gives",
    config=RandomConfig,
    build=build_random,
)
