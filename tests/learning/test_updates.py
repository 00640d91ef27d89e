"""The update pipeline: minibatches, norm limit, skipping."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

from pgtrain.learning.batch import Batch, Coefficients, flatten
from pgtrain.learning.gradients import Backprop
from pgtrain.learning.losses import PolicyGradient, SquaredError
from pgtrain.learning.optimizers import Adam
from pgtrain.learning.updates import Update, minibatch_indices
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.parameters import FlatParameters
from tests.learning.test_gradients import experience
from tests.support import make_policy

CPU = torch.device("cpu")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(count: int) -> Batch:
    """A batch whose rows are numbered (in `inputs`)."""
    x = torch.arange(count, dtype=torch.float32)
    ones = torch.ones(count)
    columns = (x[:, None], x.long(), x[:, None], x, x, x, x, ones, ones)
    return Batch(**dict(zip(Batch.COLUMNS, columns, strict=True)), episodes=1.0)


def a2c(policy: ActorCritic, flat: FlatParameters, *, normalize_advantage: bool) -> Backprop:
    return Backprop(
        policy,
        flat,
        policy_loss=PolicyGradient(),
        value_loss=SquaredError(),
        value_coef=0.5,
        normalize_advantage=normalize_advantage,
    )


class FakeSource:
    """Keeps the rows it is given; its gradients and losses are written down."""

    def __init__(
        self, flat: FlatParameters, gradients: list[Any] | None = None, losses: list[float] | None = None
    ):
        self.flat, self.gradients, self.losses = flat, gradients, losses
        self.seen: list[list[int]] = []
        self.coefficients: list[float] = []

    def __call__(self, batch: Batch, coefficients: Coefficients) -> dict[str, torch.Tensor]:
        k = len(self.seen)
        self.seen.append(batch.action.tolist())
        self.coefficients.append(coefficients.entropy_coef)
        self.flat.grad.copy_(torch.as_tensor(self.gradients[k] if self.gradients else 0.0))
        loss = torch.tensor(self.losses[k] if self.losses else float(k))
        return {"loss": loss, "loss/actor": loss * 10}


def update(source: Any = None, flat: FlatParameters | None = None, **settings: Any) -> Update:
    flat = flat or FlatParameters(torch.nn.Linear(1, 1))
    source = source or FakeSource(flat)
    return Update(source, flat, Adam(flat.data), generator(), **settings)


# ------------------------------------------------------------------------------------------------ minibatches


@pytest.mark.parametrize(
    ("count", "size", "parts"),
    [(10, 4, [4, 3, 3]), (9, 4, [3, 3, 3]), (8, 4, [4, 4]), (5, None, [5]), (1, 1, [1])],
)
def test_each_row_is_used_once_in_parts_of_even_size(count: int, size: int | None, parts: list[int]) -> None:
    indices = minibatch_indices(count, size, CPU, generator())
    assert [len(i) for i in indices] == parts
    assert sorted(torch.cat(indices).tolist()) == list(range(count))


@pytest.mark.parametrize("count", range(1, 30))
def test_no_part_is_larger_than_asked_for_and_none_empty(count: int) -> None:
    for size in range(1, 12):
        lengths = [len(i) for i in minibatch_indices(count, size, CPU, generator())]
        assert max(lengths) <= size and min(lengths) >= 1 and max(lengths) - min(lengths) <= 1


def test_every_epoch_has_a_new_permutation() -> None:
    u = update(epochs=3, minibatch_size=7)
    u(rows(20), Coefficients(0.0, 0.0))
    seen = u.source.seen
    assert len(seen) == 9
    epochs = [[row for part in seen[3 * e : 3 * e + 3] for row in part] for e in range(3)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3 and list(range(20)) not in epochs
    again = update(epochs=3, minibatch_size=7)
    again(rows(20), Coefficients(0.0, 0.0))
    assert again.source.seen == seen  # from the seed alone
    again(rows(20), Coefficients(0.0, 0.0))
    assert again.source.seen[9:] != seen


@pytest.mark.parametrize("size", [None, 20, 50])
def test_a_whole_batch_is_one_minibatch(size: int | None) -> None:
    u = update(epochs=2, minibatch_size=size)
    u(rows(20), Coefficients(0.0, 0.25))
    assert [sorted(s) for s in u.source.seen] == [list(range(20))] * 2
    assert u.source.coefficients == [0.25, 0.25]


def test_a_tail_of_one_row_does_no_harm() -> None:
    policy = make_policy()
    flat = FlatParameters(policy)
    source = a2c(policy, flat, normalize_advantage=True)
    u = Update(source, flat, Adam(flat.data), generator(), epochs=2, minibatch_size=1)
    result = u(flatten(experience(policy), None), Coefficients(1e-3, 0.01))
    assert result.ok.all() and len(result.ok) == 30
    assert torch.isfinite(flat.data).all() and all(math.isfinite(x) for x in result.stats.values())


# --------------------------------------------------------------------------------------------- limit and skips


@pytest.mark.parametrize(("limit", "scale"), [(None, 1.0), (0.5, 0.1), (5.0, 1.0), (100.0, 1.0)])
def test_norm_limit(limit: float | None, scale: float) -> None:
    """A gradient of norm 5 is scaled to the limit if it is above; the norm before the limit is reported."""
    flat = FlatParameters(torch.nn.Linear(1, 1))
    given: list[torch.Tensor] = []

    class Step:
        def step(self, grad: torch.Tensor, ok: torch.Tensor, lr: float) -> None:
            given.append(grad.clone())

    u = Update(FakeSource(flat, [[3.0, 4.0]]), flat, Step(), generator(), max_grad_norm=limit)  # pyright: ignore
    result = u(rows(4), Coefficients(1e-3, 0.0))
    assert float(result.stats["gradient/norm"]) == pytest.approx(5.0)
    assert given[0].tolist() == pytest.approx([3 * scale, 4 * scale], rel=1e-5)


def test_limit_equals_torchs() -> None:
    policy = make_policy()
    flat = FlatParameters(policy)
    source = a2c(policy, flat, normalize_advantage=False)
    twin = copy.deepcopy(policy)
    reference = torch.optim.Adam(twin.parameters(), lr=3e-3, eps=1e-5)
    u = Update(source, flat, Adam(flat.data, eps=1e-5), generator(), epochs=5, max_grad_norm=0.1)
    batch = flatten(experience(policy), 0.9)
    u(batch, Coefficients(3e-3, 0.02))
    norms = []
    for _ in range(5):
        reference.zero_grad()
        new = twin.evaluate(batch.inputs, batch.action)
        loss = -(batch.discount * batch.advantage * new.log_prob).mean() - 0.02 * new.entropy.mean()
        (loss + 0.25 * (new.value - batch.value_target).square().mean()).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.1)))
        reference.step()
    assert min(norms) > 0.1  # the limit was at work
    expected = torch.cat([p.detach().flatten() for p in twin.parameters()])
    torch.testing.assert_close(flat.data, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("bad_gradient", "bad_loss"),
    [(torch.nan, 1.0), (torch.inf, 1.0), (1.0, torch.nan), (1.0, torch.inf), (3e38, 1.0)],
)
def test_a_non_finite_update_is_skipped_and_counted(bad_gradient: float, bad_loss: float) -> None:
    """3e38 is finite and its square is not: skipped as well, with the parameters whole."""
    flat = FlatParameters(torch.nn.Linear(1, 1))
    good = [0.3, -0.4]
    source = FakeSource(flat, [good, [1.0, bad_gradient], good], [1.0, bad_loss, 3.0])
    u = update(source, flat, epochs=3)
    plain_flat = FlatParameters(torch.nn.Linear(1, 1))
    plain_flat.data.copy_(flat.data)
    plain = update(FakeSource(plain_flat, [good, good], [1.0, 3.0]), plain_flat, epochs=2)
    result = u(rows(4), Coefficients(1e-2, 0.0))
    expected = plain(rows(4), Coefficients(1e-2, 0.0))
    assert result.ok.tolist() == [True, False, True]
    assert torch.equal(flat.data, plain_flat.data)
    for name in ("m", "v", "count"):
        assert torch.equal(u.optimizer.state_dict()[name], plain.optimizer.state_dict()[name])
    assert {k: float(v) for k, v in result.stats.items()} == pytest.approx(
        {k: float(v) for k, v in expected.stats.items()} | {"update/epochs": 3.0}
    )
    assert float(result.stats["loss/actor"]) == pytest.approx(
        20.0
    )  # mean of 10 and 30, without the skipped one


def test_all_skipped_tells_nan_and_moves_nothing() -> None:
    flat = FlatParameters(torch.nn.Linear(1, 1))
    before = flat.snapshot()
    u = update(FakeSource(flat, [[torch.nan, 1.0]] * 2), flat, epochs=2)
    result = u(rows(4), Coefficients(1e-2, 0.0))
    assert not result.ok.any() and torch.equal(flat.data, before)
    assert all(torch.isnan(result.stats[name]) for name in ("loss", "loss/actor", "gradient/norm"))


def test_one_bad_row_spoils_only_its_minibatch() -> None:
    policy = make_policy()
    flat = FlatParameters(policy)
    source = a2c(policy, flat, normalize_advantage=False)
    u = Update(source, flat, Adam(flat.data), generator(), minibatch_size=5)
    batch = flatten(experience(policy), None)
    batch.advantage[7] = torch.nan
    before = flat.snapshot()
    result = u(batch, Coefficients(1e-2, 0.0))
    assert sorted(result.ok.tolist()) == [False, True, True]
    assert torch.isfinite(flat.data).all() and not torch.equal(flat.data, before)


def test_the_learning_rate_is_the_coefficient() -> None:
    flat = FlatParameters(torch.nn.Linear(1, 1))
    before = flat.snapshot()
    u = Update(FakeSource(flat, [[3.0, -4.0]]), flat, Adam(flat.data, eps=1e-12), generator())  # pyright: ignore
    u(rows(3), Coefficients(0.02, 0.0))
    assert (flat.data - before).tolist() == pytest.approx([-0.02, 0.02], rel=1e-4)
