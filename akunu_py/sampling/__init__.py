"""From logits to tokens: distributions, penalties, grammars, repeatable random numbers."""
