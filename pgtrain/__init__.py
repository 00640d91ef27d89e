"""pgtrain: policy-gradient agents, trained from the command line or from Python.

    result = pgtrain.train("algo=a2c", "env=CartPole-v1", seed=1)
    result = pgtrain.resume(result.run_dir, total_steps=600_000)
    loaded = pgtrain.load(result.run_dir)

`pgtrain.returns` is the maths of discounted returns, `pgtrain.per_sample` gives the gradient of each sample. Everything
is imported when it is first used: `import pgtrain` alone loads neither torch nor Hydra.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pgtrain.version import __version__ as __version__

if TYPE_CHECKING:
    from pgtrain.commands.resume import resume as resume
    from pgtrain.commands.train import train as train
    from pgtrain.learning import per_sample as per_sample
    from pgtrain.learning import returns as returns
    from pgtrain.loading import load as load
    from pgtrain.policies.registry import register_policy as register_policy

# name -> (module, attribute; None: the module itself)
_LAZY = {
    "train": ("pgtrain.commands.train", "train"),
    "resume": ("pgtrain.commands.resume", "resume"),
    "load": ("pgtrain.loading", "load"),
    "returns": ("pgtrain.learning.returns", None),
    "per_sample": ("pgtrain.learning.per_sample", None),
    "register_policy": ("pgtrain.policies.registry", "register_policy"),
    "UserError": ("pgtrain.types", "UserError"),
    "TrainingError": ("pgtrain.types", "TrainingError"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'pgtrain' has no attribute {name!r}")
    place, attribute = _LAZY[name]
    try:
        module = importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name != place:
            raise
        raise AttributeError(f"module 'pgtrain' has no attribute {name!r}") from error
    return module if attribute is None else getattr(module, attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
