"""``python -m benchmarks [names]``: run benchmarks, write results/<name>.json and the table results/table.md."""

from __future__ import annotations

import json
import sys

from .engine import BENCHMARKS
from .harness import RESULTS


def table() -> str:
    """All results there are, as one Markdown table; each with the machine it was measured on."""
    rows, machines = [], []
    for path in sorted(RESULTS.glob("*.json")):
        content = json.loads(path.read_text())
        facts = content["machine"]
        about = f"{facts['processor']}, {facts['cores']} cores, {facts['instructions']}, torch {facts['torch']}"
        if about not in machines:
            machines.append(about)
        verdicts = {True: "yes", False: "**no**", None: ""}
        rows += [
            f"| {line['what']} | {line['found']} | {line['target']} | {verdicts[line['holds']]} |"
            for line in content["lines"]
        ]
    heading = "| | median (quartiles) | target | holds |\n|---|---|---|---|\n"
    return heading + "\n".join(rows) + f"\n\nMachine: {'; '.join(machines)}.\n"


def main() -> None:
    names = sys.argv[1:] or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"error: no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    for name in names:
        print(f"{name}: {(BENCHMARKS[name].__doc__ or '').splitlines()[0]}", flush=True)
        for line in BENCHMARKS[name]():
            verdict = {True: "holds", False: "MISSED", None: ""}[line.holds]
            print(f"  {line.what:58} {line.found:22} {line.target:14} {verdict}", flush=True)
    (RESULTS / "table.md").write_text(table())


if __name__ == "__main__":
    main()
