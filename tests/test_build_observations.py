"""Settings of observations arrive at the objects; calibration; what is counted and shown of lives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pgtrain import build, loading, training
from pgtrain.build_observations import parameter_counts
from pgtrain.calibration import calibrate_normalizer
from pgtrain.collector import Collector
from pgtrain.config.errors import ConfigError
from pgtrain.envs.spaces import ObservationEncoder
from pgtrain.episodes import EpisodeTally
from pgtrain.evaluation import evaluate
from pgtrain.learning import per_sample
from pgtrain.learning.natural_gradient import NaturalUpdate
from pgtrain.policies.actors import make_actor
from pgtrain.policies.encoders import EncodedMLP
from pgtrain.policies.normalizer import RewardSign
from pgtrain.types import Step, UserError
from tests.spaces_for_tests import OBSERVATIONS
from tests.support import ScriptedEnv, configure, critic_only, env_id, make_policy, make_runner

ANY = "tests.spaces_for_tests:Test/AnySpace-v0"
PICTURE, VALUES = "Box (8, 8, 3) uint8 (picture, channels last)", "Discrete(1000)"
A2C = critic_only(horizon=8)


def policy_of(observation: str, env: dict[str, Any] | None = None, **settings: Any) -> Any:
    assert observation in OBSERVATIONS
    cfg = configure({"id": ANY, "kwargs": {"observation": observation}, **(env or {})}, **(A2C | settings))
    with build.make_env(cfg, 1) as vec:
        return build.make_policy(cfg, vec)


def test_the_encoder_has_the_settings_of_the_config() -> None:
    shared = policy_of(PICTURE).network
    assert isinstance(shared, EncodedMLP) and shared.critic_encoder is None
    assert policy_of(PICTURE, policy={"encoder": {"share": False}}).network.critic_encoder is not None
    flat = policy_of(PICTURE, policy={"encoder": {"cnn": "none"}, "hidden": [5]}).network
    assert not [m for m in flat.modules() if isinstance(m, nn.Conv2d)] and flat.actor[0].in_features == 192
    large = "Box (2, 40, 40, 3) uint8 (stack of pictures)"
    first = []
    for cnn in ("nature", "small"):
        network = policy_of(large, policy={"encoder": {"cnn": cnn}}).network
        first.append(next(m for m in network.modules() if isinstance(m, nn.Conv2d)))
    assert [m.kernel_size for m in first] == [(8, 8), (3, 3)]
    assert not [
        m for m in policy_of(VALUES, {"one_hot_max": 1000}).network.modules() if isinstance(m, nn.Embedding)
    ]
    made = policy_of(PICTURE, policy={"ortho_init": False}).network.encoder.parts[0].layers[0]
    assert bool(made.bias.any())  # PyTorch's own initialisation


def test_layer_norm_and_gsde_on_pictures() -> None:
    network = policy_of("Box (3,) float32", policy={"layer_norm": True}).network
    assert [type(m).__name__ for m in network.actor[:3]] == ["Linear", "LayerNorm", "Tanh"]
    env = {"kwargs": {"observation": PICTURE, "action": "Box (2,) float32"}}
    settings = {"hidden": [], "distribution": {"name": "gsde"}}
    assert policy_of(PICTURE, env, policy=settings).log_std.shape == (128, 2)  # the encoder's features


def test_pictures_stay_bytes_until_the_network_reads_them(tmp_path: Path) -> None:
    cfg = configure({"id": ANY, "kwargs": {"observation": PICTURE}}, num_envs=2, total_steps=32, **A2C)
    with build.make_env(cfg, 2) as env:
        runner, _ = make_runner(cfg, tmp_path, env)
        rollout, _ = runner.collector.collect_steps(14)
        assert rollout.obs.dtype == rollout.inputs.dtype == rollout.last_inputs.dtype == torch.uint8
        assert rollout.final_inputs.dtype == torch.uint8 and len(rollout.final_inputs) == 2
        assert torch.equal(rollout.obs, rollout.inputs)
        value = runner.policy.value(rollout.inputs[3])
        torch.testing.assert_close(rollout.value[3], value, atol=1e-5, rtol=1e-5)


def test_natural_updates_have_an_encoder_for_each(tmp_path: Path) -> None:
    env = {"id": ANY, "kwargs": {"observation": PICTURE}}
    cfg = configure(env, num_envs=2, total_steps=32, update={"name": "trust_region"}, **A2C)
    assert cfg.policy.encoder.share is False
    with build.make_env(cfg, 2) as env:
        runner, _ = make_runner(cfg, tmp_path, env)
        assert isinstance(runner.update, NaturalUpdate)
        runner.run()
    for share in ("policy.encoder.share", "policy.share"):
        changed = (
            {"encoder": {"share": True}} if "encoder" in share else {"share": 1, "encoder": {"share": False}}
        )
        with pytest.raises(ConfigError, match=share):
            configure(policy=changed, update={"name": "trust_region"}, **A2C)


def test_parameters_are_counted_by_what_they_serve() -> None:
    plain = parameter_counts(policy_of("Box (3,) float32", policy={"hidden": [5, 7], "share": 1}))
    assert plain == {"actor": 5 * 7 + 7 + 7 * 2 + 2, "critic": 5 * 7 + 7 + 8, "shared layers": 3 * 5 + 5}
    policy = policy_of(PICTURE, policy={"hidden": [5]})
    conv = 16 * 27 + 16 + 32 * 16 * 9 + 32 + 128 * 512 + 128
    heads = {"actor": 128 * 5 + 5 + 12, "critic": 128 * 5 + 5 + 6}
    assert parameter_counts(policy) == {**heads, "shared layers": 0, "shared encoder": conv}
    apart = parameter_counts(policy_of(PICTURE, policy={"hidden": [5], "encoder": {"share": False}}))
    assert apart["actor"] == conv + 657 and apart["critic"] == conv + 651
    assert sum(apart.values()) == sum(p.numel() for p in policy.parameters()) + conv


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("policy.encoder.cnn=small", "no pictures"),
        ("policy.encoder.share=true", "nothing to encode"),
    ],
)
def test_encoders_of_nothing_are_refused(tmp_path: Path, override: str, told: str) -> None:
    with pytest.raises(UserError, match=f"{override}.*CartPole-v1.*{told}"):
        training.train(configure(**A2C), tmp_path, [override])


def test_a_picture_too_small_for_the_nature_network(tmp_path: Path) -> None:
    cfg = configure(
        {"id": ANY, "kwargs": {"observation": PICTURE}}, policy={"encoder": {"cnn": "nature"}}, **A2C
    )
    with pytest.raises(UserError, match=r"at least 36 x 36, .* 8 x 8"):
        training.train(cfg, tmp_path, [])


@pytest.mark.parametrize("observation", [PICTURE, VALUES, "Box (3,) float32"])
def test_gradients_of_single_samples_reach_through_encoders(observation: str) -> None:
    policy = policy_of(observation, {"kwargs": {"observation": observation}}, policy={"layer_norm": True})
    encode = ObservationEncoder(OBSERVATIONS[observation][0])
    space = OBSERVATIONS[observation][0]
    space.seed(0)
    obs = torch.from_numpy(encode(np.stack([space.sample() for _ in range(3)])))
    action = torch.tensor([0, 1, 0])
    expected = []
    for i in range(3):
        log_prob = policy.evaluate_actor(policy.prepare(obs[i : i + 1]), action[i : i + 1]).log_prob.sum()
        grads = torch.autograd.grad(log_prob, list(policy.parameters()), allow_unused=True)
        expected.append(sum(float(g.square().sum()) for g in grads if g is not None))
    norms = per_sample.squared_norms(policy, obs, action)
    torch.testing.assert_close(norms, torch.tensor(expected), rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------------ calibration


def test_calibration_fixes_the_statistics_of_what_was_seen() -> None:
    env = ScriptedEnv([[4], [3]], autoreset="next_step")
    policy = make_policy(normalizer=True)
    made = calibrate_normalizer(policy, env, 20, seed=0)
    obs = np.array([t.obs for log in env.log for t in log], np.float64)
    assert policy.normalizer is not None and 20 <= made == len(obs) < 24  # reset rows are no steps
    np.testing.assert_allclose(policy.normalizer.mean, obs.mean(0))
    np.testing.assert_allclose(policy.normalizer.var, obs.var(0))
    before = policy.normalizer.mean.clone()
    policy.observe(torch.full((5, 3), 100.0))
    assert torch.equal(policy.normalizer.mean, before) and policy.normalizer.count == made


def test_a_calibrated_run_tells_of_its_steps_and_does_not_count_them(tmp_path: Path) -> None:
    policy = {"normalize_obs": "calibrated", "calibration_steps": 60}
    cfg = configure(policy=policy, num_envs=2, total_steps=64, **A2C)
    result = training.train(cfg, tmp_path, [])
    assert result.summary["steps"] == 64 and result.policy.normalizer.count == 60
    log = (tmp_path / "run.log").read_text()
    assert "60 steps of the untrained policy" in log and "not counted in total_steps" in log
    loaded = loading.load(tmp_path).policy
    assert loaded.normalizer is not None and torch.equal(
        loaded.normalizer.mean, result.policy.normalizer.mean
    )
    assert configure(policy={"normalize_obs": "calibrated"}, **A2C).policy.calibration_steps == 5000
    with pytest.raises(ConfigError, match=r"policy\.calibration_steps=9 .*normalize_obs=running"):
        configure(policy={"calibration_steps": 9}, **A2C)
    with build.make_env(cfg, 2) as env:
        evaluate(loaded, env, 2, seed=0)
    assert torch.equal(loaded.normalizer.count, result.policy.normalizer.count)


# -------------------------------------------------------------------------------------------- rewards and lives


def test_the_learner_sees_signs_and_returns_are_raw(tmp_path: Path) -> None:
    env = {"id": env_id("FixedLen"), "kwargs": {"reward": 100, "length": 5}}
    cfg = configure(env, reward={"scaling": "sign"}, num_envs=2, total_steps=32, eval={"episodes": 2}, **A2C)
    with build.make_env(cfg, 2) as vec:
        runner, _ = make_runner(cfg, tmp_path / "a", vec)
        assert isinstance(runner.reward_scaler, RewardSign)
        rollout = runner._scale_rewards(runner.collector.collect_steps(6)[0])
        assert rollout.reward.unique().tolist() == [1.0] and rollout.raw_reward.unique().tolist() == [100.0]
    (tmp_path / "b").mkdir()
    summary = training.train(cfg, tmp_path / "b", []).summary
    assert summary["return_mean"] == summary["eval_return_mean"] == 500
    with pytest.raises(ConfigError, match=r"reward\.clip=5 .*reward\.scaling=sign"):
        configure(reward={"scaling": "sign", "clip": 5}, **A2C)


class LostLives(ScriptedEnv):
    """Of each env's episodes, the first two in three are lives of one game."""

    def step(self, action: Any) -> Step:
        episode = self.episode.copy()
        step = super().step(action)
        goes_on = (step.terminated | step.truncated) & (np.asarray(episode) % 3 < 2)
        return step._replace(goes_on=goes_on) if goes_on.any() else step


@pytest.mark.parametrize("windows", [[18], [5, 1, 7, 5]])
def test_returns_are_those_of_whole_games(windows: list[int]) -> None:
    env = LostLives([[2, 3, 1], [1, 1, 2]])
    policy = make_policy()
    collector = Collector(env, policy, make_actor(policy, 2, 0), 0)
    found, starts = [], []
    for steps in windows:
        rollout, episodes = collector.collect_steps(steps)
        found += list(zip(episodes.returns.tolist(), episodes.lengths.tolist(), strict=True))
        starts.append(rollout.episode_start)
    expected = []
    for log in env.log:
        for game in range(1 + log[-1].episode // 3):
            steps_of = [t for t in log if t.episode // 3 == game]
            if steps_of[-1].episode % 3 == 2 and (steps_of[-1].terminated or steps_of[-1].truncated):
                expected.append((sum(t.reward for t in steps_of), len(steps_of)))
    assert sorted(found) == sorted(expected) and len(expected) >= 5
    lives = torch.cat(starts).sum(0).tolist()  # the learner's episodes are single lives
    assert lives == [len({t.episode for t in log}) for log in env.log]
    evaluated = evaluate(policy, LostLives([[2, 3, 1], [1, 1, 2]]), 2, seed=0)
    assert sorted(evaluated.lengths.tolist()) == [4, 6]


def test_a_tally_goes_on_from_its_copy() -> None:
    one = EpisodeTally(1)
    done = np.array([[False], [True], [False]])
    one.count(np.ones((3, 1)), np.ones((3, 1), bool), done)
    two = one.copy()
    again = (np.ones((1, 1)), np.ones((1, 1), bool), np.array([[True]]))
    assert one.count(*again)[0].returns.tolist() == two.count(*again)[0].returns.tolist() == [2.0]


@pytest.mark.parametrize("name", [PICTURE, "Dict of picture, vector, Dict of Discrete and Text"])
def test_whole_episodes_in_worker_processes(tmp_path: Path, name: str) -> None:
    env = {"id": ANY, "kwargs": {"observation": name}, "backend": "process", "workers": 1}
    cfg = configure(env, collect={"unit": "episodes"}, num_envs=2, total_steps=48)
    result = training.train(cfg, tmp_path, [])
    assert result.summary["episodes"] == 4 and result.summary["steps"] == 48
    assert result.policy.network.critic is None and isinstance(result.policy.network, EncodedMLP)
    assert ("text is left out" in (tmp_path / "run.log").read_text()) == ("Text" in name)
