"""Per-sample scores against one backward pass for each sample, for every kind of layer, and in parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pgtrain
from pgtrain.learning import layer_gradients, per_sample
from pgtrain.learning.score_capture import PolicyScorer, Scorer
from pgtrain.policies.actor_critic import ActorCritic
from pgtrain.policies.gsde import StateDependentGaussian
from pgtrain.policies.networks import MLP
from tests.support import box, make_policy

f64 = torch.float64


def one_by_one(policy: nn.Module, log_prob: Any, obs: Tensor, action: Tensor) -> Tensor:
    """[B, P], a backward pass a sample; parameters that do not take part have zeros."""
    rows = []
    parameters = list(policy.parameters())
    for i in range(len(obs)):
        lp = log_prob(policy, obs[i : i + 1], action[i : i + 1]).sum()
        wanted = [p for p in parameters if p.requires_grad]
        found = dict(zip(wanted, torch.autograd.grad(lp, wanted, allow_unused=True), strict=True))
        rows.append(
            torch.cat(
                [
                    (torch.zeros_like(p) if found.get(p) is None else found[p]).flatten()  # type: ignore[union-attr]
                    for p in parameters
                ]
            )
        )
    return torch.stack(rows)


def actor_log_prob(policy: ActorCritic, obs: Tensor, action: Tensor) -> Tensor:
    return policy.evaluate_actor(policy.prepare(obs).to(obs.dtype), action).log_prob


def check_everything(
    policy: nn.Module, obs: Tensor, action: Tensor, log_prob: Any = None, **how: Any
) -> Tensor:
    """All public functions against sums of `one_by_one`; returns it."""
    given: dict[str, Any] = {"log_prob": log_prob, **how} if log_prob is not None else how
    exact = one_by_one(policy, log_prob or actor_log_prob, obs, action)
    scale = float(exact.abs().max()) + 1e-30
    tight: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-9 * max(scale, scale**2)}
    torch.testing.assert_close(per_sample.gradients(policy, obs, action, **given), exact, **tight)
    norms = exact.square().sum(1)
    torch.testing.assert_close(per_sample.squared_norms(policy, obs, action, **given), norms, **tight)

    generator = torch.Generator().manual_seed(0)
    episode = torch.randint(-1, 4, (len(obs),), generator=generator)
    episode[:4] = torch.tensor([3, 0, 1, 2])[: len(obs)]
    weight = torch.randn(2, len(obs), generator=generator, dtype=f64)
    count = int(episode.max()) + 1
    members = [(episode == e).nonzero().flatten() for e in range(count)]
    whole = torch.stack([(weight[0, m, None] * exact[m]).sum(0) for m in members])
    both = torch.stack([torch.stack([(w[m, None] * exact[m]).sum(0) for w in weight]) for m in members])
    in_episodes = {"episode": episode, "weight": weight[0], **given}
    torch.testing.assert_close(per_sample.gradients(policy, obs, action, **in_episodes), whole, **tight)
    torch.testing.assert_close(
        per_sample.squared_norms(policy, obs, action, **in_episodes), whole.square().sum(1), **tight
    )
    torch.testing.assert_close(
        per_sample.products(policy, obs, action, episode, weight, **given), both @ both.mT, **tight
    )
    gram = per_sample.grams(policy, obs, action, episode, **given)
    assert gram.shape == (count, max(map(len, members)), max(map(len, members)))
    for e, m in enumerate(members):
        expected = torch.zeros_like(gram[0])
        expected[: len(m), : len(m)] = exact[m] @ exact[m].T
        torch.testing.assert_close(gram[e], expected, **tight)

    returns = weight[1]
    for i, (scores, r, group) in enumerate(
        [
            (exact, returns, {}),
            (
                whole,
                torch.randn(count, generator=generator, dtype=f64),
                {"episode": episode, "weight": weight[0]},
            ),
        ]
    ):
        m = per_sample.moments(policy, obs, action, r, **group, **given)
        square = scores.square()
        expected_sums = [
            scores.sum(0),
            r @ scores,
            square.sum(0),
            r @ square,
            square.sum(),
            (r @ square).sum(),
        ]
        assert m.count == len(scores), i
        for found, right in zip(m[1:], expected_sums, strict=True):
            torch.testing.assert_close(found, right, **tight)
    return exact


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    gaussian=st.booleans(),
    activation=st.sampled_from(["tanh", "relu", "leaky_relu", "elu", "silu", "gelu"]),
    hidden=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    share=st.integers(0, 3),
    batch=st.integers(1, 12),
    limit=st.sampled_from([1, 3000, 10**8]),
)
def test_random_policies(
    seed: int, gaussian: bool, activation: str, hidden: list[int], share: int, batch: int, limit: int
) -> None:
    torch.manual_seed(seed)
    policy = make_policy(
        3,
        box([-1.0, -9.0, -1e31], [1.0, 9.0, 1e31]) if gaussian else None,
        hidden=tuple(hidden),
        activation=activation,
        share=min(share, len(hidden)),
        seed=seed,
    ).double()
    obs = torch.randn(batch, 3).double()  # the policy's inputs are float32
    action = torch.randn(batch, 3, dtype=f64) if gaussian else torch.randint(3, (batch,))
    check_everything(policy, obs, action, memory_limit=limit)
    scorer = PolicyScorer(policy)
    expected = scorer.by_loop(scorer.trainable, obs, action)
    torch.testing.assert_close(scorer.by_vmap(scorer.trainable, obs, action), expected)
    for by_hand in (scorer.by_hand, False):  # both ways of capturing
        scorer.by_hand = by_hand
        found = torch.zeros(batch, scorer.width, dtype=f64)
        for rows in scorer.capture(obs, action):
            scorer.place(rows, found)
        torch.testing.assert_close(found, one_by_one(policy, actor_log_prob, obs, action))


@pytest.mark.parametrize("features", ["learned", "detached"])
@pytest.mark.parametrize("expln", [False, True])
def test_gsde(features: str, expln: bool) -> None:
    torch.manual_seed(3)
    space = box([-1.0, -1.0], [1.0, 1.0])
    distribution = StateDependentGaussian(space.low, space.high, 5, expln=expln)
    network = MLP(
        4, 2, hidden=[6, 5], activation="tanh", share=1, critic=True, last_gain=1.0, features=features
    )
    policy = ActorCritic(network, distribution, None, log_std_init=-0.5).double()
    check_everything(policy, torch.randn(7, 4, dtype=f64), torch.randn(7, 2, dtype=f64))


def test_log_std_at_and_beyond_its_limits() -> None:
    policy = make_policy(3, box([-1.0] * 3, [1.0] * 3), log_std_min=-1.0, log_std_max=1.0).double()
    assert policy.log_std is not None
    with torch.no_grad():
        policy.log_std.copy_(torch.tensor([-1.0, 1.5, 0.3]))
    exact = check_everything(policy, torch.randn(6, 3, dtype=f64), torch.randn(6, 3, dtype=f64))
    log_std = exact[:, PolicyScorer(policy).columns["log_std"]]
    assert (log_std[:, 1] == 0).all() and (log_std[:, [0, 2]] != 0).all()


def categorical(module: nn.Module, obs: Tensor, action: Tensor) -> Tensor:
    return module(obs).log_softmax(-1).gather(-1, action[:, None]).squeeze(-1)


class Reused(nn.Module):
    """One layer three times, activations in place, and a layer used for several places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 5), nn.Linear(5, 5, bias=False), nn.Linear(5, 3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(x))
        for _ in range(3):
            x = torch.tanh(self.middle(x)) + x
        return self.last(torch.stack([x, -x, x**2], 1)).sum(1)


class Pixels(nn.Module):
    """Convolutions of every kind with layer norm and free parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(4, 6, (2, 3), groups=2, padding="same", padding_mode="circular"),
            nn.GELU(),
            nn.Conv2d(6, 3, (1, 2), dilation=(2, 1), bias=False),
        )
        self.norm = nn.LayerNorm([3, 2, 1])
        self.wide = nn.LayerNorm(4)
        self.head = nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.tensor([0.5, 1.5, -0.7]))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.head(self.norm(self.body(self.wide(x))).flatten(1))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(6, 4, padding_idx=2), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.table(x)).tanh().sum(1))


class Tied(nn.Module):
    """A weight used outside its layer, and another that two layers share: only vmap sees these rightly."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.a, self.b, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        if how == "shared":
            self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.b(self.a(x).tanh())
        if self.how == "outside":
            x = x @ self.a.weight
        if self.how == "keyword":
            x = self.a(input=x)
        if self.how == "data" and bool((x.sum() > 1e9).item()):  # control flow on data: not even vmap
            x = x * 2
        if self.how == "turned":  # a layer that sees the rows in another order
            x = self.a(x.flip(0)).flip(0)
        return self.head(x)


MODULES = {
    "reused": (Reused, (4,)),
    "pixels": (Pixels, (2, 4, 4)),
    "words": (Words, (5,)),
    **{
        how: ((lambda how=how: Tied(how)), (4,)) for how in ("shared", "outside", "keyword", "data", "turned")
    },
    "bilinear": (lambda: nn.Sequential(nn.Linear(4, 3), nn.PReLU(3)), (4,)),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("limit", [2000, 10**8])
def test_any_module(name: str, limit: int) -> None:
    torch.manual_seed(1)
    make, shape = MODULES[name]
    module: nn.Module = make().double()
    obs = torch.randint(0, 6, (9, *shape)) if name == "words" else torch.randn(9, *shape, dtype=f64)
    check_everything(module, obs, torch.randint(3, (9,)), categorical, memory_limit=limit)


def test_layers_with_a_formula_need_no_vmap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cheap way is taken where it serves; a free scalar goes through vmap alone."""
    asked: list[list[str]] = []
    real = Scorer.by_vmap
    monkeypatch.setattr(
        Scorer, "by_vmap", lambda self, names, o, a: (asked.append(list(names)), real(self, names, o, a))[1]
    )
    obs, action = torch.randn(5, 4), torch.randint(3, (5,))
    per_sample.squared_norms(Reused(), obs, action, log_prob=categorical)
    assert asked == []
    per_sample.squared_norms(Pixels(), torch.randn(5, 2, 4, 4), action, log_prob=categorical)
    assert {tuple(names) for names in asked} == {("scale", "unused")}
    asked.clear()
    per_sample.squared_norms(Tied("outside"), obs, action, log_prob=categorical)
    assert len(asked[0]) == 6


def test_frozen_parameters_have_zero_columns() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 3)).double()
    module[0].weight.requires_grad_(False)  # pyright: ignore
    module[2].bias.requires_grad_(False)  # pyright: ignore
    module[3].bias.requires_grad_(False)  # pyright: ignore
    exact = check_everything(module, torch.randn(6, 4, dtype=f64), torch.randint(3, (6,)), categorical)
    assert (exact[:, :16] == 0).all() and (exact[:, 16:20] != 0).any()


def test_raw_observations_and_prepared_ones() -> None:
    policy = make_policy(3, normalizer=True)
    policy.observe(5 + 3 * torch.randn(200, 3))
    obs, action = 5 + 3 * torch.randn(10, 3), torch.randint(3, (10,))
    raw = pgtrain.per_sample.gradients(policy, obs, action)
    torch.testing.assert_close(
        raw, pgtrain.per_sample.gradients(policy, policy.prepare(obs), action, prepared=True)
    )
    assert not torch.allclose(raw, pgtrain.per_sample.gradients(policy, obs, action, prepared=True))
    total = policy.evaluate_actor(policy.prepare(obs), action).log_prob.sum()
    total.backward()
    expected = torch.cat(
        [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in policy.parameters()]
    )
    torch.testing.assert_close(
        raw.sum(0), expected, rtol=1e-4, atol=1e-5
    )  # .grad is left alone, columns in order


def test_grad_is_left_as_it_is() -> None:
    policy = make_policy(3)
    per_sample.squared_norms(policy, torch.randn(4, 3), torch.randint(3, (4,)))
    per_sample.gradients(Reused(), torch.randn(4, 4), torch.randint(3, (4,)), log_prob=categorical)
    assert all(p.grad is None for p in policy.parameters())


def test_memory_of_norms_does_not_grow_with_the_parameters() -> None:
    """Peak bytes that torch holds at once: a few times batch × width, far from batch × parameters."""
    policy = make_policy(8, hidden=(128, 128))
    obs, action = torch.randn(512, 8), torch.randint(3, (512,))
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        per_sample.squared_norms(policy, obs, action)
    allocated = sum(max(event.self_cpu_memory_usage, 0) for event in prof.key_averages())
    assert allocated < 40 * 512 * (8 + 4 * 128) * 4  # all allocations together; [B, P] alone is 37 MB
    assert allocated < 0.6 * 512 * 17_667 * 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: per_sample.gradients(Reused(), torch.randn(2, 4), torch.zeros(2).long()), "log_prob"),
        (
            lambda: per_sample.gradients(make_policy(3), torch.randn(2, 3), torch.zeros(3).long()),
            "action has 3",
        ),
        (
            lambda: per_sample.gradients(
                nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
                torch.randn(2, 3),
                torch.zeros(2).long(),
                log_prob=categorical,
            ),
            "eval",
        ),
        (
            lambda: per_sample.squared_norms(
                Reused(), torch.randn(2, 4), torch.zeros(2).long(), log_prob=lambda m, o, a: m(o)
            ),
            "one number a sample",
        ),
        (
            lambda: per_sample.moments(
                make_policy(3), torch.randn(2, 3), torch.zeros(2).long(), torch.zeros(2, 1)
            ),
            "returns must be",
        ),
    ],
)
def test_mistakes_are_told(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_nothing_to_do() -> None:
    policy = make_policy(3)
    none = torch.zeros(0, 3), torch.zeros(0).long()
    assert per_sample.gradients(policy, *none).shape == (0, sum(p.numel() for p in policy.parameters()))
    assert per_sample.squared_norms(policy, *none).shape == (0,)
    out = torch.full((2,), -1)
    assert per_sample.squared_norms(policy, torch.zeros(2, 3), torch.zeros(2).long(), episode=out).shape == (
        0,
    )
    gap = per_sample.squared_norms(
        policy, torch.zeros(2, 3), torch.zeros(2).long(), episode=torch.tensor([2, 0])
    )
    assert gap.shape == (3,) and gap[1] == 0 and (gap[[0, 2]] > 0).all()


def test_a_dead_layer_is_zero_not_nan() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    with torch.no_grad():
        module[0].weight.zero_()  # pyright: ignore
        module[0].bias.fill_(-1.0)  # pyright: ignore
    exact = check_everything(module, torch.randn(5, 4, dtype=f64), torch.randint(3, (5,)), categorical)
    assert (exact[:, :20] == 0).all()


def test_both_forms_of_inner_products_are_met() -> None:
    """Few places in a large layer: by pairs of places; many in a small one: by the matrix. Here against each other."""
    generator = torch.Generator().manual_seed(0)
    for places, inputs, outputs in [(2, 30, 30), (40, 3, 2), (6, 5, 7)]:
        x = torch.randn(3, places, 2, inputs, generator=generator, dtype=f64)
        d = torch.randn(3, places, 2, outputs, generator=generator, dtype=f64)
        rows = layer_gradients.Outer(["weight", "bias"], x, d, bias=True)
        for parts in (1, 2, places):
            grouped = rows._grouped(parts)
            torch.testing.assert_close(rows.gram(parts), grouped @ grouped.mT)


def test_it_is_public() -> None:
    assert pgtrain.per_sample is per_sample
