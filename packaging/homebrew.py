"""Writes a formula for Homebrew from a lock of the published version, which uv makes:

    echo akunu-py==1.0.0 | MACOSX_DEPLOYMENT_TARGET=14.0 uv pip compile - -c constraints.txt \
        --python-version 3.13 --python-platform aarch64-apple-darwin --only-binary :all: \
        --format pylock.toml -o pylock.toml
    python packaging/homebrew.py pylock.toml > akunu-py.rb

It is for a tap of our own: it installs wheels, which homebrew-core does not allow.
"""

import sys
import tomllib
from pathlib import Path
from typing import Any, Final

from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms
from packaging.utils import parse_wheel_filename

NAME: Final = "akunu-py"
PYTHON: Final = (3, 13)
MAC: Final = tuple(mac_platforms((14, 0), "arm64"))
TAGS: Final[list[Tag]] = [
    *cpython_tags(PYTHON, platforms=MAC), *compatible_tags(PYTHON, platforms=MAC)
]  # fmt: skip
"""What wheels may be for, the best first."""

FORMULA: Final = """\
class AkunuPy < Formula
  include Language::Python::Virtualenv

  desc "Local LLM inference engine that drafts without a second model"
  homepage "https://pypi.org/project/akunu-py/"
{own}
  license "MIT"

  depends_on arch: :arm64
  depends_on macos: :sonoma
  depends_on "python@3.13"

{resources}

  def install
    virtualenv_create(libexec, "python3.13")
    resources.each {{ |wheel| wheel.stage buildpath }}
    system "python3.13", "-m", "pip", "--python=#{{libexec}}/bin/python", "install",
           "--no-deps", "--no-index", *Dir["*.whl"]
    bin.install_symlink libexec/"bin/akunu-py"
    generate_completions_from_executable(bin/"akunu-py", "completions")
    (man1/"akunu-py.1").write Utils.safe_popen_read(bin/"akunu-py", "man")
  end

  service do
    run [opt_bin/"akunu-py", "serve", "--log-file", var/"log/akunu-py.log"]
    keep_alive true
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/akunu-py --version")
    assert_match "total", pipe_output("#{{bin}}/akunu-py chat", "Rename `x` to `total` in: x = 1")
  end
end"""
RESOURCE: Final = '  resource "{name}" do\n{source}\n  end'
SOURCE: Final = 'url "{url}",\n    using: :nounzip\nsha256 "{sha256}"'


def formula(lock: dict[str, Any]) -> str:
    """The formula that installs the wheels of a lock (PEP 751)."""
    sources = {}
    for package in lock["packages"]:
        wheel = min(package["wheels"], key=_rank)
        lines = SOURCE.format(url=wheel["url"], sha256=wheel["hashes"]["sha256"])
        sources[package["name"]] = lines.splitlines()
    own = sources.pop(NAME)
    resources = [
        RESOURCE.format(name=name, source="\n".join(f"    {line}" for line in lines))
        for name, lines in sorted(sources.items())
    ]
    return FORMULA.format(
        own="\n".join(f"  {line}" for line in own), resources="\n\n".join(resources)
    )


def _rank(wheel: dict[str, Any]) -> int:
    found = parse_wheel_filename(wheel["url"].rpartition("/")[2])[3]
    return min(TAGS.index(tag) for tag in found if tag in TAGS)


if __name__ == "__main__":
    print(formula(tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
