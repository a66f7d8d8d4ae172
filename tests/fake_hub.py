"""A Hub on this machine: serves folders as repositories, as much of it as huggingface_hub asks for, and keeps what was
asked."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMITS = {"main": "a" * 40, "v1": "b" * 40}


class Hub:
    """Repositories by name and commit, the tokens that private ones want, and requests so far."""

    def __init__(self) -> None:
        self.folders: dict[tuple[str, str], Path] = {}
        self.tokens: dict[str, str] = {}
        self.requests: list[tuple[str, str]] = []
        self.url = ""

    def add(self, name: str, folder: Path, revision: str = "main") -> None:
        """Serves a folder."""
        self.folders[name, COMMITS[revision]] = folder

    def fetched(self, name: str) -> set[str]:
        """Names of the files of a repository of which the content was sent."""
        found = (re.fullmatch(rf"/{name}/resolve/[^/]+/(.+)", path) for how, path in self.requests if how == "GET")
        return {match[1] for match in found if match}


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: object) -> None:
            return

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def send(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append((self.command, path))
            token = next((token for name, token in hub.tokens.items() if f"/{name}" in path), None)
            if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
                self.send(401, b"{}", X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
                return
            if match := re.fullmatch(r"/api/models/([^/]+/[^/]+?)(?:/revision/([^/]+))?", path):
                self.about(match[1], match[2] or "main")
            elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)(?:/(.*))?", path):
                self.tree(match[1], match[2])
            elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                self.file(*match.groups())
            else:
                self.send(404, b"{}")

        def folder(self, name: str, revision: str) -> tuple[Path, str] | None:
            commit = COMMITS.get(revision, revision)
            if (name, commit) in hub.folders:
                return hub.folders[name, commit], commit
            known = any(name == other for other, _ in hub.folders)
            code = "RevisionNotFound" if known else "RepoNotFound"
            self.send(404, b"{}", X_Error_Code=code, X_Error_Message=code)
            return None

        def names(self, folder: Path) -> list[str]:
            return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())

        def about(self, name: str, revision: str) -> None:
            if found := self.folder(name, revision):
                folder, commit = found
                siblings = [{"rfilename": n, "size": (folder / n).stat().st_size} for n in self.names(folder)]
                body = {"id": name, "modelId": name, "sha": commit, "siblings": siblings, "tags": []}
                self.send(200, json.dumps(body).encode(), Content_Type="application/json")

        def tree(self, name: str, revision: str) -> None:
            if found := self.folder(name, revision):
                folder, _ = found
                entries = [
                    {"type": "file", "path": n, "size": (folder / n).stat().st_size, "oid": _oid(folder / n)}
                    for n in self.names(folder)
                ]
                self.send(200, json.dumps(entries).encode(), Content_Type="application/json")

        def file(self, name: str, revision: str, file: str) -> None:
            if found := self.folder(name, revision):
                folder, commit = found
                if not (folder / file).is_file():
                    self.send(404, b"", X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
                    return
                body = (folder / file).read_bytes()
                self.send(200, body, ETag=f'"{_oid(folder / file)}"', X_Repo_Commit=commit)

    return Handler


def _oid(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


@contextmanager
def serving() -> Iterator[Hub]:
    """A Hub that answers at ``hub.url``."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
