"""How the bundled model `ember` is made: corpus, examples, training, export.

Everything is derived from what every machine has (the interpreter's standard library and
installed packages), with fixed seeds, by `python -m models.training`.
"""
