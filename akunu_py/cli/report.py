"""One line about an answer: its size, what speculation did for it, its speed, why it ended."""

from akunu_py.stats import Finish, Stats

_ENDINGS = {
    Finish.LENGTH: "stopped at the token limit",
    Finish.CANCELLED: "interrupted",
    Finish.CONTEXT: "the context is full",
}


def stats_line(stats: Stats, finish: Finish | None = None) -> str:
    """Tokens, tokens per forward, acceptance and speed; and the ending, unless it was natural."""
    facts = [count(stats.generated_tokens, "token")]
    if stats.generated_tokens:
        facts.append(f"{stats.tokens_per_forward:.2f} per forward")
    if stats.drafted:
        facts.append(f"{stats.acceptance_rate:.0%} of drafts accepted")
    if stats.rechecked:
        facts.append(f"{count(stats.rechecked, 'near-tie')} decided again")
    if stats.decode_s:
        facts.append(f"{stats.tokens_per_s:,.0f} tokens/s")
    if finish in _ENDINGS:
        facts.append(_ENDINGS[finish])
    return " · ".join(facts)


def count(number: int, noun: str) -> str:
    """`1 token`, `1,200 tokens`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
