"""What looks like a secret, beside the names and forms that `test_projects.py` plants."""

import pytest

from akunu_py.memory.likely_secrets import has_secret_name, holds_secret


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('password = "Ab8%w1Lm4x"', "a.py"),
        ('api_key: str = "Xk29zqW8lm99"', "a.py"),
        ("DB_PASSWORD=hunter2hunter2 # main", "x.conf"),
        ("export PASSWORD=Xk29zqW8lm", "x.sh"),
    ],
)
def test_assignments_of_other_kinds_are_noticed(line: str, name: str) -> None:
    assert holds_secret(line, name)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('password = "${HOME}12345"', "a.py"),
        ("PASSWORD=$PASS12345", "x.sh"),
        ('password = "%s12345678"', "a.py"),
        ("password = get_password(1)", "a.conf"),
    ],
)
def test_expressions_are_none(line: str, name: str) -> None:
    assert not holds_secret(line, name)


def test_public_keys_and_secretaries_are_none() -> None:
    assert not any(map(has_secret_name, ("secretary.txt", "notes.asc", "id_rsa.pub")))
    assert all(map(has_secret_name, ("secrets.yml", "id_rsa")))
