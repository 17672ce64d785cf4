"""A copy is found again after an edit, and the edit is learnt as a rewrite."""

from akunu_py.drafting.alignment import SOLID_RUN, Alignment, Rewrites
from akunu_py.drafting.occurrences import Occurrences

SOURCE = list(range(100, 140))


def copying(*output: int, length: int = SOLID_RUN) -> tuple[Occurrences, Alignment]:
    """A copy of `SOURCE` that held for `length` tokens and was followed by `output`."""
    occurrences = Occurrences([*SOURCE, 1])
    alignment = Alignment(occurrences)
    alignment.follow(0, 0)
    feed(occurrences, alignment, *SOURCE[:length], *output)
    return occurrences, alignment


def feed(occurrences: Occurrences, alignment: Alignment, *tokens: int) -> None:
    for token in tokens:
        alignment.advance(token)
        occurrences.append(token)


def test_a_copy_is_found_again_after_replacement_insertion_and_removal() -> None:
    following = SOLID_RUN
    for output, position in (
        ((7, SOURCE[following + 1]), following + 2),
        ((7, 8, 9, SOURCE[following]), following + 1),
        ((SOURCE[following + 3],), following + 4),
    ):
        _, alignment = copying(*output)
        found = alignment.resumption()
        assert found is not None
        assert found.position == position


def test_the_edit_between_two_copies_is_learnt() -> None:
    occurrences, alignment = copying(7, 8, SOURCE[SOLID_RUN + 1])
    found = alignment.resumption()
    assert found is not None
    alignment.follow(found.position, found.length, resumed=found.anchor)
    feed(occurrences, alignment, *SOURCE[SOLID_RUN + 2 : SOLID_RUN + 5])
    rewrite = alignment.rewrites.at(occurrences.tokens, SOLID_RUN)
    assert rewrite is not None
    assert (rewrite.old, rewrite.new) == ((SOURCE[SOLID_RUN],), (7, 8))


def test_a_rewrite_is_followed_and_forgotten_when_it_is_not_made() -> None:
    occurrences = Occurrences([10, 5, 11, 12, 13, 1])
    alignment = Alignment(occurrences)
    alignment.rewrites.learn([5], [6, 7], 0)
    alignment.follow(0, 0)
    feed(occurrences, alignment, 10, 6, 7, 11)
    assert alignment.source == 3
    assert alignment.rewrites.at(occurrences.tokens, 1) is not None
    alignment.follow(0, 0)
    feed(occurrences, alignment, 10, 5, 11)
    assert alignment.source == 3
    assert alignment.rewrites.at(occurrences.tokens, 1) is None


def test_a_copy_does_not_resume_in_another_reference() -> None:
    occurrences = Occurrences([*SOURCE, 1], [SOURCE[:12]])
    alignment = Alignment(occurrences)
    alignment.follow(0, 0)
    feed(occurrences, alignment, *SOURCE[:12], 7)
    feed(occurrences, alignment, SOURCE[3])
    found = alignment.resumption()
    assert found is None or found.position < 12


def test_a_pure_insertion_or_removal_is_anchored_by_what_follows() -> None:
    rewrites = Rewrites()
    rewrites.learn([], [8, 9], 5)
    inserted = rewrites.at([5], 0)
    assert inserted is not None
    assert (inserted.old, inserted.new) == ((5,), (8, 9, 5))
    rewrites.learn([4], [], 6)
    removed = rewrites.at([4, 6], 0)
    assert removed is not None
    assert (removed.old, removed.new) == ((4, 6), (6,))
