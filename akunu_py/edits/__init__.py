"""Edits of text: what to ask a model, how to read its answer, and whether to trust it."""
