"""The seed benchmark: every case on the shipped loop, beside what was published."""

from pathlib import Path
from typing import Any

import pytest

import akunu_py
from akunu_py.options import Sampling
from akunu_py.rounds import Stats
from akunu_py.sampling.sampler import Sampler
from benchmarks.seeds import char_model
from benchmarks.seeds.__main__ import STEPS, main, measure, read_options
from benchmarks.seeds.char_model import CharModel
from benchmarks.seeds.conftest import TEXT
from benchmarks.seeds.measure import (
    CASES,
    DRAFTS,
    PROMPT_CHARACTERS,
    QUICK,
    AnswerPair,
    CaseOutcome,
    Size,
    TimedAnswer,
    add_statistical_drafters,
    drafter_name,
    draw_prompts,
    measure_seeds,
)
from benchmarks.seeds.ngram_model import NGramModelDrafter
from benchmarks.seeds.plot import draw_seeds
from benchmarks.seeds.report import PUBLISHED, MeasuredModel, SeedsReport, SeedsRow

SIZE = Size(seeds=2, requests=1, max_tokens=5)
TRAIN_LITTLE = ["--quick", "--steps", "2"]


@pytest.fixture(scope="module")
def outcomes(trained: CharModel) -> list[CaseOutcome]:
    return measure_seeds(akunu_py.load(str(trained.folder)), TEXT, SIZE)


def test_prompts_come_from_text_that_the_drafts_have_not_seen() -> None:
    prompts = list(draw_prompts(TEXT, 3, 20))
    assert prompts == list(draw_prompts(TEXT, 3, 20))
    assert prompts != list(draw_prompts(TEXT, 4, 20))
    for prompt in prompts:
        assert len(prompt) == PROMPT_CHARACTERS
        assert "".join(TEXT.alphabet[token] for token in prompt) in TEXT.validation


def test_every_case_has_its_pairs(outcomes: list[CaseOutcome]) -> None:
    assert [(one.case, one.draft) for one in outcomes] == [
        (case, draft) for case in CASES for draft in DRAFTS
    ]
    for outcome in outcomes:
        assert len(outcome.pairs) == SIZE.seeds * SIZE.requests
        for pair in outcome.pairs:
            plain, drafted = pair.plain.stats, pair.drafted.stats
            assert plain.generated_tokens == drafted.generated_tokens == SIZE.tokens(outcome.case)
            assert plain.target_forwards == plain.plain == plain.generated_tokens
            assert drafted.cached_tokens == plain.cached_tokens == 0
            assert drafted.drafted > 0
            assert len(drafted.accepted_by_position) <= outcome.case.num_draft_tokens
            assert drafted.target_tokens - drafted.target_forwards == drafted.drafted


@pytest.mark.parametrize("draft", DRAFTS)
def test_noise_is_mixed_into_the_drafts_distributions(trained: CharModel, draft: str) -> None:
    engine = akunu_py.load(str(trained.folder))
    add_statistical_drafters(engine, TEXT)
    clean, noisy = (
        engine.speculation._factories[drafter_name(case, draft)](Sampler(Sampling(seed=3)))
        for case in (CASES[1], CASES[3])
    )
    assert isinstance(clean, NGramModelDrafter)
    assert isinstance(noisy, NGramModelDrafter)
    context = TEXT.encode("ab")
    uniform = 1 / len(TEXT.alphabet)
    assert noisy.row(context) == pytest.approx(0.5 * clean.row(context) + 0.5 * uniform)
    assert clean.row(context)[TEXT.encode("a")[0]] == pytest.approx(0.5, abs=0.01)


def timed(tokens: int, seconds: float, **counts: int) -> TimedAnswer:
    stats = Stats(prompt_tokens=24, generated_tokens=tokens, ttft_s=0.01, forward_s=seconds / 2)
    for name, count in counts.items():
        setattr(stats, name, count)
    return TimedAnswer(seconds, stats)


def test_a_row_sums_up_its_pairs() -> None:
    plain = timed(10, 2.0, target_forwards=10, target_tokens=10, plain=10)
    drafted = timed(10, 1.0, target_forwards=4, target_tokens=16, drafted=12, accepted=6, bonus=1,
                    corrected=3)  # fmt: skip
    row = SeedsRow.of(CaseOutcome(CASES[1], "bigram", [AnswerPair(plain, drafted)] * 3))
    assert row.speedup.median == row.speedup.low == 2
    assert row.plain.tokens_per_s == 5
    assert row.drafted.tokens_per_s == 10
    assert row.acceptance == 0.5
    assert row.verified == 2.5
    assert (row.bonus, row.corrected) == (3, 9)
    assert row.plain.target_forwards == 30
    assert row.drafted.target_tokens == 3 * (23 + 16)
    assert row.ratio(lambda side: side.latency_ms) == 0.5
    assert row.published == PUBLISHED["K=4", "bigram"] == (1.73, 0.481)


def test_the_report_is_complete(
    outcomes: list[CaseOutcome], trained: CharModel, tmp_path: Path
) -> None:
    rows = [SeedsRow.of(outcome) for outcome in outcomes]
    report = SeedsReport({}, TEXT, SIZE, [MeasuredModel(trained, rows)] * 2)
    lines = report.markdown().splitlines()
    assert sum(line.startswith("| K=4, noise 0.5 | trigram |") for line in lines) == 4
    assert "| 1.73 |" in next(line for line in lines if line.startswith("| K=4 | bigram |"))
    draw_seeds(report, tmp_path / "seeds.svg")
    assert (tmp_path / "seeds.svg").read_text().startswith("<?xml")


@pytest.fixture
def poem(tmp_path: Path) -> str:
    path = tmp_path / "poem.txt"
    path.write_text("The quick brown fox jumps over the lazy dog.\n" * 300)
    return str(path)


def test_the_command_prints_tables_and_draws_without_training_again(
    poem: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[MeasuredModel] = []

    def measured_once(*asked: Any) -> MeasuredModel:
        measured[:] = measured or [measure(*asked)]
        return measured[0]

    monkeypatch.setattr("benchmarks.seeds.__main__.measure", measured_once)
    main(["--text", poem, *TRAIN_LITTLE])
    out = capsys.readouterr().out
    assert "poem.txt, 13,500 characters" in out
    assert "after 2 steps" in out
    assert out.count("| K=6 | trigram |") == 2

    monkeypatch.setattr(char_model, "train", None)
    plot = tmp_path / "seeds.png"
    main(["--text", poem, *TRAIN_LITTLE, "--plot", str(plot)])
    assert "after 2 steps" in capsys.readouterr().out
    assert plot.stat().st_size > 1000


def test_a_text_that_is_missing_is_an_error_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"none\.txt cannot be read: No such file"):
        main(["--text", str(tmp_path / "none.txt")])


def test_options() -> None:
    usual = read_options([])
    assert (usual.text, usual.steps, usual.size) == (None, STEPS, Size())
    quick = read_options(["--quick"])
    assert (quick.steps, quick.size) == (STEPS[:1], QUICK)
    own = read_options(["--quick", "--steps", "5", "5", "7", "--text", "a"])
    assert (own.text, own.steps, own.size) == (Path("a"), (5, 7), QUICK)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--steps 0", "--steps must be 1 or more"),
        ("--text", "expected one argument"),
    ],
)
def test_wrong_options_are_refused(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refusal:
        main(words.split())
    assert sentence in f"{refusal.value} {capsys.readouterr().err}"
