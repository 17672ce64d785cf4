"""`pull`, `list`, `rm`, `show` and `ps`: the models on this machine, and those that a server has
loaded. All except `pull` work without a network, and all except `ps` without a server."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from akunu_py.cli.render import on_one_line
from akunu_py.cli.settings import ListSettings, PsSettings, PullSettings, RmSettings, ShowSettings
from akunu_py.errors import AkunuError, InvalidRequestError
from akunu_py.machine.backend import find_backend
from akunu_py.machine.device_memory import free_device_bytes
from akunu_py.model.library import (
    USUAL_TOKENS,
    LocalModel,
    all_local_models,
    check_folders,
    in_gigabytes,
    matches,
    plan,
    remove,
    short_count,
)
from akunu_py.option_field import did_you_mean
from akunu_py.server.settings import KEY_VARIABLE, RECOMMENDED


def run(settings: Any) -> int:
    """Runs the command of these settings."""
    tasks: dict[type, Callable[[Any], int]] = {
        PullSettings: _pull,
        ListSettings: _list,
        RmSettings: _rm,
        ShowSettings: _show,
        PsSettings: _ps,
    }
    return tasks[type(settings)](settings)


def _pull(settings: PullSettings) -> int:
    download = plan(settings.name)
    missing = download.total - download.completed
    print(f"{download.name}: {in_gigabytes(download.total)}, {in_gigabytes(missing)} still to "
          f"fetch; {_fit(download.weight_bytes)}.",
          flush=True)  # fmt: skip
    model = download.run()
    why_not = model.why_not
    print(f"{model.name} is in {model.folder}" + (f", but {why_not}." if why_not else "."))
    return 0


def _list(settings: ListSettings) -> int:
    models = _models(settings.models_dirs)
    if settings.names:
        print(*(on_one_line(model.name) for model in models), sep="\n")
        return 0
    room = _room()
    if settings.as_json:
        print(json.dumps([_described(model, room) for model in models]))
        return 0
    rows = [("NAME", "SIZE", "WEIGHTS", "PRECISION", "KIND", "HEAD", "FITS")]
    for model in models:
        found = _described(model, room)
        fits = found["why_not"] or ("yes" if found["fits"] else "no")
        rows.append((model.name, in_gigabytes(model.nbytes), short_count(model.parameters),
                     model.precision, f"{model.kind}, {model.architecture}",
                     "yes" if model.has_head else "-", fits))  # fmt: skip
    _print_table(rows)
    return 0


def _rm(settings: RmSettings) -> int:
    model = _find(settings.name, settings.models_dirs)
    if model.place == "hub" and not settings.agrees:
        if not sys.stdin.isatty():
            raise InvalidRequestError("rm asks before it deletes; add --yes if nobody can answer.")
        size = in_gigabytes(model.nbytes)
        if input(f"Delete {model.name}, {size}, in {model.folder.parents[1]}? [y/N] ") != "y":
            return 1
    print(f"Deleted {model.name}; freed {in_gigabytes(remove(model))}.")
    return 0


def _show(settings: ShowSettings) -> int:
    model = _find(settings.name, settings.models_dirs)
    found = _described(model, _room())
    if settings.as_json:
        print(json.dumps(found))
        return 0
    found |= {
        "parameters": short_count(model.parameters),
        "bytes": in_gigabytes(model.nbytes),
        "cache_bytes": f"{in_gigabytes(found['cache_bytes'])} for {USUAL_TOKENS:,} tokens",
        "sampling": ", ".join(f"{key} {value}" for key, value in found["sampling"].items()),
    }
    for name, value in found.items():
        if value not in (None, ""):
            told = ("no", "yes")[value] if isinstance(value, bool) else value
            print(f"{name.replace('_', ' '):14}{on_one_line(str(told))}")
    return 0


def _ps(settings: PsSettings) -> int:
    url = f"{settings.url.rstrip('/')}/api/ps"
    models = ask_server(url, "models", os.environ.get(KEY_VARIABLE), "see --url")
    rows = [("NAME", "SIZE", "CONTEXT", "UNTIL (UTC)")]
    for model in models:
        name, until = model["name"].removesuffix(":latest"), model["expires_at"][:19]
        rows.append((name, in_gigabytes(model["size"]), f"{model['context_length']:,}", until))
    _print_table(rows)
    return 0


def ask_server(url: str, field: str, key: str | None, hint: str) -> Any:
    """A field of a server's answer; the hint says what to do if there is no server."""
    try:
        request = Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
        # A proxy would not find this machine, and must not get the key.
        with build_opener(ProxyHandler({})).open(request, timeout=10) as answer:
            return json.load(answer)[field]
    except HTTPError as error:
        raise AkunuError(f"{url} answered with status {error.code}; see {KEY_VARIABLE}.") from None
    except (URLError, HTTPException, OSError, ValueError, LookupError, TypeError) as error:
        reason = getattr(error, "reason", error)
        raise AkunuError(f"There is no server at {url} ({reason}); {hint}.") from None


def _models(folders: Sequence[Path]) -> list[LocalModel]:
    check_folders(folders)
    return list(all_local_models(folders))


def _find(name: str, folders: Sequence[Path]) -> LocalModel:
    models = _models(folders)
    found = matches(models, name) or matches(models, name.removesuffix(":latest"))
    if len(found) == 1:
        return found[0]
    what = f"may be {' or '.join(model.name for model in found)}" if found else "is not here"
    meant = did_you_mean(name, [model.name for model in models]) or "see `list`."
    raise InvalidRequestError(f"{name} {what}; {meant}")


def _described(model: LocalModel, room: int) -> dict[str, Any]:
    needed = model.nbytes + model.cache_bytes(USUAL_TOKENS)
    sampling = {key: model.sampling[key] for key in RECOMMENDED if key in model.sampling}
    return {
        "name": model.name,
        "place": model.place,
        "folder": str(model.folder),
        "architecture": model.architecture,
        "kind": model.kind,
        "parameters": model.parameters,
        "bytes": model.nbytes,
        "precision": model.precision,
        "bits": model.bits,
        "context": model.context,
        "cache_bytes": model.cache_bytes(USUAL_TOKENS),
        "has_head": model.has_head,
        "sampling": sampling,
        "fits": needed <= room,
        "why_not": model.why_not,
    }


def _room() -> int:
    find_backend()  # before MLX is imported
    return free_device_bytes()


def _fit(nbytes: int) -> str:
    room = _room()
    fits = "fit" if nbytes <= room else "do NOT fit"
    return f"its weights {fits} into the {in_gigabytes(room)} free for models"


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(on_one_line(line.rstrip()))
