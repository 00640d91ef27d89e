"""The generated parts of the README, and the scripts that write them."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pgtrain.config.compose import compose
from pgtrain.monitor.dashboard import legend_markdown

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def load(name: str) -> ModuleType:
    """A script of benchmarks/ as a module."""
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_legend_is_that_of_the_dashboard() -> None:
    assert load("readme").read_block(README, "legend").strip() == legend_markdown().strip(), (
        "run: make legend"
    )


@pytest.mark.parametrize("name", ["legend", "bench"])
def test_a_block_can_be_replaced_again_and_again(name: str) -> None:
    readme = load("readme")
    once = readme.replace_block(README, name, "| new |\n")
    assert readme.read_block(once, name) == "| new |"
    assert readme.replace_block(once, name, readme.read_block(README, name)) == README


def test_a_missing_or_double_marker_is_refused() -> None:
    readme = load("readme")
    with pytest.raises(ValueError, match="exactly one block"):
        readme.replace_block("no marker", "bench", "")
    with pytest.raises(ValueError, match="exactly one block"):
        readme.replace_block("<!-- x:end --><!-- x:start -->", "x", "")


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target


@pytest.mark.parametrize(("script", "option"), [("throughput", "--write-readme"), ("learning", "--quick")])
def test_a_benchmark_explains_itself(script: str, option: str) -> None:
    path = ROOT / "benchmarks" / f"{script}.py"
    done = subprocess.run([sys.executable, path, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert option in done.stdout


def test_speed_is_shown_as_ratios_to_the_peer_and_the_limit_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    throughput = load("throughput")
    split = {"collect": 0.5, "estimate": 0.1, "update": 0.35, "log": 0.05}
    found = {
        "limit": [{"us": 10.0, "env": 5.0, "act": 2.0, "update": 3.0}] * 3,
        "pgtrain": [{"us": us, **split} for us in (20.0, 25.0, 40.0)],
        "peer": [{"us": 100.0, "versions": "peer 1.2"}] * 3,
    }
    lines = throughput.table({"a2c-cartpole": found}, 3).splitlines()
    assert lines[2] == (
        "| A2C CartPole, 8 × 5 | 4.00 (2.50 … 5.00) Stable-Baselines3 | 0.40 (0.25 … 0.50) | 40,000 "
        "| 50 % / 10 % / 35 % / 5 % | 5.0 + 2.0 + 3.0 |"
    )
    assert "peer 1.2" in lines[-1]
    alone = throughput.table({"a2c-cartpole": found | {"peer": []}}, 3)
    assert "| A2C CartPole, 8 × 5 | – | 0.40" in alone


def test_the_scenarios_are_settings_that_pgtrain_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    scenarios = load("scenarios").SCENARIOS
    assert {"ppo-cartpole", "ppo-cartpole-1env", "ppo-cheetah-mb64", "ppo-cheetah-mb512"} <= scenarios.keys()
    for scenario in scenarios.values():
        config = compose(scenario.overrides).config
        assert config.policy.hidden == [64, 64] and config.optim.lr.value == scenario.lr
        if config.algo == "ppo":
            assert (config.update.epochs, config.horizon) == (scenario.epochs, scenario.horizon)  # pyright: ignore
