"""A registry on this machine whose layers wait for a word."""

from __future__ import annotations

import http.server
import json
import re
import threading
from pathlib import Path
from typing import Any

from tests.images.layouts import MANIFEST


class SlowRegistry:
    """A registry of one image that sends no layer before it is told to."""

    def __init__(self, layout: str, path: str = "some/image", tag: str = "1") -> None:
        directory = Path(layout.removeprefix("oci:"))
        [described] = json.loads((directory / "index.json").read_text())["manifests"]
        self.free = threading.Event()
        self.asked: list[str] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(handler) -> None:
                kind, wanted = re.fullmatch(rf"/v2/{path}/(manifest|blob)s/(.*)", handler.path.split("?")[0]).groups()  # type: ignore[union-attr]
                self.asked.append(kind)
                digest = described["digest"] if wanted == tag else wanted
                file = directory / "blobs" / "sha256" / digest.removeprefix("sha256:")
                if not file.is_file():
                    said = json.dumps({"errors": [{"code": "MANIFEST_UNKNOWN"}]}).encode()
                    handler.send_response(404)
                    handler.send_header("Content-Type", "application/json")
                    handler.send_header("Content-Length", str(len(said)))
                    handler.end_headers()
                    handler.wfile.write(said)
                    return
                content = file.read_bytes()
                handler.send_response(200)
                handler.send_header("Content-Type", MANIFEST if kind == "manifest" else "application/octet-stream")
                handler.send_header("Content-Length", str(len(content)))
                handler.end_headers()
                if content[:2] == b"\x1f\x8b":
                    self.free.wait(20)
                handler.wfile.write(content)

            do_HEAD = do_GET

            def log_message(handler, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"localhost:{self._server.server_port}"
        self.reference = f"{self.host}/{path}:{tag}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> SlowRegistry:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.free.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
