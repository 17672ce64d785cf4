"""The split: nothing held out is trained on, and only permissive licences are read."""

import pytest

from models.training import corpus
from models.training.corpus import SourceFile

BODY = "\n".join(f"    value_{n} = compute(value_{n}, {n})" for n in range(12))


def file(path: str, text: str, package: str = "example") -> SourceFile:
    return SourceFile(package, path, text)


def path_where(held_out: bool) -> str:
    return next(p for p in (f"m{n}.py" for n in range(500)) if file(p, "").held_out is held_out)


def test_the_split_depends_on_package_and_path_alone() -> None:
    assert file("a.py", "x").held_out == file("a.py", "y").held_out
    assert file("anything.py", "", package="click").held_out
    share = sum(file(f"m{n}.py", "").held_out for n in range(5000)) / 5000
    assert 0.02 < share < 0.06


def test_a_training_file_with_held_out_text_in_it_is_dropped() -> None:
    seen, unseen = path_where(False), path_where(True)
    training, held_out = corpus.split(
        [file(unseen, f"def one():\n{BODY}\n"), file(seen, f"import os\n\n\ndef two():\n{BODY}\n")]
    )
    assert training == []
    assert [f.path for f in held_out] == [unseen]


def test_copies_of_a_training_file_are_kept_once() -> None:
    seen = path_where(False)
    training, _ = corpus.split([file(seen, BODY), file(seen, f"# a copy\n{BODY}")])
    assert len(training) == 1


def test_no_held_out_text_of_this_machine_is_in_training() -> None:
    library = list(corpus.standard_library())[::2]
    training, held_out = corpus.split(library)
    forbidden = set().union(*(corpus.windows(f.text) for f in held_out))
    assert len(held_out) > 10
    assert len(training) > 250
    assert not any(corpus.windows(f.text) & forbidden for f in training)
    assert not {f.path for f in training} & {f.path for f in held_out}


@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("MIT", True),
        ("BSD-3-Clause", True),
        ("Apache Software License", True),
        ("Python Software Foundation License", True),
        ("BSD License, GNU General Public License (GPL)", False),
        ("LGPL-3.0", False),
        ("Proprietary", False),
        ("", False),
    ],
)
def test_only_permissive_licences_are_read(licence: str, allowed: bool) -> None:
    assert corpus.is_permissive(licence) is allowed
