"""`bench speedup` on the tiny model: what is decoded, compared and reported; never how fast."""

import mlx.core as mx
import pytest

from akunu_py.bench import FORCED, OWN
from akunu_py.bench.contestants import (
    Akunu,
    Contestant,
    ForcedSampler,
    MlxLm,
    Task,
)
from akunu_py.bench.replay import ReplayCase
from akunu_py.bench.speedup import SpeedupReport, SpeedupRow, contest, make_tasks
from akunu_py.engine import Engine
from akunu_py.options import Sampling
from tests.planning.curves import FLAT

PROMPT = list(b"def area(x, y):\n    return x * y\n\n\ndef area(x, y):\n")
REFERENCE = list(b"    return x * y\n\n\ndef area(x, z):\n    return x * z\n")
CASE = ReplayCase(PROMPT, REFERENCE)
CONTESTANTS = [Akunu("none"), Akunu("ngram", 4), Akunu("auto", 8), Akunu("auto")]


@pytest.mark.parametrize("contestant", CONTESTANTS, ids=str)
def test_a_forced_answer_is_the_reference_and_every_forward_is_run(
    engine: Engine, contestant: Akunu
) -> None:
    answer = contestant.complete(engine, Task("edit", CASE, 40, forced=True))
    assert answer is not None
    assert answer.stats is not None
    assert answer.tokens == REFERENCE[:40]
    assert answer.stats.generated_tokens == answer.rounds.emitted == 40
    assert answer.stats.target_forwards == answer.rounds.forwards
    assert answer.stats.drafted == answer.rounds.drafted
    drafts = contestant.drafter != "none"
    assert (answer.stats.accepted > 4) is drafts
    assert (answer.rounds.forwards < 35) is drafts


@pytest.mark.parametrize("contestant", CONTESTANTS, ids=str)
def test_an_own_answer_is_what_mlx_lm_says(engine: Engine, contestant: Akunu) -> None:
    task = Task("edit", CASE, 24, forced=False)
    answer, baseline = contestant.complete(engine, task), MlxLm().complete(engine, task)
    assert answer is not None
    assert baseline is not None
    assert answer.tokens == baseline.tokens
    assert answer.seconds_per_token > 0


def test_an_answer_of_one_token_is_not_timed(engine: Engine) -> None:
    assert MlxLm().complete(engine, Task("edit", CASE, 1, forced=True)) is None


def test_a_forced_choice_waits_for_the_logits_and_ends_with_the_reference() -> None:
    sampler = ForcedSampler([1, 2], [3, 4])
    logits = mx.random.normal((3, 8))
    assert sampler.choose(logits, 3).tolist() == [4, 0, 0]


def test_answers_are_compared_and_differences_reported(engine: Engine) -> None:
    tasks = make_tasks({"edit": [CASE], "novel": [CASE]}, 16, (OWN, FORCED))
    assert [task.sampling.greedy for task in tasks] == [True, False, True, True]
    contestants: list[Contestant] = [MlxLm(), *CONTESTANTS]
    seen: list[tuple[int, int]] = []
    rows, _ = contest(
        engine, tasks, contestants,
        rounds=2, curve=FLAT, progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert len(rows) == 4 * len(contestants)
    # A first time to warm up, then two rounds.
    assert seen[-1] == (4 * len(contestants) * 3 - 1, 4 * len(contestants) * 3)
    for row in rows:
        assert len(row.pairs) == 2
        assert (row.shares is None) == (row.contestant == "mlx-lm")
        assert (row.predicted is None) == (row.rounds.drafted == 0)
        assert row.first_over is not None
        assert (row.first_over.median == 1.0) == (row.contestant == str(CONTESTANTS[1]))
        reference = {"edit": "mlx-lm", "novel": "plain"}[row.kind]
        compared = row.answers == OWN and row.contestant not in ("mlx-lm", reference)
        assert (row.same, row.compared_with) == ((2, reference) if compared else (None, ""))


def test_without_a_drafter_there_is_no_first_one(engine: Engine) -> None:
    contestants: list[Contestant] = [MlxLm(), Akunu("none"), Akunu("none")]
    tasks = [Task("edit", CASE, 8, forced=False)]
    rows, _ = contest(engine, tasks, contestants, rounds=1, curve=FLAT)
    assert [row.as_json()["first_drafter_over"] for row in rows] == [None] * 3


@pytest.mark.parametrize(("interrupted", "pairs"), [(3, 0), (5, 0), (6, 1), (8, 1), (9, 2)])
def test_an_interrupt_loses_only_the_current_turn(
    engine: Engine, interrupted: int, pairs: int
) -> None:
    def interrupt(done: int, _total: int) -> None:
        if done == interrupted:
            raise KeyboardInterrupt

    tasks = [Task("edit", CASE, 8, forced=False)]
    contestants: list[Contestant] = [MlxLm(), Akunu("none"), Akunu("auto", 4)]

    def contested() -> tuple[list[SpeedupRow], bool]:
        return contest(engine, tasks, contestants, rounds=3, curve=FLAT, progress=interrupt)

    if pairs:
        rows, complete = contested()
        assert [len(row.pairs) for row in rows] == [pairs] * 3
        assert not complete
        report = SpeedupReport({}, {}, FLAT, 8, 3, rows, complete)
        assert report.as_json()["complete"] is False
    else:
        with pytest.raises(KeyboardInterrupt):
            contested()


def test_the_report_has_the_first_differences_and_predictions(engine: Engine) -> None:
    class Stutterer(Akunu):
        def complete(self, engine: Engine, task: Task):  # type: ignore[no-untyped-def]
            answer = super().complete(engine, task)
            assert answer is not None
            answer.tokens[3] += 1
            return answer

    contestants: list[Contestant] = [MlxLm(), Akunu("none"), Stutterer("auto", 4), Akunu("auto")]
    tasks = [Task("edit", CASE, 16, forced=False, sampling=Sampling())]
    rows, complete = contest(engine, tasks, contestants, rounds=1, curve=FLAT)
    assert complete
    report = SpeedupReport({}, {}, FLAT, 16, 1, rows)
    found = {row["contestant"]: row for row in report.as_json()["rows"]}
    assert found["auto, num_draft_tokens=4"]["same_answers"] == 0
    assert found["auto, num_draft_tokens=4"]["differences_at"] == [3]
    assert found["auto + planner"]["same_answers"] == 1
    assert found["plain"]["predicted_speedup"] is None
    rounds = rows[2].rounds.predicted_speedup(FLAT)
    assert found["auto, num_draft_tokens=4"]["predicted_speedup"] == pytest.approx(
        found["plain"]["speedup"]["median"] * rounds
    )
    assert report.prediction_error is not None
