"""The built site: its files and links as HTML has them, and a headless browser that walks through it.

    site       mkdocs build into a folder
    links      every href and src of a page, and the ids that can be linked to
    walk       a browser follows every link from the first page on, and measures each page at several widths

The browser needs no driver: it opens one page of ours (walk.js), which loads the others in a frame and posts what it
found to the server that serves them.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.docs.pages import ROOT

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SECONDS = 240  # that a walk may take; it takes about twenty


def build(folder: Path) -> subprocess.CompletedProcess:
    """mkdocs build --strict."""
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(folder),
    ]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)


@dataclass
class Page(HTMLParser):
    """The links of a page, and its anchors."""

    links: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)

    def __post_init__(self):
        super().__init__()

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.ids.add(value)
            elif name == "href" and value is not None:
                (self.links if tag == "a" else self.sources).append(value)
            elif name == "src" and value is not None:
                self.sources.append(value)


def page_of(html: str) -> Page:
    """
    >>> page = page_of('<h1 id="top"><a href="x/#y">x</a><img src="p.svg"></h1>')
    >>> page.links, page.sources, page.ids
    (['x/#y'], ['p.svg'], {'top'})
    """
    page = Page()
    page.feed(html)
    return page


def broken(folder: Path) -> list[str]:
    """Every link or source inside of the site that leads to no file, or to no id of its page."""
    pages = {path.resolve(): page_of(path.read_text()) for path in folder.rglob("*.html")}
    wrong = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links begin at the address where the site is put
        for link in (*page.links, *page.sources):
            if link.startswith(("https://", "data:", "mailto:")):
                continue
            target, _, fragment = link.partition("#")
            to = (path.parent / target).resolve() if target else path
            to = to / "index.html" if to.is_dir() else to
            known = pages.get(to)
            if not to.is_file() or (fragment and known is not None and fragment not in known.ids):
                wrong.append(f"{path.relative_to(folder)}: {link}")
    return wrong


def browser() -> str | None:
    """The first browser of BROWSERS that is installed."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


class _Handler(SimpleHTTPRequestHandler):
    """The site's files, walk.html and walk.js; what is posted goes into the server's queue."""

    def do_GET(self):
        if self.path == "/walk.html":
            self._answer(
                b"<!doctype html><meta charset=utf-8><script src=/walk.js></script>", "text/html"
            )
        elif self.path == "/walk.js":
            script = Path(__file__).with_name("walk.js").read_bytes()
            self._answer(script, "text/javascript")
        else:
            super().do_GET()

    def do_POST(self):
        self.server.reports.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer(b"", "text/plain")

    def _answer(self, content: bytes, kind: str):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@contextmanager
def served(folder: Path):
    """An address of this machine where the folder is served while the context lasts, and the queue of reports."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
    server.reports = queue.Queue()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.reports
    finally:
        server.shutdown()
        server.server_close()


def walk(folder: Path, profile: Path) -> dict:
    """What walk.js found; TimeoutError with the browser's last words if it says nothing."""
    log = profile.with_suffix(".log")
    with served(folder) as (address, reports), open(log, "w") as words:
        command = [
            browser(), "--headless=new", "--disable-gpu", "--no-first-run", "--disable-extensions",
            "--disable-dev-shm-usage", "--force-device-scale-factor=1", "--window-size=1600,1200",
            f"--user-data-dir={profile}",
        ]  # fmt: skip
        if os.geteuid() == 0:
            command.append(
                "--no-sandbox"
            )  # refuses to run as root otherwise; it sees our own pages only
        process = subprocess.Popen([*command, f"{address}/walk.html"], stdout=words, stderr=words)
        try:
            return reports.get(timeout=SECONDS)
        except queue.Empty:
            raise TimeoutError(f"{command[0]} said nothing: {log.read_text()[-2000:]}") from None
        finally:
            process.terminate()
            process.wait(30)
