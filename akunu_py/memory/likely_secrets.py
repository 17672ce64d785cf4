"""Which files likely contain secrets: by their names, by keys of known forms, and by literals
assigned to passwords and tokens.

Names are those of Talisman (`detector/filename`, 2025) and of the programs that write such files.
Forms are those of gitleaks (`config/gitleaks.toml`, 2026), URLs and assignments those of
detect-secrets 1.5 (`plugins/`). That is not a dependency: it was last released in 2024, requires
`requests`, and keeps its settings for the whole process.
"""

import re
from fnmatch import fnmatch
from pathlib import PurePath
from typing import Final

_NAMES: Final = (
    "*.pem", "*.key", "*.keypair", "*.p8", "*.p12", "*.pfx", "*.pkcs12", "*.ppk", "*.jks",
    "*.keystore", "*.keyring", "*.keychain", "*.kdb", "*.kdbx", "*.ovpn", "*.tblk", "*.env",
    "*_rsa", "*_dsa", "*_ecdsa", "*_ed25519", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*",
    "*netrc", "*htpasswd", "*pgpass", "*s3cfg", "*.secret", "*.tfstate*", "*.tfvars",
    "credentials", "credentials.xml", "secret_token.rb", "wp-config.php", "localsettings.php",
    "*kubeconfig*",
)  # fmt: skip
_DATA: Final = frozenset(
    ("", ".txt", ".json", ".yml", ".yaml", ".toml", ".ini", ".cfg", ".conf", ".properties", ".sh")
)
"""File extensions that are not code: `password.py` is about passwords."""
_DATA_NAMES: Final = re.compile(
    r"passw|secret(?!ar)|credential|service.?account|^vault\.|private.?key|oauth.?token"
)

_FORMS: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\b(?:"  # one `\b` for all is faster
    r"AGE-SECRET-KEY-1[0-9A-Z]{58}|client-key-data:\s*[\w+/]{20}"  # age, kubectl
    r"|(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b"  # AWS
    r"|(?i:aws_?secret_?(?:access_?)?key)['\"]?\s*(?:=>?|:)\s*['\"]?[A-Za-z0-9/+]{40}\b"
    r"|ey[A-Za-z0-9]{17,}\.ey[\w/-]{17,}\.[\w/-]{10}"  # JWT
    r"|gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{40}"
    r"|gl(?:pat|dt|rt|ptt|cbt|ft|soat|oas|agent|imt|ffct)-[\w-]{20}"  # GitLab
    r"|xox[abeoprs]-[\w-]{10}|xapp-\d-[A-Z0-9]+-\d"  # Slack
    r"|hooks\.slack\.com/(?:services|workflows|triggers)/[\w+/]{43}"
    r"|sk-(?:ant-|proj-)?[\w-]{32}"  # OpenAI, Anthropic
    r"|AIza[\w-]{35}|GOCSPX-[\w-]{28}"  # Google
    r"|[rs]k_(?:live|test|prod)_[A-Za-z0-9]{10}"  # Stripe
    r"|hf_[A-Za-z0-9]{34}|npm_[A-Za-z0-9]{36}|pypi-AgE[\w-]{50}"
    r"|SG\.[\w-]{22}\.[\w-]{43}|SK[0-9a-f]{32}\b"  # SendGrid, Twilio
    r"|do[opr]_v1_[a-f0-9]{64}|dapi[a-f0-9]{32}|shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}"
    r"|hvs\.[\w-]{90}|AccountKey=[\w+/]{86}==)"  # Vault, Azure
)
_URL: Final = re.compile(r"://[^\s/:@'\"`<>]*:([^\s/:@'\"`]{3,})@[\w.-]")
_ASSIGNED: Final = (
    r"(?i)(?:passw(?:or)?d|pwd|passphrase|secret|(?:api|access|auth|account|private|secret)_?-?key"
    r"|(?:access|auth|api|bearer|refresh)_?-?token)\w{0,20}['\"\]]{0,2}[ \t]*"
    r"(?::[ \t]*\w+[ \t]*=|:=|=>|[:=])[ \t]*"
)
_QUOTED: Final = re.compile(_ASSIGNED + r"[bru@]?(['\"`])([^\s'\"`]{8,150})\1")
_BARE: Final = re.compile(_ASSIGNED + r"([^\s'\"`#,;]{8,150})[ \t]*(?:#.*)?$", re.MULTILINE)
"""Values of 8 characters or more, as gitleaks requires for passwords; beyond 150 it is data."""
_NO_LITERAL: Final = re.compile(r"\$[\w{(]|%[sd(]|\{|<|\w\(|\[|\*\*|\.\.\.|://")
"""Values that a program fills in."""
_PLACEHOLDER: Final = re.compile(
    r"(?i)pass|pwd|secret|token|key|user|example|change|your|dummy|fake|test|foo|xxx|1234|abc"
)
"""Words in placeholder values, as in gitleaks' `stopwords`."""


def has_secret_name(name: str) -> bool:
    """Whether files of this name (without folders) usually contain secrets."""
    lower = name.lower()
    is_data = PurePath(lower).suffix in _DATA and _DATA_NAMES.search(lower)
    is_public = lower.endswith(".pub")
    return bool(is_data) or (not is_public and any(fnmatch(lower, one) for one in _NAMES))


def holds_secret(text: str, name: str) -> bool:
    """Whether the text of a file of this name seems to contain a key or a password."""
    if _FORMS.search(text) or any(_is_literal(found[1]) for found in _URL.finditer(text)):
        return True
    values = [found[2] for found in _QUOTED.finditer(text)]
    if PurePath(name.lower()).suffix in _DATA:
        values += [found[1] for found in _BARE.finditer(text)]
    return any(re.search(r"\d", value) and _is_literal(value) for value in values)


def _is_literal(value: str) -> bool:
    """Whether a value may be a secret, and is neither a placeholder nor an expression."""
    return not _NO_LITERAL.search(value) and not _PLACEHOLDER.search(value)
