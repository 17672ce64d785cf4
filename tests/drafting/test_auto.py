"""The default drafter copies long, resumes after edits, repeats them, and does not guess."""

from random import Random

import pytest

from akunu_py.bench.replay import ReplayCase, replay
from akunu_py.drafting.auto import AutoDrafter
from akunu_py.drafting.base import Draft
from akunu_py.planning.planner import FixedPlanner

CODE = list(range(1_000, 1_120))
OLD, NEW = 5, (6, 7)


def with_name(name: tuple[int, ...]) -> list[int]:
    """Code in which every tenth place is a name."""
    places = range(0, len(CODE), 10)
    return [token for start in places for token in (*CODE[start : start + 9], *name)]


def decode(drafter: AutoDrafter, text: list[int], limit: int = 32) -> list[tuple[Draft, int]]:
    """Rounds that emit `text`: each draft, and how much of it was accepted."""
    rounds = []
    while text:
        draft = drafter.propose(limit)
        accepted = 0
        while accepted < min(len(draft), len(text)) and draft.tokens[accepted] == text[accepted]:
            accepted += 1
        drafter.feedback(draft, accepted)
        drafter.extend(text[: accepted + 1])
        text = text[accepted + 1 :]
        rounds.append((draft, accepted))
    return rounds


def test_a_copy_soon_uses_the_whole_limit() -> None:
    drafter = AutoDrafter()
    drafter.begin([*CODE, 1, 2, *CODE[:2]])
    rounds = decode(drafter, CODE[2:])
    lengths = [len(draft) for draft, _ in rounds]
    assert max(lengths) >= 20
    assert len(rounds) <= 10
    assert all(accepted == len(draft) for draft, accepted in rounds[:-2])


def test_an_answer_that_begins_like_an_earlier_text_gets_a_long_draft_immediately() -> None:
    drafter = AutoDrafter()
    drafter.begin([*CODE, 1, 2, CODE[0], 3, 2])
    drafter.extend(CODE[40:42])
    from_the_start = drafter.propose(32)
    drafter.begin([*CODE, 1, 2, CODE[0], 3, 2, 4])
    drafter.extend([5, *CODE[40:42]])
    amid_the_answer = drafter.propose(32)
    assert from_the_start.tokens[:4] == amid_the_answer.tokens[:4] == tuple(CODE[42:46])
    assert len(from_the_start) > len(amid_the_answer)


@pytest.mark.parametrize("new", [NEW, (6,), (6, OLD)], ids=str)
def test_an_edit_is_repeated_after_it_was_seen(new: tuple[int, ...]) -> None:
    drafter = AutoDrafter()
    drafter.begin([*with_name((OLD,)), 1, 2, *CODE[:4]])
    assert len(decode(drafter, with_name(new)[4:])) <= 10, "there are 12 of them"


@pytest.mark.parametrize(
    ("edit", "position"), [((7, CODE[41]), 42), ((7, 8, 9, CODE[40]), 41), ((CODE[43],), 44)]
)
def test_a_copy_continues_after_an_edit(edit: tuple[int, ...], position: int) -> None:
    drafter = AutoDrafter()
    drafter.begin([*CODE, 1, 2, *CODE[:30]])
    decode(drafter, [*CODE[30:40], *edit])
    assert drafter.propose(8).tokens[:3] == tuple(CODE[position : position + 3])


def test_a_copy_continues_right_after_a_changed_token() -> None:
    drafter = AutoDrafter()
    text = with_name((OLD,))
    drafter.begin([*text, 1, 2, *text[:30]])
    decode(drafter, [*text[30:49], NEW[0], text[50]])
    draft = drafter.propose(8)
    assert draft.source == "resumed"
    assert draft.tokens[:4] == tuple(text[51:55])


def test_a_learnt_rewrite_is_forgotten_when_it_ends() -> None:
    drafter = AutoDrafter()
    text, renamed = with_name((OLD,)), with_name(NEW)
    drafter.begin([*text, 1, 2, *text[:4]])
    half = len(renamed) // 2
    decode(drafter, renamed[4:half])
    rounds = decode(drafter, text[60:])
    assert sum(accepted for _, accepted in rounds[-4:]) > 10


def test_new_text_gets_few_draft_tokens() -> None:
    random = Random(3)
    words = [random.choices(range(400), k=1_200) for _ in range(2)]
    result = replay(AutoDrafter, [ReplayCase(words[0], words[1])], FixedPlanner(32))
    assert result.drafted < 0.3 * result.forwards


def test_every_token_has_an_expected_acceptance() -> None:
    drafter = AutoDrafter()
    drafter.begin([*CODE, 1, *CODE[:20]])
    draft = drafter.propose(16)
    assert len(draft.accept_probs) == len(draft) >= 8
    assert all(0.5 < reach_prob < 1 for reach_prob in draft.accept_probs)


def test_expectations_hold_on_a_text_with_edits() -> None:
    """Over many rounds, about as many tokens are accepted as were expected."""
    random = Random(8)
    drafter = AutoDrafter()
    expected = accepted_in_all = 0.0
    for _ in range(20):
        code = random.choices(range(300), k=300)
        edited = [token if random.random() < 0.93 else 999 for token in code]
        drafter.begin([*code, 1_000, *code[:3]])
        for draft, accepted in decode(drafter, edited[3:]):
            reach_prob = 1.0
            for acceptance in draft.accept_probs:
                reach_prob *= acceptance
                expected += reach_prob
            accepted_in_all += accepted
    assert accepted_in_all == pytest.approx(expected, rel=0.2)


def test_rejections_make_it_draft_less() -> None:
    drafter = AutoDrafter()
    drafter.begin([*CODE, 1, *CODE[:6]])
    before = len(drafter.propose(32))
    for _ in range(30):
        drafter.feedback(drafter.propose(32), 0)
    assert len(drafter.propose(32)) < before


def test_a_copy_that_overtakes_itself_repeats_its_period() -> None:
    drafter = AutoDrafter()
    drafter.begin([1, 2, 3] * 8)
    assert drafter.propose(8).tokens == (1, 2, 3, 1, 2, 3, 1, 2)


def test_feedback_on_another_draft_or_none_is_harmless() -> None:
    drafter = AutoDrafter()
    drafter.begin([*CODE, 1, *CODE[:10]])
    drafter.feedback(Draft((4, 5), "elsewhere", 1), 2)
    drafter.feedback(Draft(), 0)
    assert drafter.propose(4).tokens == tuple(CODE[10:14])


def test_it_drafts_after_tokens_as_once_they_are_emitted() -> None:
    drafter, answer = AutoDrafter(), with_name(NEW)
    drafter.begin([*with_name((OLD,)), 1, 2])
    for at in range(0, len(answer) - 4, 4):
        tokens = answer[at : at + 4]
        before = drafter.propose(32)
        foreseen = drafter.after(tokens, 32)
        assert drafter.propose(32) == before
        drafter.extend(tokens)
        now = drafter.propose(32)
        assert (foreseen.tokens[:4], foreseen.source) == (now.tokens[:4], now.source)
    assert before, "it copies"


@pytest.mark.parametrize("is_right", [True, False])
def test_copies_after_guesses_are_learnt_from(is_right: bool) -> None:
    drafter, guess = AutoDrafter(), 9
    drafter.begin([*CODE, 1, 2])
    tokens = [guess, *CODE[:3]]

    def foreseen() -> float:
        return next(iter(drafter.after(tokens, 8).accept_probs), 0.0)

    before = foreseen()
    for _ in range(20):
        verified = Draft((*tokens, *drafter.after(tokens, 8).tokens), "head")
        drafter.feedback(verified, len(verified) if is_right else len(tokens))
    assert (foreseen() > before) == is_right


def test_an_answer_does_not_begin_with_the_question() -> None:
    """A chat template puts the same token before a question and before its answer."""
    drafter = AutoDrafter()
    drafter.begin([900, *CODE[:20], 901, 900])
    assert sum(drafter.propose(32).accept_probs) < 1.5
