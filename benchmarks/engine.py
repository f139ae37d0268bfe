"""A round beside what the cores can do at best, and beside plain PyTorch."""

from __future__ import annotations

from .harness import Line, Spread, Turns, Variant, running, take_turns, write
from .runners.work import CNN_FLOPS, PER_CLIENT, RESNET18_FLOPS

CORES = 2
RESNET18_PICTURES = 128  # a client: two batches; a round of 500 would take a minute


def ours(name: str, **options: object) -> Variant:
    arguments = []
    for key, value in options.items():
        arguments += [f"--{key.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return Variant(name, "ours", arguments)


PEAK = Variant("gemm", "gemm", [str(CORES)])


def share_of_peak(turns: Turns, name: str, flops: float) -> Spread:
    pairs = zip(turns.values(name), turns.values("gemm", "flops"), strict=True)
    return Spread.of([flops / seconds / peak for seconds, peak in pairs])


def share_of_core_time(turns: Turns, name: str, flops: float) -> Spread:
    """The same by processor time, which other programs on the machine disturb less; idle cores do not count."""
    pairs = zip(turns.values(name, "core_seconds"), turns.values("gemm", "flops_of_core"), strict=True)
    return Spread.of([flops / seconds / rate for seconds, rate in pairs])


def share() -> list[Line]:
    """The share of the two cores' GEMM rate that whole rounds reach."""
    cases = {
        "cohort 5, SGD": (ours("cohort 5, SGD", cohort=5), 1, 5, 0.60),
        "cohort 5, SAM": (ours("cohort 5, SAM", cohort=5, method="sam"), 2, 5, 0.57),
        "cohort 10, SGD": (ours("cohort 10, SGD", cohort=10), 1, 10, 0.66),
    }
    with running([PEAK, *[case[0] for case in cases.values()]]) as started:
        turns = take_turns(started)
    lines = []
    for name, (_, passes, cohort, target) in cases.items():
        flops = passes * cohort * PER_CLIENT * CNN_FLOPS
        found = share_of_peak(turns, name, flops)
        lines += [
            Line(f"share of GEMM peak, {name}", found.show(), f"at least {target}", found.median >= target),
            Line(f"the same of the processor time used, {name}", share_of_core_time(turns, name, flops).show()),
        ]
    write("share", lines, turns, {})
    return lines


def plain() -> list[Line]:
    """The same round written as a plain PyTorch loop, in the fastest of its settings."""
    settings = [(2, 0), (2, 2)]
    names = [f"plain PyTorch, {threads} threads, {loaders} loaders" for threads, loaders in settings]
    variants = [
        Variant(name, "plain_pytorch", ["--threads", str(threads), "--loaders", str(loaders)])
        for name, (threads, loaders) in zip(names, settings, strict=True)
    ]
    with running([ours("fedgloss"), *variants]) as started:
        turns = take_turns(started)
    ratios = {name: turns.ratio(name, "fedgloss") for name in names}
    fastest = min(names, key=lambda name: ratios[name].median)
    lines = [
        Line(
            f"times faster than {name}",
            ratios[name].show(),
            "at least 2.1" if name == fastest else "",
            ratios[name].median >= 2.1 if name == fastest else None,
        )
        for name in names
    ]
    write("plain", lines, turns, {})
    return lines


def sharpness() -> list[Line]:
    """What sharpness-awareness costs: on the server nothing, on the clients a second gradient."""
    variants = [
        ours("SGD", workers=1, cohort=2),
        ours("SAM", workers=1, cohort=2, method="sam"),
        ours("FedSAM", method="sam"),
        ours("FedGloSS with SAM clients", method="fedgloss-sam"),
    ]
    with running(variants) as started:
        turns = take_turns(started)
    sam, gloss = turns.ratio("SAM", "SGD"), turns.ratio("FedGloSS with SAM clients", "FedSAM")
    lines = [
        Line("SAM against SGD, a round", sam.show(), "at most 2.15", sam.median <= 2.15),
        Line("FedGloSS-SAM against FedSAM, a round", gloss.show(".3f"), "at most 1.03", gloss.median <= 1.03),
    ]
    write("sharpness", lines, turns, {})
    return lines


def overhead() -> list[Line]:
    """What a round on one worker does beside gradients and augmentation."""
    variants = [ours(method, workers=1, method=method, overhead=True) for method in ("sgd", "fedgloss-sam")]
    with running(variants) as started:
        turns = take_turns(started)
    lines = []
    for variant in variants:
        found = Spread.of(turns.values(variant.name, "overhead"))
        what = f"neither gradients nor augmentation, {variant.name}"
        lines.append(Line(what, found.show(".3f"), "at most 0.04", found.median <= 0.04))
    write("overhead", lines, turns, {})
    return lines


def resnet18() -> list[Line]:
    """The larger network, one client per core."""
    variant = ours("ResNet18-GN", model="resnet18-gn", cohort=2, clients=4, per_client=RESNET18_PICTURES)
    with running([PEAK, variant]) as started:
        turns = take_turns(started)
    flops = 2 * RESNET18_PICTURES * RESNET18_FLOPS
    found = share_of_peak(turns, variant.name, flops)
    lines = [
        Line("share of GEMM peak, ResNet18-GN, cohort 2", found.show(), "at least 0.65", found.median >= 0.65),
        Line(
            "the same of the processor time used, ResNet18-GN",
            share_of_core_time(turns, variant.name, flops).show(),
        ),
    ]
    write("resnet18", lines, turns, {})
    return lines


def profile() -> list[Line]:
    """Where the time of one client goes: as a PyTorch user writes it, and here."""
    names = {"plain": "plain PyTorch", "ours": "fedgloss"}
    with running([Variant(names[loop], "profile_client", [loop]) for loop in names]) as started:
        turns = take_turns(started)
    kinds = [key for key in turns.found["fedgloss"][0] if key not in ("seconds", "others", "core_seconds")]
    lines = []
    for kind in [*kinds, "seconds"]:
        before, after = (1e3 * Spread.of(turns.values(name, kind)).median for name in names.values())
        what = "the whole client" if kind == "seconds" else kind
        lines.append(Line(f"ms of one core, {what}", f"plain {before:.0f}, here {after:.0f}"))
    write("profile", lines, turns, {})
    return lines
