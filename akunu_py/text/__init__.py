"""Text around the tokens: tokenizer, chat template, fill-in-the-middle, stop strings."""
