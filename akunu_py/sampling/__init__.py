"""From logits to the token a request asked for: distributions, penalties, grammars, chance."""
