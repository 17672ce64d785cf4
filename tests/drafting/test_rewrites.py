from akunu_py.drafting.rewrites import LONGEST_OLD, Rewrites


def test_the_whole_old_run_must_stand_there() -> None:
    rewrites = Rewrites()
    rewrites.learn([1, 2], [9], 0)
    assert rewrites.at([0, 1, 2], 1) is not None
    assert rewrites.at([0, 1, 3], 1) is None
    assert rewrites.at([0, 1], 1) is None
    assert rewrites.at([0, 1], 2) is None


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


def test_runs_too_long_to_be_a_habit_are_passed_over() -> None:
    rewrites = Rewrites()
    rewrites.learn([1] * (LONGEST_OLD + 1), [2], 0)
    assert not rewrites


def test_the_latest_edit_replaces_an_earlier_one() -> None:
    rewrites = Rewrites()
    rewrites.learn([1], [2], 0)
    rewrites.learn([1], [3], 0)
    found = rewrites.at([1], 0)
    assert found is not None
    assert (found.new, found.repeats) == ((3,), 0)
