"""A federation as a Flower app: a ServerApp and a ClientApp around any of our algorithms."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from ..compute import compute_threads
from ..errors import InvalidInput
from ..records import RunFolder
from .definition import Learning
from .exchange import Reply, Rules
from .server import serve
from .site import answer

POLL = 2.0  # seconds between looks for replies
LINGER = 60.0  # seconds that the answers to "who are you" are waited for

log = logging.getLogger("fedgloss")


def client_app(learning: Learning) -> ClientApp:
    """What runs at a site. ``--node-config`` gives its ``partition-id`` and the folder of its ``memory``."""
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator, unused-ignore]
    def train(message: Message, context: Context) -> Message:
        letter = dict(message.content.config_records.get("letter", {}))
        reply = answer(learning, context.node_config, memory_folder(context), letter)
        return Message(RecordDict({"reply": ConfigRecord(reply)}), reply_to=message)

    @app.query()  # type: ignore[untyped-decorator, unused-ignore]
    def introduce(message: Message, context: Context) -> Message:
        site = int(context.node_config.get("partition-id", -1))
        return Message(RecordDict({"reply": ConfigRecord({"site": site})}), reply_to=message)

    return app


def server_app(learning: Learning) -> ServerApp:
    """What runs at the server. The app's configuration gives ``run-folder`` and the rules of a round."""
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        log.setLevel(logging.INFO)
        if not log.handlers:
            log.addHandler(logging.StreamHandler())
        settings = context.run_config
        rules = Rules(minimum=int(settings["minimum-sites"]), max_norm=float(settings["max-norm"]))
        post = FlowerPost(
            grid,
            sites=learning.sites,
            minimum=rules.minimum,
            timeout=float(settings["timeout"]),
            wait=float(settings["wait"]),
        )
        folder = RunFolder(Path(str(settings["run-folder"])).expanduser())
        with compute_threads(1):
            summary = serve(learning, post, folder, rules)
        log.info("%s after %d rounds; all is in %s", summary["status"], summary["rounds"], folder.path)

    return app


def memory_folder(context: Context) -> Path:
    """Where a site keeps its memory: its own node configuration decides, in simulation the app's."""
    own = context.node_config.get("memory")
    if own is not None:
        return Path(str(own)).expanduser()
    shared = context.run_config.get("memory")
    if not shared:
        raise InvalidInput(
            "node-config: memory: say where this site keeps its memory, e.g. memory='\"/var/lib/site\"'"
        )
    return Path(str(shared)).expanduser() / f"site-{context.node_config.get('partition-id', context.node_id)}"


class FlowerPost:
    """Letters through a Flower grid. A site is the node registered as ``site-<number>``; a node without a name, as
    in simulation, is asked."""

    def __init__(self, grid: Grid, *, sites: int, minimum: int, timeout: float, wait: float) -> None:
        self._grid = grid
        self._sites = sites
        self._minimum = minimum
        self._timeout = timeout
        self._wait = wait
        self._nodes: dict[int, int] = {}
        self._strangers: set[int] = set()
        self._met = False

    def connected(self, wanted: Sequence[int]) -> set[int]:
        deadline = time.monotonic() + self._wait
        needed = min(self._minimum, len(wanted)) if self._met else len(wanted)
        while True:
            self._look_around()
            reached = {site for site in wanted if site in self._nodes}
            if len(reached) >= needed or time.monotonic() > deadline:
                self._met = True
                return reached
            time.sleep(1.0)

    def exchange(self, letters: Mapping[int, Mapping[str, Any]], group: str) -> Iterator[Reply]:
        messages = {
            site: Message(
                RecordDict({"letter": ConfigRecord(dict(letter))}),
                dst_node_id=self._nodes[site],
                message_type="train",
                ttl=self._timeout,
                group_id=group,
            )
            for site, letter in letters.items()
        }
        for site, reply in self._exchange(messages, self._timeout):
            if reply.has_error():
                # the reason names nodes and files of Flower's own, and is the same for all: its words suffice
                yield Reply(site, error=f"failed ({reply.error.reason or reply.error.code})"[:500])
            else:
                record = reply.content.config_records.get("reply")
                yield Reply(site, content=None if record is None else dict(record))

    def _exchange(self, messages: Mapping[int, Message], timeout: float) -> Iterator[tuple[int, Message]]:
        """Replies by whom was asked: an error reply names the wrong node, so what it answers is what counts."""
        asked = dict(zip(self._grid.push_messages(list(messages.values())), messages, strict=True))
        deadline = time.monotonic() + timeout
        while asked and time.monotonic() < deadline:
            for reply in self._grid.pull_messages(list(asked)):
                site = asked.pop(reply.metadata.reply_to_message_id, None)
                if site is not None:
                    yield site, reply
            if asked:
                time.sleep(POLL)

    def _look_around(self) -> None:
        """Which nodes are there now, and which sites they are."""
        nodes = {node.node_id: getattr(node, "name", "") for node in self._grid.get_nodes()}
        self._nodes = {site: node for site, node in self._nodes.items() if node in nodes}
        known = {*self._nodes.values(), *self._strangers}
        unnamed = []
        for node, name in nodes.items():
            if node in known:
                continue
            numbered = re.fullmatch(r"site-(\d{1,9})", name)
            if numbered:
                self._admit(int(numbered[1]), node)
            elif name:
                self._refuse(node, f"is registered as {name!r}, not as site-<number>")
            else:
                unnamed.append(node)
        if unnamed:
            questions = {
                node: Message(RecordDict(), dst_node_id=node, message_type="query", ttl=LINGER) for node in unnamed
            }
            for node, reply in self._exchange(questions, LINGER):
                record = None if reply.has_error() else reply.content.config_records.get("reply")
                site = None if record is None else record.get("site")
                if isinstance(site, int):
                    self._admit(site, node)

    def _admit(self, site: int, node: int) -> None:
        if not 0 <= site < self._sites:
            self._refuse(node, f"says that it is site {site}, there are {self._sites}")
        elif site in self._nodes:
            self._refuse(node, f"says that it is site {site}, which another node is")
        else:
            self._nodes[site] = node

    def _refuse(self, node: int, why: str) -> None:
        log.warning("node %d %s; it takes no part", node, why)
        self._strangers.add(node)
