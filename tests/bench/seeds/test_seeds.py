"""The seed benchmark: every case on the shipped loop, told beside what was published."""

import json
from pathlib import Path

import pytest

import akunu_py
from akunu_py.bench.seeds.cases import CASES, DRAFTS, PROMPT_CHARACTERS, Size
from akunu_py.bench.seeds.char_model import CharModel, find_char_model
from akunu_py.bench.seeds.plot import draw_seeds
from akunu_py.bench.seeds.report import PUBLISHED, SeedsReport, SeedsRow, Target
from akunu_py.bench.seeds.runs import (
    Answer,
    Outcome,
    Pair,
    add_statistical_drafters,
    drafter_name,
    draw_prompts,
    measure_seeds,
)
from akunu_py.drafting.ngram_model_drafter import NGramModelDrafter
from akunu_py.errors import InvalidRequestError
from akunu_py.options import Sampling
from akunu_py.sampling.sampler import Sampler
from akunu_py.stats import Stats
from tests.bench.seeds.test_char_model import TEXT, TINY

SIZE = Size(seeds=2, requests=1, max_tokens=5)
RECIPE = type(TINY)(**{**vars(TINY), "block": 64})


@pytest.fixture(scope="module")
def model() -> CharModel:
    return find_char_model(TEXT, RECIPE)


@pytest.fixture(scope="module")
def outcomes(model: CharModel) -> list[Outcome]:
    return measure_seeds(akunu_py.load(str(model.folder)), TEXT, SIZE)


def test_prompts_come_from_what_the_drafts_have_not_seen() -> None:
    prompts = list(draw_prompts(TEXT, 3, 20))
    assert prompts == list(draw_prompts(TEXT, 3, 20))
    assert prompts != list(draw_prompts(TEXT, 4, 20))
    for prompt in prompts:
        assert len(prompt) == PROMPT_CHARACTERS
        assert "".join(TEXT.alphabet[token] for token in prompt) in TEXT.validation


def test_every_case_has_its_pairs(outcomes: list[Outcome]) -> None:
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
            assert len(drafted.accepted_by_position) <= outcome.case.drafts
            assert drafted.target_tokens - drafted.target_forwards == drafted.drafted


@pytest.mark.parametrize("draft", DRAFTS)
def test_noise_is_mixed_into_what_drafts_are_drawn_from(model: CharModel, draft: str) -> None:
    engine = akunu_py.load(str(model.folder))
    add_statistical_drafters(engine, TEXT)
    clean, noisy = (
        engine.speculation.drafter(drafter_name(case, draft), Sampler(Sampling(seed=3)))
        for case in (CASES[1], CASES[3])
    )
    assert isinstance(clean, NGramModelDrafter)
    assert isinstance(noisy, NGramModelDrafter)
    context = TEXT.encode("ab")
    uniform = 1 / len(TEXT.alphabet)
    assert noisy.row(context) == pytest.approx(0.5 * clean.row(context) + 0.5 * uniform)
    assert clean.row(context)[TEXT.encode("a")[0]] == pytest.approx(0.5, abs=0.01)


def books(tokens: int, seconds: float, **counts: int) -> Answer:
    stats = Stats(prompt_tokens=24, generated_tokens=tokens, ttft_s=0.01, forward_s=seconds / 2)
    for name, count in counts.items():
        setattr(stats, name, count)
    return Answer(seconds, stats)


def test_a_row_sums_up_its_pairs() -> None:
    plain = books(10, 2.0, target_forwards=10, target_tokens=10, plain=10)
    drafted = books(10, 1.0, target_forwards=4, target_tokens=16, drafted=12, accepted=6, bonus=1,
                    corrected=3)  # fmt: skip
    row = SeedsRow.of(Outcome(CASES[1], "bigram", [Pair(plain, drafted)] * 3))
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


def test_the_report_tells_everything(
    outcomes: list[Outcome], model: CharModel, tmp_path: Path
) -> None:
    rows = [SeedsRow.of(outcome) for outcome in outcomes]
    report = SeedsReport({}, TEXT, SIZE, [Target(model, rows), Target(model, rows)])
    told = json.loads(json.dumps(report.as_json()))
    assert told["size"]["longer_tokens"] == 10
    for target in told["targets"]:
        assert len(target["rows"]) == len(PUBLISHED)
        for row in target["rows"]:
            assert row["speedup"]["low"] <= row["speedup"]["median"] <= row["speedup"]["high"]
            assert row["ratios"]["target_forwards"] <= 1
            assert set(row["published"]) == {"speedup", "acceptance"}
    lines = report.markdown().splitlines()
    assert sum(line.startswith("| K=4, noise 0.5 | trigram |") for line in lines) == 4
    assert "| 1.73 |" in next(line for line in lines if line.startswith("| K=4 | bigram |"))
    draw_seeds(report, tmp_path / "seeds.svg")
    assert (tmp_path / "seeds.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ((0, 1, 1), "seeds must be 1 or more"),
        ((1, 0, 1), "requests must be 1 or more"),
        ((1, 1, -1), "tokens must be 1 or more"),
        ((1, 1, 53), "may have 52 tokens, not 53"),
    ],
)
def test_sizes_that_cannot_be_are_refused(numbers: tuple[int, int, int], sentence: str) -> None:
    with pytest.raises(InvalidRequestError, match=sentence):
        Size(*numbers)
