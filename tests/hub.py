"""A hub on this machine: one HTTP server that serves folders as models, as the library asks."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

SHA = "0123456789abcdef0123456789abcdef01234567"


def _blob(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


def _handler(models: dict[str, Path]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            for name, folder in models.items():
                files = sorted(path for path in folder.iterdir() if path.is_file())
                if path in (f"/api/models/{name}", f"/api/models/{name}/revision/main"):
                    siblings = [
                        {"rfilename": file.name, "size": file.stat().st_size, "blobId": _blob(file)}
                        for file in files
                    ]
                    self._send(json.dumps({"id": name, "sha": SHA, "siblings": siblings}).encode())
                    return
                if path == f"/api/models/{name}/tree/{SHA}":
                    entries = [
                        {"type": "file", "path": file.name, "size": file.stat().st_size,
                         "oid": _blob(file)}
                        for file in files
                    ]  # fmt: skip
                    self._send(json.dumps(entries).encode())
                    return
                if path.startswith(f"/{name}/resolve/"):
                    file = folder / path.rpartition("/")[2]
                    self._send(file.read_bytes(), ETag=f'"{_blob(file)}"', **{"X-Repo-Commit": SHA})
                    return
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _send(self, content: bytes, **headers: str) -> None:
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

    return Handler


@contextmanager
def serve_hub(models: dict[str, Path]) -> Iterator[str]:
    """Serves models, by their names; yields the address for `HF_ENDPOINT`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(models)) as server:
        thread = Thread(target=lambda: server.serve_forever(0.01), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
