"""REINFORCE in Tianshou 2: `python peer_tianshou.py SCENARIO STEPS SEED`.

Prints `RESULT {json}`: µs of CPU time per env step of training. As in the scenario, an update takes one episode of each
env and is one step on the whole batch; its collector waits for as many episodes as there are envs, so the short ones
of them count more, and steps of unfinished episodes are thrown away. No logger and no test episodes.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
import warnings

from scenarios import SCENARIOS


def main() -> None:
    scenario, steps, seed = SCENARIOS[sys.argv[1]], int(sys.argv[2]), int(sys.argv[3])
    warnings.simplefilter("ignore")
    import gymnasium as gym
    import numpy as np
    import torch
    from tianshou.algorithm import Reinforce
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OnPolicyTrainerParams
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import DiscreteActor

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what its collector draws from
    env = gym.make(scenario.env)
    envs = DummyVectorEnv([lambda: gym.make(scenario.env) for _ in range(scenario.num_envs)])
    envs.seed(seed)
    body = Net(state_shape=env.observation_space.shape, hidden_sizes=[64, 64], activation=torch.nn.Tanh)
    actor = DiscreteActor(preprocess_net=body, action_shape=env.action_space.n, softmax_output=False)
    policy = DiscreteActorPolicy(
        actor=actor,
        dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
        action_space=env.action_space,
    )
    algorithm = Reinforce(
        policy=policy,
        gamma=0.99,
        optim=AdamOptimizerFactory(lr=scenario.lr),
        return_standardization=True,
    )
    played = 0

    def counted(act, *args, step=envs.step):
        nonlocal played
        played += len(act)
        return step(act, *args)

    envs.step = counted

    def train(count: int) -> None:
        buffer = VectorReplayBuffer(20_000, scenario.num_envs)
        collector = Collector(algorithm, envs, buffer)
        collector.reset()
        algorithm.run_training(
            OnPolicyTrainerParams(
                training_collector=collector,
                test_collector=None,
                max_epochs=1,
                epoch_num_steps=count,
                collection_step_num_episodes=scenario.num_envs,
                collection_step_num_env_steps=None,
                update_step_num_repetitions=1,
                batch_size=None,
                show_progress=False,
                verbose=False,
            )
        )

    train(500)  # compiles what it compiles
    played, start = 0, time.process_time()
    train(steps)
    seconds = time.process_time() - start
    versions = f"tianshou {importlib.metadata.version('tianshou')}"
    print("RESULT " + json.dumps({"us": 1e6 * seconds / played, "versions": versions}))


if __name__ == "__main__":
    main()
