"""A Hugging Face Hub on this machine: what huggingface_hub's own client asks of one, from repositories on disk.

It speaks the API as client releases 0.26 to 2.4 use it: information about a repository, its tree (paged), the files
(HEAD and GET, ranges, redirects of large ones to another origin, as the Hub's storage is one), whoami-v2
(`tests/hub_reading.py`), commits and uploads (`tests/hub_writing.py`), and the ways in which the Hub refuses. Not
spoken: Xet, which clients are told to leave alone (HF_HUB_DISABLE_XET), so that files kept there are untested.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import hub_reading, hub_writing
from tests.hub_handler import Handler, Hub, Server


@contextmanager
def hub_server(folder: Path) -> Iterator[Hub]:
    """A Hub on two ports of this machine while it lasts; its repositories are kept under `folder`."""
    hub = Hub(folder)
    servers = [Server(("127.0.0.1", 0), Handler) for _ in range(2)]
    for server in servers:
        server.hub, server.routes = hub, (*hub_reading.ROUTES, *hub_writing.ROUTES)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    hub.url, hub.storage = (f"http://127.0.0.1:{s.server_port}" for s in servers)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def unused_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def deaf_server() -> Iterator[str]:
    """A server that accepts connections and never says anything; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
