"""A local HTTP server that counts what is asked of it, and fails on demand."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class CountingServer(ThreadingHTTPServer):
    """Serves a folder; ``fail`` says how many requests it answers with 503, ``cut`` how many it breaks off."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
        self.requests: Counter[str] = Counter()
        self.fail = 0
        self.cut = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"
        self.lock = threading.Lock()

    def take(self, path: str) -> str:
        with self.lock:
            self.requests[path] += 1
            if self.fail > 0:
                self.fail -= 1
                return "fail"
            if self.cut > 0:
                self.cut -= 1
                return "cut"
            return "serve"


class _Handler(SimpleHTTPRequestHandler):
    server: CountingServer

    def do_GET(self) -> None:
        what = self.server.take(self.path)
        if what == "fail":
            self.send_error(503)
        elif what == "cut":
            content = Path(self.translate_path(self.path)).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
        else:
            super().do_GET()

    def log_message(self, *args: object) -> None:
        pass
