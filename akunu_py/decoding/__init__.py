"""The loops that turn forwards into tokens, and what judges a draft."""
