"""What presets and recipes reach: row × seed, the FINAL parameters played greedily for 100 episodes.

    python benchmarks/learning.py [--only 'ppo/*,reinforce+value'] [--seeds 3] [--jobs 2] [--fresh]
    python benchmarks/learning.py --report     the table and curves of what is there, without a run
    python benchmarks/learning.py --quick      is today's code as good as the table? exit 1 if significantly worse

Each run has a process and one thread of its own. Finished runs are kept in benchmarks/results/learning.jsonl, so an
interrupted call goes on where it stopped; a run counts for the settings that it was made with and is made anew when
they have changed (or with --fresh). Table and curves go to docs/results.md and docs/learning_curves.png.
"""

from __future__ import annotations

import argparse
import fcntl
import fnmatch
import hashlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import learning_report  # noqa: E402  # pyright: ignore[reportMissingImports]

FOLDER = ROOT / "outputs" / "learning"
RESULTS = ROOT / "benchmarks" / "results" / "learning.jsonl"
EVALUATION = ("eval.episodes=100", "eval.greedy=true")
QUICK_SEEDS = 5
LEVEL = 0.01  # of the test in --quick, for each row
KEPT = (
    "steps", "episodes", "return_mean", "return_std", "eval_return_mean", "eval_return_std", "wall_seconds",
    "cpu_seconds", "skipped_updates",
)  # fmt: skip
NEUTRAL = ("seed", "device.name", "device.threads", "checkpoint.every_steps", "checkpoint.keep")
CURVE_POINTS = 60


class Row(NamedTuple):
    """One line of the table: what is run, how often, and what it is held against."""

    name: str
    overrides: tuple[str, ...]
    seeds: int = 5
    at_least: float | None = None  # the mean over seeds; every single seed with `each`
    each: bool = False
    published: str = ""


def preset(name: str, seeds: int, at_least: float, published: str, each: bool = False) -> Row:
    return Row(name, (f"+experiment={name}",), seeds, at_least, each, published)


def on_cartpole(name: str, *overrides: str, at_least: float | None = None, published: str = "") -> Row:
    return Row(
        name, (*overrides, "env=CartPole-v1", "total_steps=300_000"), at_least=at_least, published=published
    )


ROWS = (
    preset("ppo/CartPole-v1", 10, 495, "500", each=True),
    preset("a2c/CartPole-v1", 5, 495, "500"),
    preset("trpo/CartPole-v1", 5, 495, "500"),
    preset("trpo/Acrobot-v1", 5, -85, "−83.1 ± 18.6"),
    preset("ppo/Pendulum-v1", 5, -180, "−172.2 ± 104"),
    preset("trpo/MountainCarContinuous-v0", 5, 90, "92.5 ± 0.4"),
    preset("ppo/InvertedPendulum-v5", 5, 950, "1000 ± 0 (SB3, one seed)"),
    preset("ppo/LunarLander-v3", 3, 200, "242.1 ± 31.8 (v2)"),
    preset("trpo/Hopper-v5", 3, 2500, "3372 ± 215 (v3)"),
    preset("ppo/HalfCheetah-v5", 3, 2000, "1443 (v4) … 5819 (v3)"),
    preset("ppo/Walker2d-v5", 3, 2200, "2288 (v4) … 3479 (v3)"),
    on_cartpole(
        "reinforce+value", "algo=reinforce", "advantage/baseline=value", at_least=495, published="500"
    ),
    on_cartpole("reinforce+loo", "algo=reinforce", "advantage/baseline=loo"),
    on_cartpole("reinforce+mean", "algo=reinforce", "advantage/baseline=mean"),
    on_cartpole("actor_critic", "algo=actor_critic"),
    on_cartpole("a2c", "algo=a2c"),
)
QUICK = ("ppo/CartPole-v1", "trpo/Acrobot-v1", "ppo/Pendulum-v1")
Results = dict[tuple[str, int], dict[str, Any]]  # by row and seed


# ------------------------------------------------------------------------------------------------- one run


def train(row: Row, seed: int) -> dict[str, Any]:
    """One run in this process: its summary and learning curve."""
    import pgtrain

    folder = FOLDER / f"{row.name.replace('/', '_')}_s{seed}"
    overrides = [*row.overrides, f"seed={seed}", *EVALUATION, "monitor.terminal=none"]
    summary = pgtrain.train(*overrides, run_dir=folder).summary
    return {"summary": {key: summary[key] for key in KEPT}, "curve": curve(Path(summary["run_dir"]))}


def curve(run_dir: Path) -> list[tuple[int, float]]:
    """(env steps, mean return of the episodes that ended about then), at most CURVE_POINTS pairs."""
    points = []
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry.get("episode/return") is not None:
            points.append((entry["progress/steps"], entry["episode/return"], entry["episode/count"]))
    size = max(1, math.ceil(len(points) / CURVE_POINTS))
    parts = [points[i : i + size] for i in range(0, len(points), size)]
    return [
        (int(part[-1][0]), round(sum(r * n for _, r, n in part) / sum(n for *_, n in part), 3))
        for part in parts
    ]


def run(row: Row, seed: int) -> dict[str, Any]:
    """One run in a child process; `error` in what comes back if it failed."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    FOLDER.mkdir(parents=True, exist_ok=True)
    child = subprocess.run(
        [sys.executable, __file__, "--run", row.name, str(seed)],
        cwd=FOLDER, env={**os.environ, **one_thread}, capture_output=True, text=True,
    )  # fmt: skip
    lines = [line for line in child.stdout.splitlines() if line.startswith("RESULT ")]
    if child.returncode or not lines:
        return {"error": (child.stderr.strip().splitlines() or ["no output"])[-1]}
    return json.loads(lines[-1].removeprefix("RESULT "))


# ------------------------------------------------------------------------------------------- what is known


def settings(row: Row) -> dict[str, Any]:
    """All settings of a row but the seed, by dotted key.

    Raises: UserError where they cannot be composed, e.g. since an extra is missing.
    """
    from pgtrain.config.compose import compose
    from pgtrain.config.convert import to_dict

    found: dict[str, Any] = {}

    def collect(prefix: str, node: dict[str, Any]) -> None:
        for key, value in node.items():
            if isinstance(value, dict) and value:
                collect(f"{prefix}{key}.", value)
            elif prefix + key not in NEUTRAL and not prefix.startswith("monitor."):
                found[prefix + key] = value

    collect("", to_dict(compose([*row.overrides, *EVALUATION]).config))
    return found


def counts(result: dict[str, Any] | None, today: dict[str, Any]) -> bool:
    """Whether a kept result was made with today's settings of its row. One that is new since then is not asked."""
    return result is not None and all(today.get(key) == value for key, value in result["settings"].items())


def code() -> str:
    """A hash of the package: which code made a result."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "pgtrain").rglob("*.py")):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def read() -> Results:
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    return {(row["row"], row["seed"]): row for row in rows}


def store(result: dict[str, Any]) -> None:
    """Adds one result, in the place of an older one. Several processes may do so."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = read() | {(result["row"], result["seed"]): result}
        names = [row.name for row in ROWS]
        order = sorted(
            known, key=lambda key: (names.index(key[0]) if key[0] in names else len(names), key[1])
        )
        scratch = RESULTS.with_suffix(".new")
        scratch.write_text("".join(json.dumps(known[key]) + "\n" for key in order))
        scratch.replace(RESULTS)


# ---------------------------------------------------------------------------------------------- many runs


def run_all(rows: Sequence[Row], seeds: dict[str, int], jobs: int, known: Results, keep: bool) -> Results:
    """Runs what is not in `known`, seed by seed over all rows; `keep`: into the results file, too."""
    results = dict(known)
    today = {row.name: settings(row) for row in rows}
    wanted = [(row, seed) for seed in range(max(seeds.values())) for row in rows if seed < seeds[row.name]]
    missing = [
        (row, seed) for row, seed in wanted if not counts(results.get((row.name, seed)), today[row.name])
    ]

    def one(job: tuple[Row, int]) -> None:
        row, seed = job
        made_by, made = code(), time.strftime("%Y-%m-%d")
        result = run(row, seed)
        if "error" in result:
            print(f"{row.name} seed {seed} failed: {result['error']}", flush=True)
            results.pop((row.name, seed), None)
            return
        result = {
            "row": row.name, "seed": seed, "overrides": row.overrides, "code": made_by, "date": made, **result,
            "settings": today[row.name],
        }  # fmt: skip
        results[row.name, seed] = result
        if keep:
            store(result)
        summary = result["summary"]
        print(
            f"{row.name} seed {seed}: {summary['eval_return_mean']:.1f} after {summary['steps']:,} steps, "
            f"{summary['wall_seconds']:.0f} s, {summary['cpu_seconds']:.0f} CPU s",
            flush=True,
        )

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        list(pool.map(one, missing))
    return results


def quick(jobs: int) -> int:
    """Trains QUICK with today's code and tests each row against the kept results. The exit code."""
    rows = [row for row in ROWS if row.name in QUICK]
    kept = read()
    before = {row.name: finals(kept, row) for row in rows}
    if not all(len(values) >= QUICK_SEEDS for values in before.values()):
        lacking = ",".join(row.name for row in rows if len(before[row.name]) < QUICK_SEEDS)
        print(f"no results to compare with: python benchmarks/learning.py --only {lacking}", file=sys.stderr)
        return 2
    today = run_all(rows, dict.fromkeys((row.name for row in rows), QUICK_SEEDS), jobs, {}, keep=False)
    worse = failed = False
    for row in rows:
        values = finals(today, row)
        failed |= len(values) < QUICK_SEEDS
        if not values:
            continue
        p = learning_report.permutation_test(before[row.name], values)
        verdict = "WORSE" if p < LEVEL else "ok"
        worse |= p < LEVEL
        mean = learning_report.mean
        print(
            f"{row.name}: {mean(before[row.name]):.1f} before, {mean(values):.1f} now, p = {p:.3f}: {verdict}"
        )
    return 1 if worse or failed else 0


def finals(results: Results, row: Row) -> list[float]:
    """The final evaluations of a row, seed by seed."""
    return [
        result["summary"]["eval_return_mean"]
        for (name, _), result in sorted(results.items())
        if name == row.name
    ]


def report(rows: Iterable[Row]) -> None:
    """Writes table and curves of what is kept and was made with today's settings."""
    known = read()
    shown = []
    for row in rows:
        results = [known[key] for key in sorted(known) if key[0] == row.name]
        today = settings(row) if results else {}
        shown.append((row, [result for result in results if counts(result, today)]))
    shown = [(row, results) for row, results in shown if results]
    learning_report.write_table(shown)
    learning_report.draw_curves(shown)


def select(patterns: str, fail: Any) -> list[Row]:
    chosen = []
    for pattern in patterns.split(","):
        found = [row for row in ROWS if fnmatch.fnmatch(row.name, pattern)]
        if not found:
            fail(f"--only: no row is named {pattern} (rows: {', '.join(row.name for row in ROWS)})")
        chosen += [row for row in found if row not in chosen]
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default="*", help="rows by name, separated by commas; * and ? stand for any"
    )
    parser.add_argument(
        "--seeds", type=int, help="seeds 0 to SEEDS-1 of each row (default: the row's own number)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default: 2)")
    parser.add_argument("--fresh", action="store_true", help="run again what is there already")
    parser.add_argument("--report", action="store_true", help="only write table and curves")
    parser.add_argument("--quick", action="store_true", help="test today's code against the kept results")
    parser.add_argument("--run", nargs=2, metavar=("ROW", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    by_name = {row.name: row for row in ROWS}
    if args.run:
        print("RESULT " + json.dumps(train(by_name[args.run[0]], int(args.run[1]))), flush=True)
        return
    if args.quick:
        sys.exit(quick(args.jobs))
    if not args.report:
        rows = select(args.only, parser.error)
        seeds = {row.name: args.seeds or row.seeds for row in rows}
        results = run_all(rows, seeds, args.jobs, {} if args.fresh else read(), keep=True)
        missing = [(name, s) for name, n in seeds.items() for s in range(n) if (name, s) not in results]
    report(ROWS)
    if not args.report and missing:
        sys.exit(f"{len(missing)} run(s) failed")


if __name__ == "__main__":
    main()
