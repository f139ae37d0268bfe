"""Where the time of one client goes, by kind of work, in processor time of one thread."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from network import ClientPictures, Cnn, client_of, train_plainly
from ours import METHODS, unit_problem
from serving import serve
from torch.profiler import ProfilerActivity, profile
from work import pictures

from fedgloss.compute import freed_memory_kept
from fedgloss.messages import Broadcast
from fedgloss.tasks import Objective, client_tasks
from fedgloss.transports import MemoryStore, SerialTransport

KINDS = {
    "convolutions, forward": ("aten::mkldnn_convolution",),
    "convolutions, backward": ("aten::convolution_backward",),
    "max-pool, both ways": (
        "aten::max_pool2d_with_indices",
        "aten::max_pool2d_with_indices_backward",
        "aten::fill_",
    ),
    "matrix products (linear layers; here the second convolution too)": (
        *("aten::mm", "aten::addmm", "aten::bmm"),
        *("_Product", "_ProductBackward"),  # those compiled here
    ),
    "relu, both ways": ("aten::relu", "aten::threshold_backward", "aten::clamp_min"),
}


def client(name: str) -> Callable[[], object]:
    if name == "plain":
        samples, model = ClientPictures(*client_of(*pictures(1), 0)), Cnn()
        return lambda: train_plainly(model, samples)
    problem = unit_problem("cnn", 1)
    objective = Objective(problem.build(0), problem.loss)
    start = Broadcast({"params": objective.initial()}, 0)
    transport = SerialTransport(METHODS["sgd"], client_tasks(objective, problem.federation, 0), MemoryStore())
    return lambda: list(transport(start, [0]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("loop", choices=("ours", "plain"))
    work = client(parser.parse_args().loop)
    torch.set_num_threads(1)

    def once() -> dict[str, float]:
        began = time.process_time()
        work()
        total = time.process_time() - began
        with profile(activities=[ProfilerActivity.CPU]) as watched:
            work()
        events = {event.key: event.self_cpu_time_total / 1e6 for event in watched.key_averages()}
        found = {kind: sum(events.get(name, 0.0) for name in names) for kind, names in KINDS.items()}
        scale = total / max(total, sum(events.values()))
        found = {kind: scale * seconds for kind, seconds in found.items()}
        return {"seconds": total, **found, "all else": total - sum(found.values())}

    with freed_memory_kept():
        serve(once)


if __name__ == "__main__":
    main()
