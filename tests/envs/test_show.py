"""Videos and windows: each episode of the env that is played, picture by picture, and what cannot be shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
from gymnasium import spaces

import pgtrain
from pgtrain import cli
from pgtrain.envs.show import Show
from pgtrain.envs.vector import make_vector_env
from pgtrain.types import TrainingError, UserError


class Film(gym.Env[Any, Any]):
    """Its picture is as bright as the episode is long: 20 a step, from 10 · episode on."""

    metadata = {"render_modes": ["rgb_array", "human"], "render_fps": 7}
    observation_space, action_space = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(2)
    shown = 0  # how many were made to be rendered

    def __init__(
        self, render_mode: str | None = None, height: int = 33, kind: str = "uint8", length: int = 8
    ) -> None:
        self.render_mode, self.height, self.kind, self.length, self.episode = (
            render_mode,
            height,
            kind,
            length,
            0,
        )
        Film.shown += render_mode is not None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t, self.episode = 0, self.episode + 1
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == self.length, False, {}

    def render(self) -> Any:
        if self.kind == "none":
            return None
        if self.kind == "gl":
            raise RuntimeError("an OpenGL platform library has not been loaded")
        return np.full((self.height, 45, 3), 10 * self.episode + 20 * self.t, self.kind)


class Blind(Film):
    metadata: dict[str, Any] = {}


class Written(Film):
    metadata = {"render_modes": ["ansi"]}


for _cls in (Film, Blind, Written):
    gym.register(f"Test/{_cls.__name__}-v0", entry_point=_cls)


def brightness(file: Path) -> tuple[list[float], dict[str, Any]]:
    """Of each picture of a video, and what the file says of itself."""
    reader = imageio_ffmpeg.read_frames(str(file))
    told = next(reader)
    width, height = told["size"]
    pictures = [np.frombuffer(x, np.uint8).reshape(height, width, 3) for x in reader]
    return [float(x[:32, :44].mean()) for x in pictures], told


def play(env: Any, steps: int) -> None:
    with env:
        env.reset(0)
        for _ in range(steps):
            env.step(np.zeros(1, np.int64))


@pytest.mark.parametrize("height", [32, 33])
def test_a_video_holds_every_picture_of_its_episode(tmp_path: Path, height: int) -> None:
    """The start and 8 steps. A third episode, begun and not asked for, is not written, nor is the probe for masks."""
    show, Film.shown = Show(tmp_path / "videos", "film", 2), 0
    play(make_vector_env("Test/Film-v0", 1, kwargs={"height": height}, backend="sync", show=show), 19)
    assert Film.shown == 1
    assert (
        sorted((tmp_path / "videos").iterdir())
        == show.files
        == [tmp_path / f"videos/film-{i}.mp4" for i in (1, 2)]
    )
    for episode, file in enumerate(show.files, start=1):
        found, told = brightness(file)
        np.testing.assert_allclose(found, [10 * episode + 20 * t for t in range(9)], atol=4)
        assert told["fps"] == 7 and told["size"] == (46, height + height % 2)


def test_an_episode_that_is_cut_off_leaves_what_there_was(tmp_path: Path) -> None:
    show = Show(tmp_path)
    play(make_vector_env("Test/Film-v0", 1, backend="sync", show=show), 4)
    assert len(brightness(show.files[0])[0]) == 5


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"kind": "none"}, r"render\(\) gave NoneType, expected a picture, uint8 \[height, width, 3\]$"),
        ({"kind": "float32"}, r"render\(\) gave float32 \[33, 45, 3\], expected a picture"),
        ({"kind": "gl"}, r"has not been loaded \(without a screen, set MUJOCO_GL=egl in the environment\)"),
    ],
)
def test_pictures_that_are_none_are_told(tmp_path: Path, kwargs: dict[str, Any], told: str) -> None:
    env = make_vector_env("Test/Film-v0", 1, kwargs=kwargs, backend="sync", show=Show(tmp_path))
    with pytest.raises(TrainingError, match=rf"^env=Test/Film-v0, env index 0, at reset 1: .*{told}"):
        env.reset(0)


@pytest.mark.parametrize(
    ("env_id", "watch", "told"),
    [
        (
            "Test/Blind-v0",
            False,
            "video=true: env=Test/Blind-v0 cannot be shown so: of the render modes it has none",
        ),
        ("Test/Written-v0", True, "watch=true: .* it has only ansi, and needs human or rgb_array"),
        ("pgtrain/Pendulum-v0", False, "video=true: env=pgtrain/Pendulum-v0 cannot be shown so"),
    ],
)
def test_envs_without_a_picture_are_refused(tmp_path: Path, env_id: str, watch: bool, told: str) -> None:
    with pytest.raises(UserError, match=f"^{told}"):
        make_vector_env(env_id, 1, backend="sync", show=Show(None if watch else tmp_path))


def test_a_window_needs_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(UserError, match=r"^watch=true: there is no screen here .*; use video=true$"):
        make_vector_env("Test/Film-v0", 1, backend="sync", show=Show())
    monkeypatch.setenv("DISPLAY", ":0")
    Film.shown = 0
    make_vector_env("Test/Film-v0", 1, backend="sync", show=Show()).close()
    assert Film.shown == 1


def test_without_ffmpeg_the_package_to_install_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "imageio_ffmpeg", None)
    with pytest.raises(UserError, match=r"pip install 'pgtrain\[video\]'$"):
        make_vector_env("Test/Film-v0", 1, backend="sync", show=Show(tmp_path))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained with a native batch of 4; a video is made of the single env."""
    folder = tmp_path_factory.mktemp("show") / "run"
    pgtrain.train(
        "algo=a2c", "env=CartPole-v1", "num_envs=4", "total_steps=160", "eval.episodes=0", "monitor=quiet",
        "env.backend=native", run_dir=folder,
    )  # fmt: skip
    return folder


def test_eval_writes_videos_beside_the_run_and_no_evaluation(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["eval", str(run), "video=true", "episodes=2", "seed=7"]) == 0
    said = capsys.readouterr().out
    files = [run / "videos" / f"seed7-{i}.mp4" for i in (1, 2)]
    assert [line for line in said.splitlines() if line.startswith("written")] == [
        f"written to {x}" for x in files
    ]
    assert not (run / "evaluation.json").exists()
    shown = [len(brightness(file)[0]) - 1 for file in files]  # steps of each episode
    assert cli.main(["eval", str(run), "episodes=2", "seed=7", "num_envs=1"]) == 0
    assert json.loads((run / "evaluation.json").read_text())["lengths"] == shown


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["video=true", "watch=true"], "watch=true video=true: one of them at a time"),
        (["video=true", "num_envs=4"], "num_envs=4: video=true shows one env; leave it out"),
        (["watch=true", "num_envs=2"], "num_envs=2: watch=true shows one env"),
        (["video=yes"], "video=yes: expected true or false"),
    ],
)
def test_mistakes_are_one_line(
    run: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["eval", str(run), *words]) == 2
    assert f"pgtrain: error: {told}" in capsys.readouterr().err
