"""Where an answer stands in what it was given, as the guided attention is told."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from models.training.batches import align_repeated, repeated
from models.training.copies import AFTER, AHEAD, END, NOWHERE, START, align

OPEN, OLD, NEW, STOP = 91, 92, 93, 94


def test_an_edit_points_at_what_it_replaces_and_at_what_it_writes() -> None:
    instruction, code = [OPEN, OLD, NEW], [1, 2, OLD, 4, 5, 6, STOP]
    answer = [1, 2, NEW, 4, 5, 6, STOP]
    tokens = np.array([*instruction, *code, *answer])
    alignment = align(tokens, np.arange(len(tokens)) >= 10)
    assert alignment.place[10:].tolist() == [3, 4, 5, 6, 7, 8, 9]
    assert alignment.source[10:].tolist() == [3, 4, 2, 6, 7, 8, 9]
    assert alignment.targets[AHEAD][10:].tolist() == [4, 5, 6, 7, 8, 9, 10]
    assert np.flatnonzero(alignment.turns[10:]).tolist() == [0, 2, 3]


def test_an_insertion_stands_before_what_follows_it_and_a_deletion_is_jumped_over() -> None:
    tokens = np.array([1, 2, 3, 4, 5, STOP, 1, 2, 80, 3, 5, STOP])
    alignment = align(tokens, np.arange(12) >= 6)
    assert alignment.place[6:].tolist() == [0, 1, 2, 2, 4, 5]
    assert alignment.source[6:].tolist() == [0, 1, NOWHERE, 2, 4, 5]


def test_an_undone_edit_stands_in_the_code_before_it() -> None:
    fences = ([OPEN, 95, 96], [96, OPEN, STOP])
    code, changed = [11, 12, OLD, 14, 15, 16], [11, 12, NEW, 14, 15, 16]
    tokens, learned, begins = [70, *code], [False] * 7, list[int]()
    # An edit, its undoing, and the code once more, with a sentence below it.
    for body, said in ((changed, []), (code, []), (code, [80, 81])):
        tokens += [71]
        begins.append(len(tokens))
        tokens += [*fences[0], *body, *fences[1][:-1], *said, STOP]
        learned += [False] + [True] * (12 + len(said))
    alignment = align(np.array(tokens), np.array(learned), fence=OPEN)
    sources = [alignment.source[at + 3 : at + 9].tolist() for at in begins]
    assert sources[1] == [1, 2, 3, 4, 5, 6]  # not in the answer in between
    assert sources[2] == [begins[1] + 3 + i for i in range(6)]


def test_what_a_request_quotes_leads_from_its_end_to_its_begin_and_an_answer_to_its_end() -> None:
    quote, code = [OPEN, 20, 21, OPEN], [1, 2, 3, 20, 21, 4, 20, 5, 6, 7, STOP]
    answer = [1, 2, 3, NEW, 4, 20, 5, 6, 7, STOP]
    tokens = np.array([*quote, *code, *answer])
    targets = align(tokens, np.arange(len(tokens)) >= 15).targets
    assert {i: int(s) for i, s in enumerate(targets[START]) if s != NOWHERE} == {9: 7}
    assert targets[END][15:].tolist() == [4, 5, 6, 8, 9, 10, 11, 12, 13, 14]
    assert targets[AFTER][18] == 9


@given(st.lists(st.integers(0, 5), max_size=60), st.lists(st.booleans(), max_size=60))
@example([0, 0, 1, 2, 0, 1, 0, 0], [False, False, True, False, False, True, True, True])
def test_a_source_is_earlier_and_holds_the_same_token(ids: list[int], flags: list[bool]) -> None:
    length = min(len(ids), len(flags))
    tokens, learned = np.array(ids[:length], int), np.array(flags[:length], bool)
    alignment = align(tokens, learned)
    for position, targets in enumerate(zip(*alignment.targets, strict=True)):
        place, source, ahead, *_ = targets
        assert all(target == NOWHERE or target < position for target in targets)
        assert ahead == NOWHERE or (ahead == place + 1 and ahead < position - 1)
        if source != NOWHERE:
            assert learned[position]
            assert source < position
            assert tokens[source] == tokens[position]


def test_a_repetition_points_one_stretch_back_also_when_cut_short() -> None:
    tokens, learned = repeated(np.random.default_rng(1), np.arange(10, 17))
    for length in (3, 8, 13, len(tokens)):
        alignment = align_repeated(learned[:length])
        for position in range(length):
            expected = position - 7 if learned[position] else NOWHERE
            assert alignment.place[position] == alignment.source[position] == expected
