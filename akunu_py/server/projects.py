"""Projects: which of them a request drafts from, and the texts that a client has one learn.

`project` is a field of every request for a completion: a folder that the server was started with
(`--project`), or its last name; an empty text is none. `POST /project/learn` keeps a text, such as
a completion that the user has accepted, in the memory of a project.
"""

import asyncio
import os
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.responses import Response

from akunu_py.memory.projects import Memory
from akunu_py.server.body import Body
from akunu_py.server.contract import ApiRequest
from akunu_py.server.errors import ApiError
from akunu_py.server.wire import WholeResponse


def read_project(body: Body, memory: Memory) -> str | None:
    """The only project that a request drafts from; None for all.

    Args:
        body: may have a `project`; without one, a file of `input_extra` stands for its project.
        memory: the server's.

    Raises:
        ApiError: if the server was not started with it, whether or not there is such a folder.
    """
    given = body.text("project", default=None)
    if given is None:
        names = [extra.text("filename", default="") for extra in body.objects("input_extra")]
        paths = [Path(os.path.normpath(name)) for name in names]
        within = (key for path in paths for key in memory.projects if path.is_relative_to(key))
        return next(within, None)
    if not given or given in memory.projects:
        return given
    wanted = os.path.normpath(given)
    for key in memory.projects:
        if wanted in (key, Path(key).name):
            return key
    raise ApiError(
        HTTPStatus.FORBIDDEN,
        "The field `project` names none of the folders that this server was started with; see "
        "`serve --project`.",
        "permission_error",
        param="project",
    )


def learn(request: ApiRequest) -> Response:
    """Keeps the `text` of the body in the memory of its `project`: `{"tokens": N}`.

    Raises:
        ApiError: if it names no project of this server.
        InvalidRequestError: if the text cannot be kept.
    """
    body, engine = request.body, request.engine
    body.require("text", "project")
    project, text = read_project(body, engine.memory), body.text("text", default="")
    if not project:
        body.refuse("project", "must name a project")
    keep = partial(engine.memory.learn, project, text, engine.tokenizer.encode_plain)

    async def learnt() -> dict[str, Any]:
        return {"tokens": await asyncio.to_thread(keep)}

    return WholeResponse(learnt)
