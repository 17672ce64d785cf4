"""How much memory this process may still take: what is free, within the limits that it has.

The limits are those of `ulimit` and of control groups, as containers have them, of version 1 or 2.
"""

import os
import re
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_LIMITS: Final = ((resource.RLIMIT_AS, 0, 256 << 20), (resource.RLIMIT_DATA, 5, 32 << 20))
"""Limits of address space and of data; which number in `statm` says how much is taken; and what
else the first forward takes: MKL maps 220 MB of libraries then, and ends the process if it cannot.
"""


def free_memory_bytes(root: Path = Path("/")) -> int:
    """Free bytes of memory for weights and caches; `root` is where `/proc` and `/sys` are."""
    with suppress(OSError):
        if free := re.search(r"MemAvailable:\s+(\d+)", (root / "proc/meminfo").read_text()):
            return max(0, min([int(free[1]) * 1024, *_below_limits(root), *_in_groups(root)]))
    return installed_bytes() // 2  # it is not reported here


def installed_bytes() -> int:
    """The memory of this machine; 0 if that is unknown."""
    with suppress(ValueError, OSError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 0


def _below_limits(root: Path) -> Iterator[int]:
    pages = (root / "proc/self/statm").read_text().split()
    for limit, field, reserved in _LIMITS:
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY:
            yield most - int(pages[field]) * os.sysconf("SC_PAGE_SIZE") - reserved


def _in_groups(root: Path) -> Iterator[int]:
    """What the group of this process and those above it have left; cached files count as free."""
    groups = root / "proc/self/cgroup"
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, limit, usage, total = "sys/fs/cgroup", "memory.max", "memory.current", ""
        elif "memory" in controllers.split(","):
            top, total = "sys/fs/cgroup/memory", "total_"
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = root / top / path.lstrip("/")
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):  # no such group, or one without a limit
                files = (folder / "memory.stat").read_text()
                cached = re.findall(rf"(?m)^{total}(?:in)?active_file (\d+)$", files)
                left = int((folder / limit).read_text()) - int((folder / usage).read_text())
                yield left + sum(map(int, cached))
