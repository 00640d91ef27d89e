"""Atari preprocessing, lives and frame stacks; with a made-up game where the real one is not needed."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from pgtrain import build
from pgtrain.config.errors import ConfigError
from pgtrain.envs import vector
from pgtrain.envs.preprocessing import Atari, LifeLoss
from pgtrain.envs.vector import make_vector_env
from pgtrain.types import UserError
from tests.support import configure, critic_only, env_id

ale_py = pytest.importorskip("ale_py", reason="the extra pgtrain[atari] is not installed")
GAME = "ALE/Breakout-v5"
SMALL = Atari(noop_max=5, terminal_on_life_loss=True)


def test_settings_of_a_game_and_of_other_envs() -> None:
    cfg = configure("ALE/Pong-v5", **critic_only())
    assert (cfg.env.frame_stack, cfg.reward.scaling) == (4, "sign")
    assert build.observation_settings(cfg)["atari"] == Atari(4, 30, 84, True, False)
    own = {"id": GAME, "frame_stack": 2, "atari": {"frame_skip": 3, "grayscale": False, "noop_max": 0}}
    cfg = configure(own, reward={"scaling": "none"}, **critic_only())
    assert build.observation_settings(cfg)["atari"] == Atari(3, 0, 84, False, False)
    assert (cfg.env.frame_stack, cfg.reward.scaling) == (2, "none")
    bare = configure({"id": GAME, "atari": {"preprocess": False}}, **critic_only())
    assert (bare.env.frame_stack, bare.reward.scaling) == (1, "none")
    assert build.observation_settings(bare)["atari"] is None
    other = configure("CartPole-v1", **critic_only())
    assert (other.env.frame_stack, other.reward.scaling, other.env.atari.preprocess) == (1, "none", None)


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"id": "CartPole-v1", "atari": {"noop_max": 3}}, r"env\.atari\.noop_max=3 .*with env=CartPole-v1"),
        ({"id": "CartPole-v1", "atari": {"preprocess": True}}, r"env\.atari\.preprocess=true"),
        ({"id": GAME, "atari": {"preprocess": False, "screen_size": 42}}, r"env\.atari\.screen_size=42"),
    ],
)
def test_settings_without_effect_are_refused(env: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        configure(env, **critic_only())


@pytest.mark.parametrize("backend", ["native", "sync"])
def test_pictures_rewards_and_lives(backend: str) -> None:
    """A lost life is an end for the learner, and the game goes on: rewards are raw, and no frame is lost."""
    if backend == "sync":
        pytest.importorskip("cv2", reason="the extra pgtrain[atari] is not installed")
    with make_vector_env(GAME, 2, backend=backend, atari=SMALL, frame_stack=2) as env:
        (leaf,) = env.layout
        assert (leaf.kind, leaf.picture, env.obs_dtype) == ("picture", (2, 84, 84), np.uint8)
        obs = env.reset(2**32 - 5)
        assert obs.dtype == np.uint8 and len(np.unique(obs)) > 3
        rng, lost, over = np.random.default_rng(0), 0, 0
        for _ in range(400):
            step = env.step(rng.integers(0, 4, 2))
            goes_on = np.zeros(2, bool) if step.goes_on is None else step.goes_on
            assert not (goes_on & ~step.terminated).any()
            lost += int(goes_on.sum())
            over += int((step.terminated & ~goes_on).sum())
            if goes_on.any():
                assert step.final_obs is not None
                index = np.flatnonzero(step.terminated | step.truncated)
                for row, n in zip(step.final_obs, index, strict=True):
                    assert np.array_equal(row, step.obs[n]) == bool(goes_on[n])
        assert over >= 1 and lost >= 4  # a game of Breakout has five lives
        assert abs(lost - 4 * over) <= 4 * 2


def test_a_native_game_has_the_time_limit_in_steps() -> None:
    with make_vector_env("ALE/Pong-v5", 2, atari=Atari(), frame_stack=4, max_episode_steps=9) as env:
        assert env.backend == "native" and env.max_episode_steps == 9
        env.reset(0)
        flags = [env.step(np.zeros(2, np.int64)).truncated.tolist() for _ in range(18)]
        assert [i for i, f in enumerate(flags) if f[0]] == [8, 17]


def test_games_have_the_threads_that_were_asked_for_or_one_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    make_vec = gym.make_vec

    def listen(*args: Any, **kwargs: Any) -> Any:
        asked.append(kwargs["num_threads"])
        return make_vec(*args, **kwargs)

    monkeypatch.setattr(gym, "make_vec", listen)
    monkeypatch.setattr(vector, "cores", lambda ranks: 6 // ranks)
    for threads, ranks in ((2, 1), (None, 1), (None, 3)):
        make_vector_env(GAME, 3, threads=threads, ranks=ranks, atari=SMALL, frame_stack=2).close()
    assert asked == [2, 3, 2]


def test_arguments_that_the_preprocessing_decides_are_refused() -> None:
    for backend in ("native", "sync"):
        with pytest.raises(UserError, match=r"env\.kwargs\.frameskip=2: .*env\.atari\.frame_skip"):
            make_vector_env(GAME, 1, backend=backend, kwargs={"frameskip": 2}, atari=Atari())
    env = make_vector_env(GAME, 1, kwargs={"mode": 0}, atari=Atari(), frame_stack=4)
    assert env.backend == "sync" and "env.kwargs.mode" in env.notices[0]
    env.close()


class _Lives(gym.Env[Any, Any]):
    """Three lives of four steps each; obs counts the steps of the game."""

    observation_space = spaces.Box(0, 99, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.t, self.resets, self.ale = 0, 0, self

    def lives(self) -> int:
        return 3 - self.t // 4

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t, self.resets = 0, self.resets + 1
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, self.t == 12, False, {}


def test_life_loss_never_touches_the_game() -> None:
    game = _Lives()
    env = LifeLoss(game)
    seen: list[tuple[float, bool, bool]] = []
    env.reset(seed=0)
    for _ in range(24):
        obs, _, terminated, _, _ = env.step(0)
        seen.append((float(obs[0]), bool(terminated), env.goes_on))
        if terminated:
            assert (env.reset()[0][0] == obs[0]) == env.goes_on
    one = [(float(t), t % 4 == 0, t % 4 == 0 and t < 12) for t in range(1, 13)]
    assert seen == one + one and game.resets == 3
    for _ in range(4):
        env.step(0)
    assert env.goes_on
    env.reset(seed=1)  # a seed means a new game
    assert game.resets == 4 and not env.goes_on


# ------------------------------------------------------------------------------------------------ frame stacks


@pytest.mark.parametrize("backend", ["sync", "process"])
def test_a_frame_stack_holds_the_last_observations(backend: str) -> None:
    name, workers = env_id("FixedLen"), 2 if backend == "process" else None
    settings: Any = {"backend": backend, "workers": workers, "kwargs": {"length": 5}}
    with make_vector_env(name, 2, frame_stack=3, **settings) as env:
        rows = [env.reset(0)[0]]
        rows += [env.step(np.zeros(2, np.int64)).obs[0] for _ in range(5)]
    np.testing.assert_allclose(
        rows, [[0, 0, 0], [0, 0, 0.2], [0, 0.2, 0.4], [0.2, 0.4, 0.6], [0.4, 0.6, 0.8], [0, 0, 0]], atol=1e-6
    )


def test_frame_stacks_that_cannot_be() -> None:
    with pytest.raises(UserError, match=r"env\.frame_stack=2: needs a Box observation, .*Discrete"):
        make_vector_env("FrozenLake-v1", 1, frame_stack=2)
    with pytest.raises(UserError, match=r"env\.frame_stack=2: env\.backend=native"):
        make_vector_env("CartPole-v1", 1, frame_stack=2, backend="native")
    env = make_vector_env("CartPole-v1", 1, frame_stack=2)
    assert env.backend == "sync" and env.obs_dim == 8 and "frame_stack=2" in env.notices[0]
    env.close()
