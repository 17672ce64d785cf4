"""Questions about the standard library: what is known of it, and what is not."""

import random

from models.training.corpus import STDLIB, SourceFile
from models.training.questions import documented, library_questions
from models.training.refusals import is_honest


def test_what_is_asked_about_most_is_known_wherever_it_was_written() -> None:
    answers = documented()
    for name in ("len", "str.join", "os.path.exists", "collections.defaultdict", "random.randint"):
        assert len(answers[name]) >= 20
    assert answers["os.path.exists"] != answers["os.path.join"]
    assert not [name for name in answers if name.rpartition(".")[2].startswith("_")]


def test_what_is_not_known_is_answered_honestly() -> None:
    text = 'def given():\n    """Say what was given."""\n\n\ndef _own():\n    pass\n'
    files = [SourceFile(STDLIB, "unheard/of.py", text), SourceFile(STDLIB, "re.py", text)]
    turns = list(library_questions(files, random.Random(1)))
    unknown = [answer for (_, asked), (_, answer) in turns if "unheard.of.given" in asked]
    assert len(unknown) == 2
    assert all(map(is_honest, unknown))
    assert not [asked for (_, asked), _ in turns if "_own" in asked or "re.given" in asked]
