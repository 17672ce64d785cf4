import pytest

from models.training.stages import (
    CURRICULUM,
    WARMUP_STEPS,
    Stage,
    rate_scale,
    stage_at,
    total_steps,
)

TWICE = (
    Stage("up", 100, 1, 8, {"code": 1.0}),
    Stage("down", 40, 1, 8, {"code": 1.0}, decays=True),
    Stage("farther down", 60, 1, 8, {"code": 1.0}, decays=True),
    Stage("up again", 50, 1, 8, {"code": 1.0}),
    Stage("down again", 50, 1, 8, {"code": 1.0}, decays=True),
    Stage("down from half", 50, 1, 8, {"code": 1.0}, decays=True, peak=0.5),
)


def test_the_rate_falls_over_each_run_of_stages_that_decay() -> None:
    scales = [rate_scale(TWICE, step) for step in range(total_steps(TWICE))]
    assert scales[0] == pytest.approx(1 / WARMUP_STEPS)
    assert set(scales[WARMUP_STEPS:101]) == {1.0}
    assert scales[140] == pytest.approx(0.6)
    assert scales[199] == pytest.approx(0.02)
    assert set(scales[200:251]) == {1.0}
    assert scales[275] == pytest.approx(0.5)
    assert scales[300] == pytest.approx(0.5)
    assert scales[325] == pytest.approx(0.25)
    with pytest.raises(ValueError, match="beyond the last stage"):
        rate_scale(TWICE, 350)


def test_every_step_has_a_stage() -> None:
    assert [stage_at(TWICE, step).name for step in (0, 99, 100, 299)] == [
        *("up", "up", "down", "down again")
    ]
    with pytest.raises(ValueError, match="beyond the last stage"):
        stage_at(TWICE, 350)


@pytest.mark.parametrize("stage", CURRICULUM, ids=lambda stage: stage.name)
def test_the_shares_of_a_stage_make_up_a_whole(stage: Stage) -> None:
    assert sum(stage.mix.values()) == pytest.approx(1.0)
