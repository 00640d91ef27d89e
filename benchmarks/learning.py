"""What the shipped recipes reach: every recipe × seed, the FINAL parameters played greedily for 100 episodes.

    python benchmarks/learning.py [--seeds 5] [--only reinforce-loo,a2c] [--write-readme]

Two runs at a time, each in a process of its own with one torch thread. Finished runs are kept in
outputs/learning/results.jsonl, so that an interrupted call goes on where it stopped; a run counts as done only
for the very same code, configs and command.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "outputs" / "learning"
RESULTS = FOLDER / "results.jsonl"
SOLVED = 475.0  # reward_threshold of CartPole-v1
STEPS = 300_000
RECIPES = {
    "reinforce-mean": ["algo=reinforce", "advantage/baseline=mean"],
    "reinforce-loo": ["algo=reinforce", "advantage/baseline=loo"],
    "reinforce-value": ["algo=reinforce", "advantage/baseline=value"],
    "actor_critic": ["algo=actor_critic"],
    "a2c": ["algo=a2c"],
}


def command(recipe: str, seed: int | str) -> list[str]:
    """The overrides of one run: the shipped defaults, said in full where the table depends on them."""
    return [*RECIPES[recipe], "env=CartPole-v1", f"total_steps={STEPS}", f"seed={seed}"]


def fingerprint() -> str:
    """A hash of the package and its configs: results of other code do not count."""
    digest = hashlib.sha256()
    for path in sorted([*(ROOT / "pgtrain").rglob("*.py"), *(ROOT / "conf").rglob("*.yaml")]):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def train(recipe: str, seed: int) -> dict[str, Any]:
    """One run in this process."""
    import pgtrain

    overrides = [*command(recipe, seed), "eval.episodes=100", "eval.greedy=true", "monitor.terminal=none"]
    return pgtrain.train(*overrides, run_dir=FOLDER / f"{recipe}_s{seed}").summary


def run(recipe: str, seed: int, code: str) -> dict[str, Any]:
    """One run in a child process; the row that results.jsonl keeps."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    FOLDER.mkdir(parents=True, exist_ok=True)
    child = subprocess.run(
        [sys.executable, __file__, "--run", recipe, str(seed)],
        cwd=FOLDER, env={**os.environ, **one_thread}, capture_output=True, text=True,
    )  # fmt: skip
    row = {"recipe": recipe, "seed": seed, "code": code, "command": command(recipe, seed)}
    lines = [line for line in child.stdout.splitlines() if line.startswith("RESULT ")]
    if child.returncode or not lines:
        return row | {"error": (child.stderr.strip().splitlines() or ["no output"])[-1]}
    return row | {"summary": json.loads(lines[-1].removeprefix("RESULT "))}


def finished(code: str) -> dict[tuple[str, int], dict[str, Any]]:
    """The runs that are already done, by recipe and seed."""
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    return {
        (row["recipe"], row["seed"]): row
        for row in rows
        if row["code"] == code
        and row["recipe"] in RECIPES
        and row["command"] == command(row["recipe"], row["seed"])
    }


def run_all(recipes: list[str], seeds: int) -> dict[tuple[str, int], dict[str, Any]]:
    """Runs what is missing, seed by seed over all recipes, and returns all rows."""
    code = fingerprint()
    done = finished(code)
    wanted = [(recipe, seed) for seed in range(seeds) for recipe in recipes]
    with ThreadPoolExecutor(max_workers=2) as pool:
        missing = [key for key in wanted if key not in done]
        for row in pool.map(lambda key: run(*key, code), missing):
            if "error" in row:
                print(f"{row['recipe']} seed {row['seed']} failed: {row['error']}", flush=True)
                continue
            done[row["recipe"], row["seed"]] = row
            with RESULTS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            summary = row["summary"]
            print(
                f"{row['recipe']} seed {row['seed']}: greedy return {summary['eval_return_mean']:.1f} after "
                f"{summary['steps']:,} steps, {summary['cpu_seconds']:.0f} CPU s",
                flush=True,
            )
    return {key: done[key] for key in wanted if key in done}


def table(rows: dict[tuple[str, int], dict[str, Any]], recipes: list[str], seeds: int) -> str:
    """Markdown: one line a recipe, with every seed's own number."""
    lines = [
        "| command | greedy return at the end, each seed | mean | solved | env steps | CPU s a run |",
        "|---|---|---|---|---|---|",
    ]
    for recipe in recipes:
        found = [rows[recipe, seed]["summary"] for seed in range(seeds) if (recipe, seed) in rows]
        if not found:
            continue
        returns = [summary["eval_return_mean"] for summary in found]
        shown = ", ".join(
            f"{rows[recipe, seed]['summary']['eval_return_mean']:.1f}" if (recipe, seed) in rows else "failed"
            for seed in range(seeds)
        )
        solved = sum(value >= SOLVED for value in returns)
        lines.append(
            f"| `pgtrain {' '.join(command(recipe, '…'))}` | {shown} | {statistics.mean(returns):.1f} "
            f"| {solved} of {seeds} | {max(summary['steps'] for summary in found):,} "
            f"| {statistics.median(summary['cpu_seconds'] for summary in found):.0f} |"
        )
    lines += [
        "",
        f"`make results`: seeds 0 to {seeds - 1}; the parameters at the end of training (not the best on the "
        f"way), 100 greedy episodes each. Solved: a mean of at least {SOLVED:.0f} (the env's own threshold).",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to SEEDS-1")
    parser.add_argument("--only", default=",".join(RECIPES), help="recipes, separated by commas")
    parser.add_argument("--write-readme", action="store_true", help="put the table into README.md")
    parser.add_argument("--run", nargs=2, metavar=("RECIPE", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print("RESULT " + json.dumps(train(args.run[0], int(args.run[1]))), flush=True)
        return
    recipes = args.only.split(",")
    unknown = set(recipes) - set(RECIPES)
    if unknown:
        parser.error(f"--only: unknown {', '.join(sorted(unknown))} (recipes: {', '.join(RECIPES)})")
    rows = run_all(recipes, args.seeds)
    text = table(rows, recipes, args.seeds)
    print(text)
    if args.write_readme:
        if len(rows) < len(RECIPES) * args.seeds:
            sys.exit("not every run succeeded (or --only was given): README.md is left as it is")
        from readme import write_block

        write_block("results", text)


if __name__ == "__main__":
    main()
