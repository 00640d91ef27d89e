"""Episodes to look at: in a window, or as one video each."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from pgtrain.types import UserError

_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
_FPS = 30  # of an env that does not say
_EVEN = "pad=ceil(iw/2)*2:ceil(ih/2)*2"  # H.264 has no odd numbers of pixels


class Show(NamedTuple):
    """How one env is shown: in a window (`folder` is None), or its first `episodes` as FOLDER/NAME-1.mp4, ….

    A video has the picture after the reset and after each step of the env's own, as many a second as its metadata says.
    """

    folder: Path | None = None
    name: str = "episode"
    episodes: int = 1

    @property
    def render_mode(self) -> str:
        return "human" if self.folder is None else "rgb_array"

    @property
    def files(self) -> list[Path]:
        if self.folder is None:
            return []
        return [self.folder / f"{self.name}-{i + 1}.mp4" for i in range(self.episodes)]

    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return env if self.folder is None else Recorder(env, self)

    def check(self, env_id: str, creator: Any) -> None:
        """UserError where the env cannot be shown so, as far as its class tells."""
        modes = (getattr(creator, "metadata", None) or {}).get("render_modes")
        fits = ("rgb_array",) if self.folder is not None else ("human", "rgb_array")
        if isinstance(creator, type) and not set(fits) & set(modes or ()):
            setting = "watch" if self.folder is None else "video"
            has = f"only {', '.join(modes)}" if modes else "none"
            raise UserError(
                f"{setting}=true: env={env_id} cannot be shown so: of the render modes it has {has}, and needs "
                f"{' or '.join(fits)} (metadata['render_modes'] of its class, and render())"
            )
        if self.folder is not None:
            _ffmpeg()
        elif sys.platform.startswith("linux") and not any(map(os.environ.get, _SCREENS)):
            raise UserError("watch=true: there is no screen here (DISPLAY is not set); use video=true")


class Recorder(gym.Wrapper[Any, Any, Any, Any]):
    """Writes the first `show.episodes` episodes to their files, picture by picture."""

    def __init__(self, env: gym.Env[Any, Any], show: Show) -> None:
        super().__init__(env)
        self._show, self._episode = show, 0
        self._writer: Generator[None, Any, None] | None = None
        self._recording = False

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self._end()
        result = super().reset(**kwargs)
        self._episode += 1
        self._recording = self._episode <= self._show.episodes
        self._take()
        return result

    def step(self, action: Any) -> Any:
        result = super().step(action)
        self._take()
        return result

    def close(self) -> None:
        self._end()
        super().close()

    def _take(self) -> None:
        if not self._recording:
            return
        picture = self._render()
        shape, dtype = getattr(picture, "shape", ()), getattr(picture, "dtype", None)
        if len(shape) != 3 or dtype != np.uint8:
            kind = f"{dtype} {list(shape)}" if shape else type(picture).__name__
            raise TypeError(f"render() gave {kind}, expected a picture, uint8 [height, width, 3]")
        if self._writer is None:
            self._writer = self._open(shape[1], shape[0])
        self._writer.send(np.ascontiguousarray(picture))

    def _render(self) -> Any:
        if self._writer is not None:
            return self.env.render()
        with warnings.catch_warnings():  # MuJoCo's renderer tells of each way that it tries to open a screen
            warnings.simplefilter("ignore")
            try:
                return self.env.render()
            except Exception as error:
                if "OpenGL" not in str(error):
                    raise
                raise RuntimeError(
                    f"{error} (without a screen, set MUJOCO_GL=egl in the environment)"
                ) from error

    def _open(self, width: int, height: int) -> Generator[None, Any, None]:
        file = self._show.files[self._episode - 1]
        file.parent.mkdir(parents=True, exist_ok=True)
        fps = self.metadata.get("render_fps") or _FPS
        writer = _ffmpeg().write_frames(
            str(file), (width, height), fps=fps, macro_block_size=1, output_params=["-vf", _EVEN]
        )
        writer.send(None)
        return writer

    def _end(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer, self._recording = None, False


def _ffmpeg() -> Any:
    try:
        return importlib.import_module("imageio_ffmpeg")
    except ImportError as error:
        raise UserError(
            "video=true: needs a package that is missing: pip install 'pgtrain[video]'"
        ) from error
