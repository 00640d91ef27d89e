"""What a scenario would cost without any framework or bookkeeping: env, acting and update in bare NumPy.

The update is a hand-written minibatch of the same shape (forward, backward, norm limit and Adam on flat arrays, as
short as such a thing can be written), not pgtrain's code, and is run on made-up numbers: what is learned does not
matter. A natural-gradient step is taken for as many passes of the actor over the whole batch as it has products
with the Fisher matrix, plus the critic's minibatches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
from scenarios import Scenario

Array = np.ndarray
HIDDEN = 64
FISHER_PRODUCTS = 17  # a gradient, 15 iterations, the step's length
EPISODE = 200  # steps of one, where an iteration is whole episodes


class Net:
    """Views of flat parameters and gradients: inputs-64-64-outputs, tanh."""

    def __init__(self, flat: Array, grad: Array, inputs: int, outputs: int) -> None:
        shapes = [(inputs, HIDDEN), (HIDDEN,), (HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN, outputs), (outputs,)]
        self.p, self.g, start = [], [], 0
        for shape in shapes:
            size = math.prod(shape)
            self.p.append(flat[start : start + size].reshape(shape))
            self.g.append(grad[start : start + size].reshape(shape))
            start += size

    @staticmethod
    def size(inputs: int, outputs: int) -> int:
        return inputs * HIDDEN + HIDDEN * HIDDEN + HIDDEN * outputs + 2 * HIDDEN + outputs

    def forward(self, x: Array) -> Array:
        p = self.p
        self.x, self.h1 = x, np.tanh(x @ p[0] + p[1])
        self.h2 = np.tanh(self.h1 @ p[2] + p[3])
        return self.h2 @ p[4] + p[5]

    def backward(self, d: Array) -> None:
        p, g = self.p, self.g
        np.matmul(self.h2.T, d, out=g[4])
        d.sum(0, out=g[5])
        d = (d @ p[4].T) * (1 - self.h2 * self.h2)
        np.matmul(self.h1.T, d, out=g[2])
        d.sum(0, out=g[3])
        d = (d @ p[2].T) * (1 - self.h1 * self.h1)
        np.matmul(self.x.T, d, out=g[0])
        d.sum(0, out=g[1])


class Bench:
    """The parts of one scenario, on made-up data."""

    def __init__(self, scenario: Scenario, inputs: int, outputs: int, discrete: bool, seed: int) -> None:
        self.scenario, self.discrete = scenario, discrete
        self.rng = np.random.default_rng(seed)
        sizes = Net.size(inputs, outputs), Net.size(inputs, 1)
        self.flat = (0.1 * self.rng.standard_normal(sum(sizes))).astype(np.float32)
        self.grad, self.m, self.v = (np.zeros_like(self.flat) for _ in range(3))
        self.actor = Net(self.flat, self.grad, inputs, outputs)
        self.critic = Net(self.flat[sizes[0] :], self.grad[sizes[0] :], inputs, 1)
        self.inputs, self.outputs, self.count = inputs, outputs, 0

    def act(self, obs: Array) -> None:
        out = self.actor.forward(obs)
        self.critic.forward(obs)
        if self.discrete:
            (out - np.log(self.rng.standard_exponential(out.shape, np.float32))).argmax(-1)
        else:
            out + self.rng.standard_normal(out.shape, np.float32)

    def rows(self, count: int) -> tuple[Array, ...]:
        normal = lambda *shape: self.rng.standard_normal(shape, np.float32)  # noqa: E731
        action = self.rng.integers(0, self.outputs, count) if self.discrete else normal(count, self.outputs)
        return normal(count, self.inputs), action, normal(count), normal(count), normal(count)

    def actor_pass(self, rows: tuple[Array, ...]) -> None:
        x, action, advantage, _, old = rows
        count, out = len(x), self.actor.forward(x)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        if self.discrete:
            e = np.exp(out - out.max(1, keepdims=True))
            p = e / e.sum(1, keepdims=True)
            log_prob = np.log(p[np.arange(count), action])
        else:
            z = action - out
            log_prob = -0.5 * (z * z).sum(1)
        r = np.exp(np.minimum(log_prob - old, 1.0))
        blocked = ((r > 1.2) & (advantage > 0)) | ((r < 0.8) & (advantage < 0))
        slope = np.where(blocked, 0, -advantage * r / count).astype(np.float32)
        if self.discrete:
            d = -p * slope[:, None]
            d[np.arange(count), action] += slope
        else:
            d = z * slope[:, None]
        self.actor.backward(d)

    def critic_pass(self, rows: tuple[Array, ...]) -> None:
        value = self.critic.forward(rows[0])
        self.critic.backward(((value[:, 0] - rows[3]) / len(value))[:, None])

    def step(self) -> None:
        grad, m, v = self.grad, self.m, self.v
        norm = math.sqrt(float(grad @ grad))
        if norm > 0.5:
            grad *= 0.5 / norm
        self.count += 1
        m *= 0.9
        m += 0.1 * grad
        v *= 0.999
        v += 0.001 * (grad * grad)
        scale = 1e-6 * math.sqrt(1 - 0.999**self.count) / (1 - 0.9**self.count)
        self.flat -= scale * m / (np.sqrt(v) + 1e-5)

    def iteration(self) -> tuple[Callable[[], None], int]:
        """The update of one iteration, and how many env steps it learns from."""
        s = self.scenario
        count = s.num_envs * (s.horizon or EPISODE)
        parts = max(1, count // (s.minibatch or count))
        whole, part = self.rows(count), self.rows(count // parts)
        natural, critic = s.algo == "trpo", s.algo != "reinforce"

        def update() -> None:
            for _ in range(FISHER_PRODUCTS if natural else 0):
                self.actor_pass(whole)
            for _ in range(s.epochs * parts):
                if not natural:
                    self.actor_pass(part)
                if critic:
                    self.critic_pass(part)
                self.step()

        return update, count


def measure_limit(scenario: Scenario, seed: int) -> dict[str, float]:
    """µs of CPU time per env step: of the env with random actions, of acting, of the update, and their sum."""
    from pgtrain.envs.vector import make_vector_env

    env = make_vector_env(scenario.env, scenario.num_envs)
    space, n = env.action_space, scenario.num_envs
    bench = Bench(
        scenario, env.obs_dim, int(getattr(space, "n", 0)) or space.shape[0], hasattr(space, "n"), seed
    )  # pyright: ignore
    if bench.discrete:
        actions = list(bench.rng.integers(0, bench.outputs, (256, n)))
    else:
        actions = list(bench.rng.uniform(space.low, space.high, (256, n, bench.outputs)))  # pyright: ignore
    env.reset(seed)
    obs = bench.rng.standard_normal((n, env.obs_dim)).astype(np.float32)
    update, steps = bench.iteration()

    def all_actions() -> None:
        for action in actions:
            env.step(action)

    def many_acts() -> None:
        for _ in range(256):
            bench.act(obs)

    found = {
        "env": _seconds(all_actions) / (256 * n),
        "act": _seconds(many_acts) / (256 * n),
        "update": _seconds(update) / steps,
    }
    env.close()
    found = {name: 1e6 * seconds for name, seconds in found.items()}
    return found | {"us": sum(found.values())}


def _seconds(work: Callable[[], None], least: float = 0.5) -> float:
    """CPU seconds of one call: the mean over enough calls to last `least` seconds, after one that is not counted."""
    work()
    calls, start = 0, time.process_time()
    while (spent := time.process_time() - start) < least:
        work()
        calls += 1
    return spent / calls
