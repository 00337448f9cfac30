"""Sessions of masked messages: a party that is started again never has a mask a second time."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from test_secure_sum_system import SILOS, D, make

from fastfed import InputError
from fastfed._random import SeededNoise
from fastfed.bandits.silo import Silo
from fastfed.protocols.secure_sum import Encoder, Masks, simulated_keys
from fastfed.protocols.server import Server

KEYS = [simulated_keys(1, i, SILOS) for i in range(SILOS)]


def met(plan, noise=None):
    """Silos with the same old keys that have exchanged their sessions."""
    silos = [Silo(plan, i, noise, KEYS[i]) for i in range(SILOS)]
    sessions = {i: silo.session for i, silo in enumerate(silos)}
    for silo in silos:
        silo.meet(sessions)
    return silos


def first(silos):
    """Everybody's first report, of one record a round."""
    while not silos[0].due:
        for silo in silos:
            silo.select(np.eye(D)[:1] * 0.9)
            silo.observe(0.5)
    return [silo.report() for silo in silos]


def pair(seed=1):
    return [Masks(i, simulated_keys(seed, i, 2)) for i in range(2)]


def test_a_silo_that_is_started_again_with_its_keys_has_other_masks():
    """One seed makes equal rows: what differs is the mask, in all words, as between strangers."""
    plan, noise = make(messages="individual").plan, SeededNoise(3)
    once, again = (first(met(plan, noise)) for _ in "ab")
    for a, b in zip(once, again, strict=True):
        assert (a.values != b.values).all()
        # The difference of two masks is uniform: its high bits are those of random words.
        assert (a.values - b.values > 2**40).all()
    totals = [sum(m.values for m in messages) for messages in (once, again)]
    np.testing.assert_array_equal(*totals)


def test_without_sessions_the_mask_is_the_same_and_the_silo_says_so():
    plan = make(messages="individual").plan
    simulated = [[Silo(plan, i, SeededNoise(3), KEYS[i]) for i in range(SILOS)] for _ in "ab"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        once, again = map(first, simulated)
        first(met(plan))
    for a, b in zip(once, again, strict=True):
        np.testing.assert_array_equal(a.values, b.values)
    with pytest.warns(UserWarning, match="masks of silo 0 depend on its keys only"):
        first([Silo(plan, i, keys=KEYS[i]) for i in range(SILOS)])


def test_only_one_silo_is_started_again_and_nothing_is_unmasked():
    """Another session on one side: the masks do not cancel, and the sum is no sum."""
    plan = make(messages="individual", epsilon=1e5).plan
    silos = met(plan)
    alone = Silo(plan, 0, keys=KEYS[0])
    alone.meet({i: silo.session for i, silo in enumerate(silos) if i})
    reports = first(silos)
    lonely = first([alone])
    honest = Server(plan).combine(reports).values
    mixed = Server(plan).combine([*lonely, *reports[1:]]).values
    assert np.abs(honest).max() < 1e3 < 1e6 < np.abs(mixed).max()


def test_masks_cancel_whatever_the_order_in_which_silos_met():
    masks = [Masks(i, KEYS[i]) for i in range(SILOS)]
    sessions = {i: mask.session for i, mask in enumerate(masks)}
    for mask in reversed(masks):
        mask.meet(dict(reversed(sessions.items())))
        mask.meet({i: s for i, s in sessions.items() if i != mask.silo})
    for release in (1, 7, 2**40):
        rows = np.array([m.at(release, 5) for m in masks])
        assert not rows.sum(axis=0, dtype=np.uint64).any() and rows.any(axis=1).all()
    assert len({mask.session for mask in masks}) == SILOS


def test_a_pair_of_sessions_has_its_own_masks():
    """Both sessions count, and their order is that of the silos: 64 pairs, 64 masks."""
    seen = set()
    for _ in range(64):
        low, high = pair()
        low.meet({1: high.session})
        high.meet({0: low.session})
        mask = low.at(1, 2)
        np.testing.assert_array_equal(mask, np.uint64(0) - high.at(1, 2))
        seen.add(mask.tobytes())
    assert len(seen) == 64
    # The server swaps a session: no mask that either side has had, and none that cancels.
    low, high = pair()
    low.meet({1: bytes(32)})
    high.meet({0: low.session})
    assert (low.at(1, 8) + high.at(1, 8)).all()


@pytest.mark.parametrize(
    ("sessions", "message"),
    [
        ({}, "one for each of the 3 other silos, got silos"),
        ({1: bytes(32), 2: bytes(32)}, "got silos .1, 2."),
        ({1: bytes(32), 2: bytes(32), 3: bytes(31)}, "session of silo 3 must be 32 bytes"),
        ({0: bytes(32), 1: bytes(32), 2: bytes(32), 3: bytes(32)}, "session of silo 0 as it is"),
        ({1: bytes(32), 2: bytes(32), 4: bytes(32)}, "got silos .1, 2, 4."),
    ],
)
def test_sessions_that_do_not_fit_are_refused_and_change_nothing(sessions, message):
    masks = Masks(0, KEYS[0])
    with pytest.raises(InputError, match=message):
        masks.meet(sessions)
    assert not masks.met
    np.testing.assert_array_equal(masks.at(1, 3), Masks(0, KEYS[0]).at(1, 3))


def test_silos_meet_once_and_before_their_first_report():
    plan = make(messages="individual").plan
    silos = met(plan)
    with pytest.raises(InputError, match="already has different sessions; start all silos again"):
        silos[0].meet({i: bytes(32) for i in range(1, SILOS)})
    made = plan.secure
    late = Encoder(made, 0, KEYS[0], SeededNoise(1))
    late.message(np.zeros(made.size))
    with pytest.raises(InputError, match="before the first message"):
        late.meet({i: bytes(32) for i in range(1, SILOS)})
    other = Silo(make(protocol="central").plan, 0)
    with pytest.raises(InputError, match='not to "central"'):
        other.meet({})
    with pytest.raises(InputError, match="sessions belong to masked messages"):
        _ = other.session
