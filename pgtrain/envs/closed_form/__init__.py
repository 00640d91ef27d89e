"""Problems whose expected return, and so its gradient, is known: to measure estimators against the truth.

Importing this module registers `pgtrain/GaussianBandit-v0`, `pgtrain/SoftmaxBandit-v0` and `pgtrain/TabularMDP-v0`
with Gymnasium (`pgtrain/LQR-v0` is a differentiable env). `exact.py` has the expected return of a policy in each.
"""

from __future__ import annotations

import gymnasium as gym

IDS = {
    "pgtrain/GaussianBandit-v0": "bandits:GaussianBandit",
    "pgtrain/SoftmaxBandit-v0": "bandits:SoftmaxBandit",
    "pgtrain/TabularMDP-v0": "tabular:TabularMDP",
}
for _id, _entry in IDS.items():
    if _id not in gym.registry:
        gym.register(_id, entry_point=f"pgtrain.envs.closed_form.{_entry}", disable_env_checker=True)
