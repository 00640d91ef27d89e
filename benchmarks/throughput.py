"""Training speed: env steps per CPU second, where the time goes, and beside it what the machine allows and a peer.

    python benchmarks/throughput.py [--scenarios ppo-cartpole,…] [--repeats 3] [--scale 1.0]
                                    [--peer-python PATH] [--write-readme]

Each scenario is measured in rounds: the limit, pgtrain and, if a Python that has it is named or this one has it, the
peer (Stable-Baselines3 with sb3-contrib; for REINFORCE Tianshou), one after the other, so that a drift of the machine
meets all alike. Ratios are medians over the rounds of paired measurements. One thread each; CPU seconds are those of
the training call: imports and set-up are out, what the tool itself logs is in. Settings are the same on both sides
(`scenarios.py`).

The limit is what would be left without any framework: the env alone with random actions, acting by NumPy products,
and hand-written NumPy minibatches of the same shape and number (`limit.py`). It leaves out storing, advantages,
statistics and logs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from scenarios import PEERS, SCENARIOS, Scenario  # noqa: E402

HERE = Path(__file__).resolve().parent
PHASES = ("collect", "estimate", "update", "log")
COMMON = ["eval.episodes=0", "monitor.terminal=none", "device=cpu"]


def measure_pgtrain(scenario: Scenario, steps: int, seed: int) -> dict[str, Any]:
    """A whole training run through the public API: µs per env step, and of which phase."""
    import pgtrain

    result = pgtrain.train(*scenario.overrides, *COMMON, f"total_steps={steps}", f"seed={seed}")
    rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    # an entry of the log stands for the iterations since the one before, but its own time was spent once
    each = result.summary["iterations"] / len(rows)
    spent = {phase: sum(row.get(f"time/{phase}") or 0.0 for row in rows) for phase in PHASES}
    spent |= {phase: each * spent[phase] for phase in PHASES if phase != "log"}
    total = sum(spent.values())
    micro = 1e6 * result.summary["cpu_seconds"] / result.summary["steps"]
    return {"us": micro} | {phase: seconds / total for phase, seconds in spent.items()}


def measure_peer(python: str, scenario: Scenario, steps: int, seed: int) -> dict[str, Any]:
    """The peer's µs per env step, in a process of its own."""
    command = [python, str(HERE / PEERS[scenario.tool][0]), scenario.name, str(steps), str(seed)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
    if run.returncode or not lines:
        sys.exit(f"the peer failed on {scenario.name}:\n{run.stderr[-2000:]}")
    return json.loads(lines[-1].removeprefix("RESULT "))


def measure(scenario: Scenario, repeats: int, scale: float, peers: dict[str, str]) -> dict[str, list[Any]]:
    """Rounds of limit, pgtrain and peer; a short run of pgtrain before them is not counted (lazy imports, caches)."""
    from limit import measure_limit

    steps = int(scenario.steps * scale)
    measure_pgtrain(scenario, scenario.warm_up, seed=0)
    found: dict[str, list[Any]] = {"limit": [], "pgtrain": [], "peer": []}
    for seed in range(1, repeats + 1):
        found["limit"].append(measure_limit(scenario, seed))
        found["pgtrain"].append(measure_pgtrain(scenario, steps, seed))
        if scenario.tool in peers:
            steps_there = int(scenario.peer_steps * scale)
            found["peer"].append(measure_peer(peers[scenario.tool], scenario, steps_there, seed))
        shown = {name: round(1e6 / runs[-1]["us"]) for name, runs in found.items() if runs}
        print(f"{scenario.name}, round {seed}: {shown} env steps per CPU second", flush=True)
    return found


def row(scenario: Scenario, found: dict[str, list[Any]]) -> str:
    def ratio(other: str) -> str:
        pairs = zip(found[other], found["pgtrain"], strict=True)
        ratios = sorted(theirs["us"] / ours["us"] for theirs, ours in pairs)
        return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} … {ratios[-1]:.2f})"

    ours, limit = found["pgtrain"], found["limit"]
    speed = 1e6 / statistics.median(run["us"] for run in ours)
    split = " / ".join(f"{100 * statistics.median(run[phase] for run in ours):.0f} %" for phase in PHASES)
    parts = [statistics.median(run[part] for run in limit) for part in ("env", "act", "update")]
    peer = f"{ratio('peer')} {PEERS[scenario.tool][2]}" if found["peer"] else "–"
    return (
        f"| {scenario.title} | {peer} | {ratio('limit')} "
        f"| {speed:,.0f} | {split} | {' + '.join(f'{part:.1f}' for part in parts)} |"
    )


def table(results: dict[str, dict[str, list[Any]]], repeats: int) -> str:
    """Markdown."""
    import numpy as np
    import torch

    from pgtrain import blas

    versions = dict.fromkeys(f["peer"][0]["versions"] for f in results.values() if f["peer"])
    peer = "".join(f", {v}" for v in versions)
    lines = [
        "| scenario | speed ÷ peer's | speed ÷ limit | env steps per CPU second "
        "| collect / estimate / update / log | limit: env + act + update, µs per step |",
        "|---|---|---|---|---|---|",
        *(row(SCENARIOS[name], found) for name, found in results.items()),
        "",
        f"`make bench`, {time.strftime('%Y-%m-%d')}: medians (least … greatest) of {repeats} interleaved rounds at the "
        f"same settings, one thread. Python {platform.python_version()}, torch {torch.__version__}, numpy "
        f"{np.__version__} ({blas.kernels()}){peer}, {platform.system()} {platform.machine()}.",
    ]
    return "\n".join(lines)


def find_peers(python: str | None) -> dict[str, str]:
    """Tool → a Python that has it: the one named, or this one."""
    found, candidate = {}, python or sys.executable
    for tool, (_, modules, name) in PEERS.items():
        test = [candidate, "-c", f"import {', '.join(modules)}"]
        if subprocess.run(test, capture_output=True, check=False).returncode == 0:
            found[tool] = candidate
        else:
            print(f"no {name} in {candidate} (--peer-python names a Python that has it): measured without it")
    if python and not found:
        sys.exit(
            f"--peer-python={python} has no peer: install stable-baselines3 and sb3-contrib, or tianshou"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help="names, joined by commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="longer or shorter runs")
    parser.add_argument(
        "--peer-python", help="a Python with stable-baselines3 and sb3-contrib, or tianshou, or both"
    )
    parser.add_argument("--write-readme", action="store_true", help="put the table into README.md")
    args = parser.parse_args()
    peers = find_peers(args.peer_python)
    import torch

    torch.set_num_threads(1)
    back = Path.cwd()
    results = {}
    with tempfile.TemporaryDirectory() as folder:  # the runs' folders are of no use afterwards
        os.chdir(folder)
        try:
            for name in args.scenarios.split(","):
                results[name] = measure(SCENARIOS[name], args.repeats, args.scale, peers)
        finally:
            os.chdir(back)
    text = table(results, args.repeats)
    print(text)
    if args.write_readme:
        from readme import write_block

        write_block("bench", text)


if __name__ == "__main__":
    main()
