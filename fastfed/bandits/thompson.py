"""Thompson sampling on arms without contexts, for comparison.

``thompson`` (Thompson 1933; Agrawal and Goyal 2012, Algorithm 1) draws a mean for each arm from its
posterior, a beta distribution with a uniform prior, and chooses the arm with the largest draw. It
is not private. Silos synchronise in batches. By default, each silo also updates its posterior after
every user, before the next synchronisation.
"""

from __future__ import annotations

from dataclasses import replace

from fastfed._validate import InputError
from fastfed.bandits.assemble import assemble
from fastfed.bandits.certify import certify
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.system import Algorithm, Config, System
from fastfed.protocols.protocol import PROTOCOLS
from fastfed.protocols.score import CoreScore, Score

#: Keys of a thompson curve that may be set.
BATCHES = ("batch_size", "batch_first", "batch_ratio", "release_rounds", "lazy")


class ThompsonConfig(Config, frozen=True, kw_only=True):
    """Keys of a thompson curve: the batch keys of `Config`, and ``lazy``.

    Parameters
    ----------
    lazy : bool, default False
        True if the posterior changes at synchronisations only.
    """

    lazy: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        # `Config` fills in defaults of these three keys, so these defaults are allowed as well.
        filled_keys = Config(sieve=1.0, bonus=1.0, tie_bonus=1.0)
        for key in Config.__struct_fields__:
            allowed = getattr(Config(), key), getattr(filled_keys, key)
            if key not in BATCHES and getattr(self, key) not in allowed:
                raise InputError(f"{key} has no meaning for thompson: it has no confidence bound")

    @property
    def sieve_proven(self) -> bool:
        """False, because Thompson sampling has no confidence bound for a sieve."""
        return False


def build_thompson(config: ThompsonConfig, problem: ProblemSpec) -> System:
    """Build the system of one thompson curve of an experiment: its plan and certificate."""
    if not problem.arms:
        raise InputError(
            "thompson needs arms without contexts, whose rewards are 0 or 1 (environment "
            '"arms"): use linucb or fedlinucb with contexts'
        )
    clip = config.bounds(published=False)
    plan, theory = assemble(config, problem, PROTOCOLS["none"], config.batches(problem), clip)
    plan = replace(plan, score=Score(CoreScore("beta_draws"), diagonal=True))
    source = "Agrawal and Goyal 2012, Algorithm 1"
    plan, certificate = certify(plan, problem, theory, None, source)
    return System("thompson", plan, certificate, theory=theory)


THOMPSON = Algorithm(
    id="thompson",
    paper="none",
    summary="Thompson sampling on arms with rewards 0 and 1, federated, not private",
    config=ThompsonConfig,
    build=build_thompson,
)
