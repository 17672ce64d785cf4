"""What is tried that is not expected to pay, and how often."""

from akunu_py.planning.trials import GuessGain


def test_guesses_that_did_not_pay_are_tried_in_fewer_requests() -> None:
    gain, tried = GuessGain(2.0, 1.5), []
    for _ in range(12):
        gain.begin()
        tried.append(gain.is_tried(1.0, 0.5))
        if tried[-1]:
            gain.made += 1
            gain.learn(1.0, 1.5)  # a step and a guess, for one token
    assert "".join(".x"[one] for one in tried) == "x.x..x...x.."
