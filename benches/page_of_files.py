"""What a browser waits for, and what it is sent, when it opens the page of files over a lakehouse.

    python -m benches.page_of_files [TABLES]

Needs Chromium and its driver, as `make test-browser` does. Every round begins with an empty cache. The server of files
sends what there is as it is, without compression.
"""

from __future__ import annotations

import functools
import http.server
import statistics
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from benches.lakes import registered
from trinitylake.page import write_files

ROUNDS = 7
#: Since the page was asked for: when something was painted, and when names of namespaces were there.
PAINTED = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null;"
NAMES_SINCE = """
    new MutationObserver((_, observer) => {
        if (document.body?.innerText.includes("namespace_00000")) {
            window.namesThereAt = performance.now();
            observer.disconnect();
        }
    }).observe(document, { subtree: true, childList: true, characterData: true });
"""


class Files(http.server.SimpleHTTPRequestHandler):
    """Files below a folder; it counts what it sends."""

    protocol_version = "HTTP/1.1"
    sent: dict[str, list[int]]

    def copyfile(self, source: Any, outputfile: Any) -> None:
        data = source.read()
        outputfile.write(data)
        self.sent["lakehouse" if self.path.startswith("/lake/") else "page"].append(len(data))

    def log_message(self, format: str, *args: Any) -> None:
        pass


def main(tables: int) -> None:
    """Measure and print."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
    from page.driver import browsing

    with tempfile.TemporaryDirectory() as folder:
        registered(Path(folder) / "lake", tables)
        write_files(Path(folder) / "site", "../lake")
        Files.sent = {"page": [], "lakehouse": []}
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=folder))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        painted, named, page, lakehouse = [], [], [], []
        with browsing() as browser:
            browser.devtools("Page.addScriptToEvaluateOnNewDocument", {"source": NAMES_SINCE})
            for _ in range(ROUNDS):
                browser.go("about:blank")
                browser.devtools("Network.clearBrowserCache", {})
                for sent in Files.sent.values():
                    sent.clear()
                browser.go(f"http://127.0.0.1:{server.server_port}/site/index.html")
                named.append(browser.wait("return window.namesThereAt ?? null;"))
                painted.append(browser.run(PAINTED))
                page.append(list(Files.sent["page"]))
                lakehouse.append(list(Files.sent["lakehouse"]))
        server.shutdown()
    print(f"{tables:,} tables, {ROUNDS} rounds: median (least to most)")
    for what, times in (("first paint", painted), ("names of namespaces", named)):
        print(f"{what}: {statistics.median(times):.0f} ms ({min(times):.0f} to {max(times):.0f})")
    for what, files in (("the page", page), ("the lakehouse", lakehouse)):
        print(f"of {what}: {len(files[-1])} files, {sum(files[-1]) / 1000:.1f} kB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
