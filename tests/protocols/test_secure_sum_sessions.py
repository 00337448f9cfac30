"""Check sessions of masked messages: a restarted party never has the same mask twice."""

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


def silos_with_sessions(plan, noise=None):
    """Return silos with the same old keys that have exchanged their sessions."""
    silos = [Silo(plan, index, noise, KEYS[index]) for index in range(SILOS)]
    sessions = {index: silo.session for index, silo in enumerate(silos)}
    for silo in silos:
        silo.meet(sessions)
    return silos


def first_reports(silos):
    """Return the first report of every silo, of one record per round."""
    while not silos[0].due:
        for silo in silos:
            silo.select(np.eye(D)[:1] * 0.9)
            silo.observe(0.5)
    return [silo.report() for silo in silos]


def mask_pair(seed=1):
    """Return the masks of two silos."""
    return [Masks(index, simulated_keys(seed, index, 2)) for index in range(2)]


def test_a_restarted_silo_with_the_same_keys_has_other_masks():
    """Check equal rows of one seed, so that only the masks differ, in all words."""
    plan, noise = make(messages="individual").plan, SeededNoise(3)
    first, second = (first_reports(silos_with_sessions(plan, noise)) for _ in "ab")
    for first_report, second_report in zip(first, second, strict=True):
        assert (first_report.values != second_report.values).all()
        # The difference of two masks is uniform: its high bits are those of random words.
        assert (first_report.values - second_report.values > 2**40).all()
    totals = [sum(message.values for message in messages) for messages in (first, second)]
    np.testing.assert_array_equal(*totals)


def test_silos_without_sessions_warn_about_repeated_masks():
    plan = make(messages="individual").plan
    simulated = [
        [Silo(plan, index, SeededNoise(3), KEYS[index]) for index in range(SILOS)] for _ in "ab"
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = map(first_reports, simulated)
        first_reports(silos_with_sessions(plan))
    for first_report, second_report in zip(first, second, strict=True):
        np.testing.assert_array_equal(first_report.values, second_report.values)
    with pytest.warns(UserWarning, match="masks of silo 0 depend on its keys only"):
        first_reports([Silo(plan, index, keys=KEYS[index]) for index in range(SILOS)])


def test_a_single_restarted_silo_unmasks_nothing():
    """Check that masks do not cancel if one side has another session."""
    plan = make(messages="individual", epsilon=1e5).plan
    silos = silos_with_sessions(plan)
    restarted = Silo(plan, 0, keys=KEYS[0])
    restarted.meet({index: silo.session for index, silo in enumerate(silos) if index})
    reports = first_reports(silos)
    restarted_report = first_reports([restarted])
    correct_values = Server(plan).combine(reports).values
    masked_values = Server(plan).combine([*restarted_report, *reports[1:]]).values
    assert np.abs(correct_values).max() < 1e3 < 1e6 < np.abs(masked_values).max()


def test_masks_cancel_for_every_order_of_sessions():
    masks = [Masks(index, KEYS[index]) for index in range(SILOS)]
    sessions = {index: mask.session for index, mask in enumerate(masks)}
    for mask in reversed(masks):
        mask.meet(dict(reversed(sessions.items())))
        mask.meet({index: session for index, session in sessions.items() if index != mask.silo})
    for release in (1, 7, 2**40):
        rows = np.array([mask_of_silo.at(release, 5) for mask_of_silo in masks])
        assert not rows.sum(axis=0, dtype=np.uint64).any() and rows.any(axis=1).all()
    assert len({mask.session for mask in masks}) == SILOS


def test_every_pair_of_sessions_has_its_own_masks():
    """Check that both sessions and the order of the silos count: 64 pairs have 64 masks."""
    all_masks = set()
    for _ in range(64):
        low, high = mask_pair()
        low.meet({1: high.session})
        high.meet({0: low.session})
        mask = low.at(1, 2)
        np.testing.assert_array_equal(mask, np.uint64(0) - high.at(1, 2))
        all_masks.add(mask.tobytes())
    assert len(all_masks) == 64
    # The server replaces a session: no mask repeats one of either side, and none cancels.
    low, high = mask_pair()
    low.meet({1: bytes(32)})
    high.meet({0: low.session})
    assert (low.at(1, 8) + high.at(1, 8)).all()


@pytest.mark.parametrize(
    ("sessions", "message"),
    [
        ({}, "one for each of the 3 other silos, got silos"),
        ({1: bytes(32), 2: bytes(32)}, "got silos .1, 2."),
        ({1: bytes(32), 2: bytes(32), 3: bytes(31)}, "session of silo 3 must be 32 bytes"),
        (
            {0: bytes(32), 1: bytes(32), 2: bytes(32), 3: bytes(32)},
            "session of silo 0 in sessions must",
        ),
        ({1: bytes(32), 2: bytes(32), 4: bytes(32)}, "got silos .1, 2, 4."),
    ],
)
def test_refused_sessions_change_nothing(sessions, message):
    masks = Masks(0, KEYS[0])
    with pytest.raises(InputError, match=message):
        masks.meet(sessions)
    assert not masks.met
    np.testing.assert_array_equal(masks.at(1, 3), Masks(0, KEYS[0]).at(1, 3))


def test_silos_exchange_sessions_once_before_their_first_report():
    plan = make(messages="individual").plan
    silos = silos_with_sessions(plan)
    with pytest.raises(InputError, match="already has different sessions; start all silos again"):
        silos[0].meet({index: bytes(32) for index in range(1, SILOS)})
    secure_sum = plan.secure
    late_encoder = Encoder(secure_sum, 0, KEYS[0], SeededNoise(1))
    late_encoder.message(np.zeros(secure_sum.size))
    with pytest.raises(InputError, match="before the first message"):
        late_encoder.meet({index: bytes(32) for index in range(1, SILOS)})
    central_silo = Silo(make(protocol="central").plan, 0)
    with pytest.raises(InputError, match='not to "central"'):
        central_silo.meet({})
    with pytest.raises(InputError, match="sessions belong to masked messages"):
        _ = central_silo.session
