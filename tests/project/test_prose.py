"""The pages use no phrase that tests/prose.py bans, and `scripts/prose` finds planted phrases."""

import prose
import pytest


def test_the_pages_use_no_banned_phrase():
    assert not prose.complaints()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A silo has a model of its own.", [(1, "of its own")]),
        ("One line.\nIt runs by\n  itself here.", [(2, "by itself")]),
        ("Code `put back` and\n```\nput back\n```\nare not prose.", []),
        (f"{prose.QUOTED_SECTION}\n\n| heard |\n\nA hub heard it.", [(5, "heard")]),
        ("## Other\n\n| heard |", [(3, "heard")]),
        ("[link](heard.md), thereby itself", []),
    ],
)
def test_planted_phrases_are_found_at_their_lines(text, found):
    assert [(line, phrase) for line, phrase, _ in prose.banned_phrases(text)] == found


def test_a_reading_is_drawn_by_its_seed():
    texts = prose.draw_passages(1)
    assert len(texts) == len(set(texts)) == 60
    assert texts == prose.draw_passages(1) != prose.draw_passages(2)
    assert sum(text.split(":")[0].startswith("fastfed") for text in texts) == 20
    for text in texts:
        name, line = text.split("\n")[0].split(":")
        assert (prose.ROOT / name).exists() and int(line) >= 1
