"""Rounds of Flower's simulation: its FedAvg, its Ray actors (one core each), with clients of two kinds."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["OMP_NUM_THREADS"] = "1"
HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"  # clients that run our loop import it
sys.path.append(str(SOURCE))
os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{SOURCE}"

from flower_clients import CLIENTS, make_client  # noqa: E402
from serving import serve  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--loop", choices=("ours", "plain"), default="plain")
    parser.add_argument("--cohort", type=int, default=5)
    parser.add_argument("--actors", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore")

    from flwr.app import ArrayRecord, Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    go, done = threading.Semaphore(0), threading.Semaphore(0)

    class Rounds(FedAvg):  # type: ignore[misc]
        """A round begins when it is asked for, and is done when the next could begin."""

        def configure_train(self, server_round: int, *rest: Any) -> Any:
            if server_round > 1:
                done.release()
            go.acquire()
            return super().configure_train(server_round, *rest)

    server = ServerApp()

    @server.main()  # type: ignore[untyped-decorator]
    def run(grid: Grid, context: Context) -> None:
        if options.loop == "ours":
            from flower_clients import our_loop

            start = {"params": our_loop()[0].initial()}
        else:
            from network import Cnn

            start = Cnn().state_dict()
        share = options.cohort / CLIENTS
        strategy = Rounds(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        strategy.start(grid=grid, initial_arrays=ArrayRecord(start), num_rounds=10**6)

    def answer() -> None:
        def once() -> None:
            go.release()
            done.acquire()

        serve(once, warm_up=3)  # until every actor has met its data
        os._exit(0)

    threading.Thread(target=answer, daemon=True).start()
    run_simulation(
        server_app=server,
        client_app=make_client(options.loop),
        num_supernodes=CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1},
            "init_args": {"num_cpus": options.actors, "include_dashboard": False},
        },
    )


if __name__ == "__main__":
    main()
