"""A Hub on this machine: serves folders as repositories, as much of it as huggingface_hub asks for, and keeps what was
asked."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

COMMITS = {"main": "a" * 40, "v1": "b" * 40}


class Hub:
    """Repositories by name and commit, the tokens that private ones want, requests so far, and bytes of files that were
    sent."""

    def __init__(self) -> None:
        self.folders: dict[tuple[str, str], Path] = {}
        self.tokens: dict[str, str] = {}
        self.requests: list[tuple[str, str]] = []
        self.parts: list[tuple[str, int, int]] = []
        """Ranges of files that were asked for: where they begin and end."""
        self.ranges = True
        self.failures = 0
        """The number of the next requests for ranges that fail."""
        self.uploads: Path | None = None
        """The folder of repositories that somebody uploads."""
        self.created: list[tuple[str, str, bool]] = []
        self.commits: list[tuple[str, str, str, str]] = []
        """The repository, the branch, the message and the token of each commit."""
        self.refuses = False
        self.sent = 0
        self.url = ""

    def add(self, name: str, folder: Path, revision: str = "main") -> None:
        """Serves a folder."""
        self.folders[name, COMMITS[revision]] = folder

    def environment(self, cache: Path, *, offline: bool = False) -> dict[str, str]:
        """Variables of a process that knows this Hub alone, and keeps its files in ``cache``."""
        known = {name: value for name, value in os.environ.items() if name != "TRANSFORMERS_OFFLINE"}
        return {**known, "HF_ENDPOINT": self.url, "HF_HUB_CACHE": str(cache), "HF_HUB_DISABLE_XET": "1",
                "HF_HUB_OFFLINE": "1" if offline else "0", "HF_TOKEN": ""}  # fmt: skip

    def known_to(self, patch: pytest.MonkeyPatch, token: str, **constants: object) -> None:
        """Makes this process know this Hub alone, by what huggingface_hub has read from its environment."""
        address = self.url + "/{repo_id}/resolve/{revision}/{filename}"
        constants |= {"ENDPOINT": self.url, "HUGGINGFACE_CO_URL_TEMPLATE": address, "HF_HUB_DISABLE_XET": True}
        for name, value in constants.items():
            patch.setattr(f"huggingface_hub.constants.{name}", value)
        patch.setattr("huggingface_hub.hf_api.api.endpoint", self.url)
        patch.setenv("HF_TOKEN", token)

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

        def do_POST(self) -> None:
            """The requests of an upload."""
            path = unquote(urlsplit(self.path).path)
            hub.requests.append((self.command, path))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if hub.refuses or hub.uploads is None:
                self.json(403, {"error": "not yours"})
            elif path == "/api/repos/create":
                given = json.loads(body)
                owner, name = given.get("organization") or "me", given["name"]
                hub.created.append((owner, name, given.get("private", given.get("visibility") == "private")))
                self.json(200, {"url": f"{hub.url}/{owner}/{name}", "id": f"{owner}/{name}"})
            elif path == "/api/validate-yaml":
                self.json(200, {"errors": [], "warnings": []})
            elif re.fullmatch(r"/api/models/[^/]+/[^/]+/branch/[^/]+", path):
                self.json(200, {})
            elif re.fullmatch(r"/api/models/[^/]+/[^/]+/preupload/[^/]+", path):
                files = [f["path"] for f in json.loads(body)["files"]]
                modes = [{"path": f, "uploadMode": "regular", "shouldIgnore": False, "oid": None} for f in files]
                self.json(200, {"files": modes})
            elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/([^/]+)", path):
                self.commit(match[1], match[2], [json.loads(line) for line in body.splitlines()])
            else:
                self.json(404, {})

        def commit(self, name: str, branch: str, lines: list[dict[str, Any]]) -> None:
            assert hub.uploads is not None
            place = hub.uploads / name
            for line in lines:
                value = line["value"]
                if line["key"] == "header":
                    token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
                    hub.commits.append((name, branch, value["summary"], token))
                    continue
                (place / value["path"]).parent.mkdir(parents=True, exist_ok=True)
                (place / value["path"]).write_bytes(base64.b64decode(value["content"]))
            hub.add(name, place)
            commit = COMMITS["main"]
            self.json(200, {"commitUrl": f"{hub.url}/{name}/commit/{commit}", "commitOid": commit, "hookOutput": ""})

        def json(self, status: int, body: dict[str, Any]) -> None:
            self.send_response(status)
            data = json.dumps(body).encode()
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

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
                about = {"ETag": f'"{_oid(folder / file)}"', "X_Repo_Commit": commit, "Accept_Ranges": "bytes"}
                part = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "") if hub.ranges else None
                if part is None or not body:
                    hub.sent += len(body) if self.command == "GET" else 0
                    self.send(200, body, **about)
                    return
                begin, end = int(part[1]), min(int(part[2] or len(body)) + 1, len(body))
                if self.command == "GET":
                    hub.parts.append((f"{name}/{file}", begin, end))
                if hub.failures > 0 and self.command == "GET":
                    hub.failures -= 1
                    self.send(503, b"busy")
                elif begin >= len(body):
                    self.send(416, b"", Content_Range=f"bytes */{len(body)}")
                else:
                    hub.sent += end - begin if self.command == "GET" else 0
                    self.send(206, body[begin:end], Content_Range=f"bytes {begin}-{end - 1}/{len(body)}", **about)

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
