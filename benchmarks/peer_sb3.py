"""One scenario in Stable-Baselines3 (PPO, A2C) or sb3-contrib (TRPO): `python peer_sb3.py SCENARIO STEPS SEED`.

Prints `RESULT {json}`: µs of CPU time per env step of `learn`, after a short run that is not counted.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time

from scenarios import SCENARIOS


def main() -> None:
    scenario, steps, seed = SCENARIOS[sys.argv[1]], int(sys.argv[2]), int(sys.argv[3])
    import torch
    from sb3_contrib import TRPO
    from stable_baselines3 import A2C, PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    networks = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh}
    common = {
        "n_steps": scenario.horizon,
        "learning_rate": scenario.lr,
        "gamma": 0.99,
        "seed": seed,
        "device": "cpu",
    }
    common |= {
        "policy_kwargs": networks,
        "gae_lambda": 1.0 if scenario.algo == "a2c" else 0.95,
        **scenario.peer,
    }
    env = make_vec_env(scenario.env, n_envs=scenario.num_envs, seed=seed)
    if scenario.algo == "ppo":
        model = PPO("MlpPolicy", env, n_epochs=scenario.epochs, batch_size=scenario.minibatch, **common)
    elif scenario.algo == "a2c":
        model = A2C("MlpPolicy", env, **common)
    else:
        model = TRPO(
            "MlpPolicy", env, n_critic_updates=scenario.epochs, batch_size=scenario.minibatch, **common
        )
    model.learn(scenario.num_envs * (scenario.horizon or 1))
    start = time.process_time()
    model.learn(steps, reset_num_timesteps=True)
    seconds = time.process_time() - start
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("stable-baselines3", "sb3-contrib"))
    made = model.num_timesteps
    print("RESULT " + json.dumps({"us": 1e6 * seconds / made, "versions": versions}))


if __name__ == "__main__":
    main()
