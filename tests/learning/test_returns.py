"""Returns and advantages against golden numbers, definitions written as loops, and laws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from pgtrain.learning.returns import (
    discounted_sum,
    gae,
    lambda_return,
    n_step_return,
    reward_to_go,
    td_error,
    total_return,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "returns.json").read_text(encoding="utf-8"))
f64 = torch.float64
few = settings(deadline=None, max_examples=40)


class Window(NamedTuple):
    """Random rollout: `next_value` is the next row's value inside an episode, one of its own at a cut, and
    junk where terminated, as nobody may read it there."""

    reward: Tensor
    value: Tensor
    next_value: Tensor
    terminated: Tensor
    truncated: Tensor

    @property
    def done(self) -> Tensor:
        return self.terminated | self.truncated


def window(seed: int, steps: int, envs: int, ends: float = 0.3, dtype: torch.dtype = f64) -> Window:
    rng = torch.Generator().manual_seed(seed)
    reward, value, next_value = torch.randn(3, steps, envs, generator=rng, dtype=dtype)
    terminated, truncated = torch.rand(2, steps, envs, generator=rng) < ends
    inside = ~(terminated | truncated)[:-1]
    next_value = torch.cat([torch.where(inside, value[1:], next_value[:-1]), next_value[-1:]])
    return Window(reward, value, torch.where(terminated, torch.nan, next_value), terminated, truncated)


windows = st.builds(
    window, st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 3), st.sampled_from([0.0, 0.2, 0.5])
)
discounts = st.sampled_from([0.0, 0.5, 0.97, 1.0])


def close(actual: Tensor, expected: Tensor | list, tolerance: float = 1e-10) -> None:
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


# ---- definitions, as sums over k ------------------------------------------------------------------------------------
def segment_end(w: Window, t: int, n: int) -> int:
    """Last step of t's episode, or of the window."""
    return next((k for k in range(t, len(w.reward)) if w.done[k, n]), len(w.reward) - 1)


def worth_after(w: Window, t: int, n: int) -> float:
    return 0.0 if w.terminated[t, n] else float(w.next_value[t, n])


def by_definition(w: Window, function) -> Tensor:
    return torch.tensor(
        [[function(w, t, n) for n in range(w.reward.shape[1])] for t in range(len(w.reward))], dtype=f64
    )


def n_step_definition(gamma: float, steps: int):
    def one(w: Window, t: int, n: int) -> float:
        last = min(t + steps - 1, segment_end(w, t, n))
        rewards = sum(gamma ** (k - t) * float(w.reward[k, n]) for k in range(t, last + 1))
        return rewards + gamma ** (last + 1 - t) * worth_after(w, last, n)

    return one


def gae_definition(gamma: float, lam: float):
    def one(w: Window, t: int, n: int) -> float:
        errors = {
            k: float(w.reward[k, n]) + gamma * worth_after(w, k, n) - float(w.value[k, n])
            for k in range(t, segment_end(w, t, n) + 1)
        }
        return sum((gamma * lam) ** (k - t) * delta for k, delta in errors.items())

    return one


def lambda_definition(gamma: float, lam: float):
    def one(w: Window, t: int, n: int) -> float:
        length = segment_end(w, t, n) - t + 1
        k_step = [n_step_definition(gamma, k)(w, t, n) for k in range(1, length + 1)]
        return (1 - lam) * sum(lam**k * k_step[k] for k in range(length - 1)) + lam ** (length - 1) * k_step[
            -1
        ]

    return one


# ---- golden ---------------------------------------------------------------------------------------------------------
def golden_window() -> tuple[Window, float]:
    inputs = {key: torch.tensor(value, dtype=f64) for key, value in GOLDEN["inputs"].items()}
    terminated, truncated = inputs["terminated"].bool(), inputs["truncated"].bool()
    following = torch.cat([inputs["values"][1:], inputs["last_values"][None]])
    next_value = torch.where(truncated, inputs["final_values"], following)
    next_value = torch.where(terminated, torch.nan, next_value)
    return Window(inputs["rewards"], inputs["values"], next_value, terminated, truncated), GOLDEN["inputs"][
        "gamma"
    ]


@pytest.mark.parametrize("lam", ["0", "0.5", "0.95", "1"])
def test_gae_and_lambda_return_golden(lam: str) -> None:
    w, gamma = golden_window()
    close(gae(*w, gamma, float(lam)), GOLDEN["expected"][f"adv_lambda_{lam}"], 1e-8)
    close(lambda_return(*w, gamma, float(lam)), GOLDEN["expected"][f"ret_lambda_{lam}"], 1e-8)


@pytest.mark.parametrize("mistake", list(GOLDEN["wrong"]))
def test_gae_makes_none_of_the_known_mistakes(mistake: str) -> None:
    w, gamma = golden_window()
    difference = gae(*w, gamma, 0.95) - torch.tensor(GOLDEN["wrong"][mistake], dtype=f64)
    assert difference.abs().max() > 0.1


@pytest.mark.parametrize("n", [1, 2, 3])
def test_n_step_golden(n: int) -> None:
    w, gamma = golden_window()
    result = n_step_return(w.reward, w.next_value, w.terminated, w.truncated, gamma, n)
    close(result, GOLDEN["expected"][f"nstep_return_{n}"], 1e-8)


def test_bootstrapped_reward_to_go_golden() -> None:
    w, gamma = golden_window()
    bootstrap = torch.where(w.terminated, 0.0, w.next_value)
    close(reward_to_go(w.reward, gamma, w.done, bootstrap), GOLDEN["expected"]["rtg_bootstrapped"], 1e-8)


@pytest.mark.parametrize("name", ["BOOT-01", "BOOT-08", "BOOT-10"])
def test_gae_cases(name: str) -> None:
    case = GOLDEN["cases"][name]
    given_ = {key: torch.tensor(value, dtype=f64) for key, value in case["inputs"].items()}
    arrays = [given_[key] for key in ("rewards", "values", "next_values", "terminated", "truncated")]
    close(gae(*arrays, case["inputs"]["gamma"], case["inputs"]["lam"]), case["expected"]["advantages"], 1e-8)
    close(
        lambda_return(*arrays, case["inputs"]["gamma"], case["inputs"]["lam"]),
        case["expected"]["returns"],
        1e-8,
    )


def test_reward_to_go_case() -> None:
    case = GOLDEN["cases"]["BOOT-09"]
    done = torch.tensor(case["inputs"]["done"])
    result = reward_to_go(torch.tensor(case["inputs"]["rewards"]), case["inputs"]["gamma"], done)
    close(result, case["expected"]["returns"], 1e-6)


def autoreset_stream(inputs: dict) -> tuple[list[Tensor], float]:
    """GAE inputs from a NEXT_STEP stream: V(row t+1's observation) is V of the true successor, always."""
    value = torch.tensor(inputs["values"], dtype=f64)
    next_value = torch.cat([value[1:], torch.tensor([inputs["last_value"]], dtype=f64)])
    flags = [torch.tensor(inputs[key]) for key in ("terminated", "truncated")]
    return [torch.tensor(inputs["rewards"], dtype=f64), value, next_value, *flags], inputs["gamma"]


def test_gae_on_next_step_autoreset_streams() -> None:
    case = GOLDEN["cases"]["AUTO-01"]
    arrays, gamma = autoreset_stream(case["inputs"])
    valid = torch.tensor(case["expected"]["valid"]).bool()
    close(gae(*arrays, gamma, case["inputs"]["lam"])[valid], case["expected"]["advantages_of_valid"], 1e-8)

    stream = json.loads((Path(__file__).parents[1] / "golden" / "autoreset.json").read_text(encoding="utf-8"))
    arrays, gamma = autoreset_stream(stream["inputs"])
    valid = torch.tensor(stream["expected"]["valid_mask"]).bool()
    advantage = gae(*arrays, gamma, stream["inputs"]["gae_lambda"])
    close(torch.where(valid, advantage, 0.0), stream["expected"]["advantages"], 1e-8)


# ---- definitions and laws -------------------------------------------------------------------------------------------
@few
@given(windows, discounts, discounts)
def test_gae_is_its_definition(w: Window, gamma: float, lam: float) -> None:
    close(gae(*w, gamma, lam), by_definition(w, gae_definition(gamma, lam)))


@few
@given(windows, discounts, st.integers(1, 12))
def test_n_step_is_its_definition(w: Window, gamma: float, n: int) -> None:
    result = n_step_return(w.reward, w.next_value, w.terminated, w.truncated, gamma, n)
    close(result, by_definition(w, n_step_definition(gamma, n)))


@few
@given(windows, discounts, discounts)
def test_lambda_return_mixes_the_k_step_returns(w: Window, gamma: float, lam: float) -> None:
    close(lambda_return(*w, gamma, lam), by_definition(w, lambda_definition(gamma, lam)))


@few
@given(windows, discounts)
def test_total_return_is_the_return_of_the_first_step(w: Window, gamma: float) -> None:
    def one(w: Window, t: int, n: int) -> float:
        first = next((k + 1 for k in range(t - 1, -1, -1) if w.done[k, n]), 0)
        last = segment_end(w, t, n)
        return sum(gamma ** (k - first) * float(w.reward[k, n]) for k in range(first, last + 1))

    close(total_return(w.reward, gamma, w.done), by_definition(w, one))


@few
@given(windows, discounts)
def test_gae_between_its_ends(w: Window, gamma: float) -> None:
    bootstrap = torch.where(w.terminated, 0.0, w.next_value)
    monte_carlo = reward_to_go(w.reward, gamma, w.done, bootstrap)
    close(gae(*w, gamma, 1.0), monte_carlo - w.value)
    close(gae(*w, gamma, 0.0), td_error(w.reward, w.value, w.next_value, w.terminated, gamma))
    close(n_step_return(w.reward, w.next_value, w.terminated, w.truncated, gamma, len(w.reward)), monte_carlo)


@few
@given(windows, discounts, discounts, st.sampled_from([-3.0, 0.25, 7.0]))
def test_scale_and_shift_laws(w: Window, gamma: float, lam: float, a: float) -> None:
    expected = gae(*w, gamma, lam)
    scaled = w._replace(reward=a * w.reward, value=a * w.value, next_value=a * w.next_value)
    close(gae(*scaled, gamma, lam), a * expected)
    # Raising all values by a is made up for by rewards that pay a − γa a step (a where nothing follows).
    shifted = w._replace(
        reward=w.reward + a - gamma * a * (~w.terminated).to(f64),
        value=w.value + a,
        next_value=w.next_value + a,
    )
    close(gae(*shifted, gamma, lam), expected)


@few
@given(windows, discounts, discounts)
def test_termination_wins_over_truncation(w: Window, gamma: float, lam: float) -> None:
    both = w._replace(truncated=w.truncated | w.terminated)
    only_terminated = w._replace(truncated=w.truncated & ~w.terminated)
    close(gae(*both, gamma, lam), gae(*only_terminated, gamma, lam))


def test_truncation_bootstraps_and_termination_does_not() -> None:
    ones, no, yes = torch.ones(1, 1), torch.zeros(1, 1).bool(), torch.ones(1, 1).bool()
    close(gae(ones, ones, 5 * ones, no, yes, 0.9, 0.95), [[1 + 0.9 * 5 - 1]], 1e-6)
    close(gae(ones, ones, 5 * ones, yes, no, 0.9, 0.95), [[0.0]])
    close(gae(ones, ones, 5 * ones, yes, yes, 0.9, 0.95), [[0.0]])
    close(gae(ones, ones, 5 * ones, no, no, 0.9, 0.95), [[1 + 0.9 * 5 - 1]], 1e-6)


def test_envs_do_not_mix() -> None:
    w = window(1, 8, 3)
    order = [2, 0, 1]
    permuted = Window(*(x[:, order] for x in w))
    close(gae(*permuted, 0.9, 0.8), gae(*w, 0.9, 0.8)[:, order])


def test_total_return_does_not_discount_from_a_reset_row() -> None:
    rewards = torch.tensor([1.0, 2.0, 0.0, 4.0, 8.0])  # row 2: the reset row between two episodes
    done = torch.tensor([0, 1, 0, 0, 1])
    used = torch.tensor([1.0, 1, 0, 1, 1])
    close(total_return(rewards, 0.5, done, weight=used)[used > 0], [2.0, 2.0, 8.0, 8.0])
    assert total_return(rewards, 0.5, done)[3] == 4.0, (
        "without the weight it would be discounted once too often"
    )


# ---- how it is computed ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31])
def test_discounted_sum_at_every_kind_of_length(steps: int) -> None:
    x, decay = torch.randn(2, steps, 2, dtype=f64, generator=torch.Generator().manual_seed(steps))
    expected, following = [], torch.zeros(2, dtype=f64)
    for t in reversed(range(steps)):
        following = x[t] + decay[t] * following
        expected.append(following)
    close(discounted_sum(x, decay), torch.stack(expected[::-1]))


def test_float32_stays_accurate_over_2048_steps() -> None:
    w = window(3, 2048, 4, ends=0.001)
    rewards = w.reward + 1.0  # a return far from 0, where a float32 sum loses most
    exact = reward_to_go(rewards, 0.999, w.done)
    single = reward_to_go(rewards.float(), 0.999, w.done)
    assert single.dtype == torch.float32
    assert ((single.double() - exact).abs() / exact.abs().max()).max() < 5e-7
    exact_gae = gae(*w, 0.999, 1.0)
    single_gae = gae(*(x.float() if x.is_floating_point() else x for x in w), 0.999, 1.0)
    assert (single_gae.double() - exact_gae).abs().max() / exact_gae.abs().max() < 2e-6


class CountOps(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


ESTIMATORS = {
    "reward_to_go": lambda w: reward_to_go(w.reward, 0.9, w.done, w.value),
    "total_return": lambda w: total_return(w.reward, 0.9, w.done),
    "td_error": lambda w: td_error(w.reward, w.value, w.next_value, w.terminated, 0.9),
    "gae": lambda w: gae(*w, 0.9, 0.8),
    "lambda_return": lambda w: lambda_return(*w, 0.9, 0.8),
    "n_step_return": lambda w: n_step_return(w.reward, w.next_value, w.terminated, w.truncated, 0.9, 21),
}
each_estimator = pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)


@each_estimator
def test_no_loop_over_time(estimator) -> None:
    w = Window(*(x.requires_grad_(x.is_floating_point()) for x in window(0, 1024, 2)))
    with CountOps() as ops:
        estimator(w)
    assert ops.count < 200


@each_estimator
def test_never_waits_for_a_device(estimator) -> None:
    """A meta tensor has no data: reading a number from it, or branching on one, raises."""
    w = Window(*(x.to("meta") for x in window(0, 16, 3)))
    assert estimator(w).shape == (16, 3)


@each_estimator
@pytest.mark.parametrize(("steps", "envs"), [(1, 1), (1, 3), (5, 1)])
def test_keeps_shape_dtype_and_inputs(estimator, steps: int, envs: int) -> None:
    for dtype in (torch.float32, f64):
        w = window(0, steps, envs, dtype=dtype)
        before = [x.clone() for x in w]
        result = estimator(w)
        assert result.shape == (steps, envs) and result.dtype == dtype and result.isfinite().all()
        assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(w, before, strict=True))


@each_estimator
def test_gradients(estimator) -> None:
    w = window(5, 6, 2)

    def of_floats(reward: Tensor, value: Tensor, next_value: Tensor) -> Tensor:
        return estimator(w._replace(reward=reward, value=value, next_value=next_value))

    inputs = [x.nan_to_num().requires_grad_() for x in w[:3]]
    assert torch.autograd.gradcheck(of_floats, inputs)


def test_no_gradient_comes_out_of_what_must_not_be_read() -> None:
    w = window(6, 8, 2)
    next_value = w.next_value.clone().requires_grad_()
    gae(*w._replace(next_value=next_value), 0.9, 0.8).sum().backward()
    assert next_value.grad is not None
    assert (next_value.grad[w.terminated] == 0).all() and (next_value.grad[~w.terminated] != 0).all()


# ---- the public function --------------------------------------------------------------------------------------------
def test_reward_to_go_needs_two_arguments_only() -> None:
    close(reward_to_go(torch.tensor([1.0, 1.0, 1.0]), 0.5), [1.75, 1.5, 1.0])
    close(reward_to_go([1, 2], 0.5), [2.0, 2.0])  # type: ignore[arg-type]


def test_reward_to_go_bootstraps_the_last_row() -> None:
    rewards, done = torch.ones(3, 2), torch.tensor([[0, 0], [0, 0], [0, 1]])
    close(reward_to_go(rewards, 0.5, done, torch.tensor([8.0, 8.0]))[2], [1 + 0.5 * 8, 1.0])


def test_reward_to_go_backpropagates_through_a_list_of_rewards() -> None:
    action = torch.tensor(0.3, requires_grad=True)
    state, rewards = torch.tensor([1.0, 2.0]), []
    for _ in range(5):
        state = state + action
        rewards.append(state)
    reward_to_go(torch.stack(rewards), 0.9)[0].sum().backward()
    close(torch.as_tensor(action.grad), 2 * sum(0.9**t * (t + 1) for t in range(5)), 1e-6)


def test_wrong_arguments_are_refused() -> None:
    column, row = torch.ones(4, 1), torch.ones(4)
    with pytest.raises(ValueError, match=r"reward \[4, 1\].*value \[4\]"):
        td_error(column, row, column, column, 0.9)
    with pytest.raises(ValueError, match="truncated"):
        gae(column, column, column, column, row, 0.9, 0.9)
    with pytest.raises(ValueError, match="done"):
        reward_to_go(column, 0.9, row)
    with pytest.raises(ValueError, match="n must be 1 or more, got 0"):
        n_step_return(column, column, column, column, 0.9, 0)


def test_transforms_and_graphs_see_the_same_numbers_as_plain_calls() -> None:
    """Plain CPU tensors are worked on by NumPy; whatever follows a gradient or is mapped must not lose it there."""
    g = torch.Generator().manual_seed(5)
    reward, value, after = (torch.randn(13, 4, generator=g) for _ in range(3))
    ends = torch.rand(13, 4, generator=g) < 0.3

    def of(reward: Tensor) -> Tensor:
        return gae(reward, value, after, ends, ~ends & (value > 1), 0.9, 0.8)

    plain = of(reward)
    assert torch.equal(of(reward.clone().requires_grad_()).detach(), plain)
    columns = torch.func.vmap(lambda r, v, a, e: gae(r, v, a, e, ~e & (v > 1), 0.9, 0.8), 1, 1)
    assert torch.equal(columns(reward, value, after, ends), plain)
    direction = torch.randn(13, 4, generator=g)  # linear in the reward: the tangent is GAE of it alone
    expected = gae(direction, value * 0, after * 0, ends, ~ends & (value > 1), 0.9, 0.8)
    torch.testing.assert_close(torch.func.jvp(of, (reward,), (direction,))[1], expected)
    with forward_ad.dual_level():
        torch.testing.assert_close(
            forward_ad.unpack_dual(of(forward_ad.make_dual(reward, direction))).tangent, expected
        )
