# SPDX-License-Identifier: Apache-2.0
"""A hub for tests: what Hugging Face's API answers, with redirects to a storage host (another address and port), ranges,
etags, and any failure that a test wants. No network is needed."""
import hashlib
import json
import re
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NEWER = "fedcba9876543210fedcba9876543210fedcba98"


def git_hash(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repo:
    """files: path to bytes; those over a limit are kept on the storage host, as LFS does."""

    def __init__(self, files, commit=COMMIT, large=1000):
        self.files, self.commit, self.large = dict(files), commit, large
        self.listed = None       # other paths to list
        self.error = None        # (status, x-error-code) for every request

    def is_large(self, path):
        return len(self.files[path]) > self.large

    def etag(self, path):
        data = self.files[path]
        return hashlib.sha256(data).hexdigest() if self.is_large(path) else git_hash(data)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # some tests disconnect on purpose


class Hub:
    """hub.url is the endpoint. on_api and on_storage (may be None) get each handler first, and return True if they have
    answered."""

    def __init__(self):
        self.repos, self.refs = {}, {}
        self.requests = []       # (host, method, path, headers)
        self.on_api = self.on_storage = None
        self.ranges = True
        self.signed = 0          # how many addresses of the storage host were handed out; each is different
        self.lock = threading.Lock()
        self.api = self.listen("127.0.0.1", Api)
        self.storage = self.listen("127.0.0.2", Storage)
        self.url = "http://127.0.0.1:%d" % self.api.server_port
        self.storage_url = "http://127.0.0.2:%d" % self.storage.server_port

    def listen(self, address, handler):
        server = Server((address, 0), handler)
        server.hub = self
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return server

    def add(self, name, files, revision="main", **more):
        repo = Repo(files, **more)
        self.repos[name, repo.commit] = repo
        self.refs[name, revision] = repo.commit
        self.refs[name, repo.commit] = repo.commit
        return repo

    def close(self):
        for server in (self.api, self.storage):
            server.shutdown()
            server.server_close()

    def asked(self, word, method=None):
        with self.lock:
            return [r for r in self.requests if word in r[2] and method in (None, r[1])]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: a second packet would wait for the acknowledgement of the first

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.handle_one()

    def do_GET(self):
        self.handle_one()

    def handle_one(self):
        self.hub = self.server.hub
        self.path = urllib.parse.unquote(self.path)
        with self.hub.lock:
            self.hub.requests.append((self.host, self.command, self.path, dict(self.headers)))
        hook = self.hub.on_api if self.host == "api" else self.hub.on_storage
        if not (hook and hook(self)):
            self.answer()

    def send(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        if not any(name.lower() == "content_length" for name in headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_bytes(self, data, cut=None, piece=None, pause=0, **headers):
        """Sends the requested bytes or range; cut: sends only this many bytes, then closes the connection."""
        first, last, status = 0, len(data) - 1, 200
        asked = re.match(r"bytes=(\d+)-(\d+)$", self.headers.get("Range", ""))
        if asked and self.hub.ranges:
            first, last, status = int(asked[1]), min(int(asked[2]), last), 206
            headers["Content_Range"] = "bytes %d-%d/%d" % (first, last, len(data))
        body = data[first:last + 1]
        self.send(status, Content_Length=len(body), **headers)
        if self.command == "HEAD":
            return
        body = body if cut is None else body[:cut]
        for at in range(0, len(body), piece or len(body) or 1):
            self.wfile.write(body[at:at + (piece or len(body))])
            self.wfile.flush()
            time.sleep(pause)
        if cut is not None:
            self.close_connection = True
            self.connection.shutdown(2)


class Api(Handler):
    host = "api"

    def answer(self):
        listing = re.match(r"/api/models/([^/]+/[^/]+)/revision/(.+)$", self.path)
        tree = re.match(r"/api/models/([^/]+/[^/]+)/tree/([^?]+)", self.path)
        file = re.match(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)$", self.path)
        name, revision = (listing or tree or file).group(1, 2) if listing or tree or file else ("", "")
        if not any(n == name for n, _ in self.hub.repos):
            return self.send(401, b"{}", X_Error_Code="RepoNotFound")
        commit = self.hub.refs.get((name, revision.split("?")[0]))
        if not commit:
            return self.send(404, b"{}", X_Error_Code="RevisionNotFound")
        repo = self.hub.repos[name, commit]
        if repo.error:
            status, code = repo.error
            return self.send(status, b"{}", **({"X_Error_Code": code} if code else {}))
        if listing:
            paths = repo.listed or list(repo.files)
            return self.send(200, json.dumps({"id": name, "sha": commit,
                                              "siblings": [{"rfilename": p} for p in paths]}).encode())
        if tree:  # as huggingface_hub requests it
            return self.send(200, json.dumps([self.entry(repo, path) for path in repo.files]).encode())
        path = file.group(3)
        if path not in repo.files:
            return self.send(404, X_Error_Code="EntryNotFound")
        data, etag = repo.files[path], repo.etag(path)
        if repo.is_large(path):
            with self.hub.lock:
                self.hub.signed += 1
                signature = self.hub.signed
            return self.send(302, X_Repo_Commit=commit, X_Linked_Etag='"%s"' % etag, X_Linked_Size=len(data),
                             Location="%s/%s/%s/%s?%d" % (self.hub.storage_url, name, commit, path, signature))
        self.send_bytes(data, X_Repo_Commit=commit, ETag='"%s"' % etag)


    @staticmethod
    def entry(repo, path):
        data = repo.files[path]
        lfs = {"lfs": {"oid": repo.etag(path), "size": len(data), "pointerSize": 130}} if repo.is_large(path) else {}
        return {"type": "file", "path": path, "size": len(data), "oid": git_hash(data), **lfs}


class Storage(Handler):
    host = "storage"

    def data(self):
        org, name, commit, path = self.path[1:].split("?")[0].split("/", 3)
        return self.hub.repos[org + "/" + name, commit].files[path]

    def answer(self):
        self.send_bytes(self.data())
