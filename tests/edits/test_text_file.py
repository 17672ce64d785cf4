"""Files keep what an edit is not about: line ends, encoding, mode, links; or all of it."""

import codecs
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akunu_py.edits.text_file import BACKUP, TextFile
from akunu_py.errors import AkunuError, EditError

LINES = "def f(x):\n\treturn x\n"


@given(st.binary() | st.text(alphabet="a\r\n\té€\x0c").map(str.encode))
def test_the_same_text_is_the_same_bytes(content: bytes) -> None:
    try:
        file = TextFile.of("it", content)
    except AkunuError:
        assert b"\0" in content
        return
    assert file.encode(file.text) == content


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a\r\nx\r\nc\r\n", b"a\r\nb\r\nc\r\n"),
        (b"a\nx\nc", b"a\nb\nc"),
        (b"a\r\nx\nc\r\n", b"a\r\nb\r\nc\r\n"),
        (b"\ta\nx\n\tc\n", b"\ta\nb\n\tc\n"),
        ("é\nx\n".encode("latin-1"), "é\nb\n".encode("latin-1")),
        (codecs.BOM_UTF8 + b"x\r\n", codecs.BOM_UTF8 + b"b\r\n"),
        ("\ufeffé\r\nx\r\n".encode("utf-16-le"), "\ufeffé\r\nb\r\n".encode("utf-16-le")),
        (b"page\x0cbreak\nx\n", b"page\x0cbreak\nb\n"),
    ],
)
def test_only_the_edited_line_changes(before: bytes, after: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(before)
    file = TextFile.read(path)
    file.write(file.text.replace("x", "b"))
    assert path.read_bytes() == after


def test_unchanged_lines_keep_their_own_ends() -> None:
    file = TextFile.of("it", b"one\r\ntwo\nthree\r\nfour\nfive")
    new = "zero\none\ntwo\nfour\nfive"
    assert file.encode(new) == b"zero\r\none\r\ntwo\nfour\nfive"


def test_what_the_encoding_lacks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes("é\n".encode("latin-1"))
    with pytest.raises(EditError, match=r"has '€', which .* cannot contain: its encoding is"):
        TextFile.read(path).write("€\n")
    assert path.read_bytes() == "é\n".encode("latin-1")


def test_mode_link_and_backup(tmp_path: Path) -> None:
    path, link = tmp_path / "script.py", tmp_path / "link.py"
    path.write_text(LINES)
    path.chmod(0o754)
    link.symlink_to(path)
    TextFile.read(link).write("new\n", backup=True)
    assert link.is_symlink()
    assert path.read_text() == "new\n"
    assert path.stat().st_mode & 0o777 == 0o754
    copy = tmp_path / f"script.py{BACKUP}"
    assert copy.read_text() == LINES
    assert copy.stat().st_mode & 0o777 == 0o754
    assert sorted(tmp_path.iterdir()) == sorted([path, link, copy])


def test_all_of_the_mode_and_the_owner_are_kept(tmp_path: Path) -> None:
    (path := tmp_path / "file").write_text(LINES)
    if os.geteuid() == 0:
        os.chown(path, 1234, 1234)
    path.chmod(0o6755)
    before = path.stat()
    TextFile.read(path).write("new\n")
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode,
        before.st_uid,
        before.st_gid,
    )


def test_a_file_that_cannot_keep_its_owner_runs_as_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path := tmp_path / "file").write_text(LINES)
    path.chmod(0o4755)

    def forbidden(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "chown", forbidden)
    TextFile.read(path).write("new\n")
    assert path.read_text() == "new\n"
    assert path.stat().st_mode & 0o7777 == 0o755


def test_five_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    lines = [f"line {number} é" for number in range(400_000)]
    path.write_bytes("\r\n".join(lines).encode())
    file = TextFile.read(path)
    lines[200_000] = "other"
    file.write("\n".join(lines))
    assert path.read_bytes() == "\r\n".join(lines).encode()


@pytest.mark.parametrize("content", [b"\x7fELF\0\0", b"\xff\xfe\0\0"])
def test_what_is_no_text_is_refused(content: bytes, tmp_path: Path) -> None:
    (path := tmp_path / "file").write_bytes(content)
    with pytest.raises(AkunuError, match="is not a text file"):
        TextFile.read(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("absent", "pipe", ""):
        with pytest.raises(AkunuError, match="cannot be read"):
            TextFile.read(tmp_path / name)


def test_a_file_that_changed_underneath_is_left_alone(tmp_path: Path) -> None:
    (path := tmp_path / "file").write_text(LINES)
    file = TextFile.read(path)
    path.write_text("of another\n")
    with pytest.raises(EditError, match="has changed since it was read"):
        file.write("mine\n")
    assert path.read_text() == "of another\n"
    (copy := tmp_path / f"file{BACKUP}").write_text("older\n")
    with pytest.raises(EditError, match="has changed since it was read"):
        file.write("mine\n", backup=True)
    assert copy.read_text() == "older\n"
    copy.unlink()
    path.unlink()
    with pytest.raises(EditError, match="could not be written: No such file"):
        file.write("mine\n")
    assert not list(tmp_path.iterdir())


def test_a_read_only_file_is_left_alone(tmp_path: Path) -> None:
    (path := tmp_path / "file").write_text(LINES)
    path.chmod(0o444)
    with pytest.raises(EditError, match="is read-only"):
        TextFile.read(path).write("mine\n")
    assert path.read_text() == LINES


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path := tmp_path / "file").write_text(LINES)
    file = TextFile.read(path)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EditError, match="could not be written: No space left on device"):
        file.write("mine\n")
    assert path.read_text() == LINES
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    """It dies after the new text is on the disk and before that has taken the place of the old."""
    (path := tmp_path / "file").write_text(LINES)
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from akunu_py.edits.text_file import TextFile\n"
        "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "TextFile.read(Path(sys.argv[1])).write('mine')\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert path.read_text() == LINES
