"""From which epsilon, or how many silos, sharing would help: roughly, by short simulations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fastfed._validate import InputError
from fastfed.advice.contest import Contest, Entrant, Size
from fastfed.advice.scale import round_cost
from fastfed.advice.systems import Choice, Question, batch_sizes

#: The search goes up by this factor at a time, so often, and halves what it found so often.
STEP, STEPS, HALVINGS = 4.0, 6, 2
#: Plays of both searches, each of two batch sizes and so many replicates.
REPLICATES = 2


def pays_from(
    question: Question, best: Choice, contest: Contest, seconds: float
) -> tuple[float | None, int | None]:
    """The least epsilon, and the least number of silos, at which ``best`` does better than alone.

    Each to within a factor of about 1.4, all else as it is; None where none was found up to 4096
    times as much. The protocol and release are those of ``best``; of its batch size and an eighth
    of it the better counts.
    """
    alone = contest.regrets["alone"].mean
    one = contest.horizon * round_cost(contest.actions, question.setting.dimension)
    plays = 2 * (STEPS + HALVINGS) * 2 * REPLICATES
    least = contest.least_silos(question.setting.dimension)
    few = max(least, min(question.setting.silos, int(seconds / (plays * one))))

    def helps(asked: Question) -> bool:
        silos = asked.setting.silos
        own = replace(contest, silos=silos, replicate=0, on_stage=None, played={}, regrets={})
        entrants = []
        least = batch_sizes(contest.horizon)[0]
        for size in sorted({max(least, best.batch_size // by) for by in (1, 8)}):
            try:
                made = asked.make(best.trust, best.protocol, best.release, size)
            except InputError:
                continue
            entrants.append(Entrant(made.label, made.plan, made.node))
        if not entrants:
            return False
        return bool(
            own.finals(entrants, Size(few, own.horizon, REPLICATES)).mean(axis=0).min() < alone
        )

    epsilon = _least(question.epsilon, lambda e: helps(replace(question, epsilon=e)))
    silos = _least(
        float(question.setting.silos),
        lambda m: helps(replace(question, setting=replace(question.setting, silos=round(m)))),
    )
    return epsilon, None if silos is None else round(silos)


def _least(start: float, holds: Callable[[float], bool]) -> float | None:
    """The least value above start for which it holds, on a coarse logarithmic scale."""
    low, high = start, start
    for _ in range(STEPS):
        low, high = high, high * STEP
        if holds(high):
            break
    else:
        return None
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
