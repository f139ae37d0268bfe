"""A federation as a Flower app: a ServerApp and a ClientApp around any of our algorithms."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..compute import compute_threads
from ..errors import InvalidInput
from ..federation import Learning, Reply, Rules, TooFewSites, answer, serve
from ..records import RunFolder

try:
    import httpx
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.common.constant import ErrorCode
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:
    raise ImportError(
        f"federation: Flower needs other packages ({error}); pip install 'fedgloss[flower]'"
    ) from None

POLL = 2.0  # seconds between looks for replies
SETTINGS = "pyproject.toml: tool.flwr.app.config"
LINGER = 60.0  # seconds that the answers to "who are you" are waited for
WORDS = {
    ErrorCode.MESSAGE_UNAVAILABLE: "did not answer in time",
    ErrorCode.NODE_UNAVAILABLE: "lost its connection",
}

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
        try:
            minimum, max_norm, timeout, wait = (
                _positive(settings, name) for name in ("minimum-sites", "max-norm", "timeout", "wait")
            )
            if minimum % 1:
                raise InvalidInput(f"{SETTINGS}.minimum-sites: must be a whole number, got {minimum}")
            rules = Rules(minimum=int(minimum), max_norm=max_norm)
            post = FlowerPost(grid, sites=learning.sites, minimum=rules.minimum, timeout=timeout, wait=wait)
            if not settings.get("run-folder"):
                raise InvalidInput(f"{SETTINGS}.run-folder: say where the server keeps the run")
            folder = RunFolder(Path(str(settings["run-folder"])).expanduser())
            with compute_threads(1):
                summary = serve(learning, post, folder, rules)
        except (InvalidInput, TooFewSites) as error:
            raise error.with_traceback(None) from None  # Flower prints what ends an app: its words say it all
        log.info("%s after %d rounds; all is in %s", summary["status"], summary["rounds"], folder.path)

    return app


def _positive(settings: Mapping[str, Any], name: str) -> float:
    value = settings.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InvalidInput(f"{SETTINGS}.{name}: must be a positive number, got {value!r}")
    return float(value)


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
        self._strangers: dict[int, str] = {}
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
        return self._exchange(messages, self._timeout)

    def _exchange(self, messages: Mapping[int, Message], timeout: float) -> Iterator[Reply]:
        """What each that was asked replied. Replies are fetched one by one: an error names the wrong node, a liar
        could name another's letter, and what Flower cannot read must cost nobody but its sender."""
        sent = list(self._grid.push_messages(list(messages.values())))
        asked = {}
        if len(sent) != len(messages):  # whose these are cannot be told; the SuperLink found some too large, say
            sent = [""] * len(messages)
        for who, letter in zip(messages, sent, strict=True):
            if letter:
                asked[who] = letter
            else:  # a node that was unregistered a moment ago
                yield Reply(who, error="could not be sent its letter")
        deadline = time.monotonic() + timeout
        while asked and time.monotonic() < deadline:
            for who, letter in list(asked.items()):
                reply = self._fetch(who, letter)
                if reply is not None:
                    del asked[who]
                    yield reply
            if asked:
                time.sleep(POLL)

    def _fetch(self, who: int, letter: str) -> Reply | None:
        """The reply to a letter, if it is there."""
        try:
            for message in self._grid.pull_messages([letter]):
                if message.has_error():
                    error = message.error
                    return Reply(who, error=WORDS.get(error.code, f"failed ({error.reason or error.code})"[:500]))
                record = message.content.config_records.get("reply")
                return Reply(who, content=None if record is None else dict(record))
        except httpx.HTTPError:  # the SuperLink's trouble, not the site's
            raise
        except Exception as error:  # Flower decodes what sites send, and says so in many ways when it cannot
            return Reply(who, error=f"sent what cannot be read ({type(error).__name__})")
        return None

    def _look_around(self) -> None:
        """Which nodes are there now, and which sites they are."""
        nodes = {node.node_id: getattr(node, "name", "") for node in self._grid.get_nodes()}
        self._nodes = {site: node for site, node in self._nodes.items() if node in nodes}
        known = set(self._nodes.values())
        unnamed = []
        for node, name in nodes.items():
            if node in known:
                continue
            numbered = re.fullmatch(r"site-(\d{1,9})", name)
            if numbered:
                self._admit(int(numbered[1]), node)
            elif name:
                self._refuse(node, f"is registered as {name!r}, not as site-<number>")
            elif node not in self._strangers:
                unnamed.append(node)
        if unnamed:
            questions = {
                node: Message(RecordDict(), dst_node_id=node, message_type="query", ttl=LINGER) for node in unnamed
            }
            for reply in self._exchange(questions, LINGER):
                site, node = (reply.content or {}).get("site"), reply.site  # what it says, and who was asked
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
        if self._strangers.get(node) != why:
            log.warning("node %d %s; it takes no part", node, why)
        self._strangers[node] = why
