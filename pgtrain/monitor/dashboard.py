"""Every number that pgtrain shows, said once: what it is, its unit, and what it looks like when a run goes wrong.

TensorBoard's charts and texts, `metrics.jsonl`, the terminal and the README's legend all read these tables, so
they cannot disagree. `python -m pgtrain.monitor.dashboard` prints the legend for the README.
"""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """One number: `tag` names it in TensorBoard and JSONL, the rest is for people."""

    tag: str
    name: str
    meaning: str
    unit: str
    bad: str  # what it looks like when the run goes wrong
    section: str


class Chart(NamedTuple):
    """One chart of TensorBoard's Custom Scalars: lines, or a band (middle, lower edge, upper edge)."""

    title: str
    tags: tuple[str, ...]
    band: bool = False


LEARNING, LOSSES, POLICY = "Learning", "Losses", "Policy"
CRITIC, GRADIENT, TIME = "Advantage and critic", "Gradient health", "Time"
RESULT = (
    "Result"  # written once, at the end; the capital F puts it first among the columns of the HParams tab
)

METRICS: tuple[Metric, ...] = (
    Metric(
        "episode/return",
        "return",
        "Sum of an episode's raw rewards; mean over the episodes that ended since the last entry.",
        "reward",
        "Flat from the start: nothing is learned. Rises, then falls and stays low: the policy collapsed.",
        LEARNING,
    ),
    Metric(
        "episode/return_100",
        "return, last 100",
        "Mean return of the last 100 finished episodes: the calm version of the return.",
        "reward",
        "Falls by more than half of what was gained: updates are too large (lower `optim.lr.value`).",
        LEARNING,
    ),
    Metric(
        "episode/length",
        "episode length",
        "Steps of an episode; mean over the episodes that ended since the last entry.",
        "steps",
        "Stuck at the time limit where the goal is to finish, or near its first value where it is to survive.",
        LEARNING,
    ),
    Metric(
        "episode/count",
        "episodes",
        "Episodes that ended since the last entry.",
        "episodes",
        "0 for many iterations: episodes outlast the iteration, so returns are seen late and rarely.",
        LEARNING,
    ),
    Metric(
        "evaluation/return",
        "evaluation return",
        "Mean return of episodes played for measuring only, with the policy held fixed.",
        "reward",
        "Far below the training return: the policy needs its randomness, or the return was luck.",
        LEARNING,
    ),
    Metric(
        "reward/scale",
        "reward scale",
        "What rewards are divided by before learning (1: as they are). Returns shown are always raw.",
        "reward",
        "Jumps late in the run: all value targets jump with it.",
        LEARNING,
    ),
    Metric(
        "loss/actor",
        "actor loss",
        "What the policy's update lowers: -mean(advantage x log-probability, or x ratio). No error: need not go to 0.",
        "advantage",
        "NaN, or sudden peaks many times its usual size: a few samples rule the update.",
        LOSSES,
    ),
    Metric(
        "loss/critic",
        "critic loss",
        "Half the mean squared distance between the critic's value and its target. Grows along with returns.",
        "reward²",
        "Grows while the return does not: the critic diverges. Exactly constant: the critic learns nothing.",
        LOSSES,
    ),
    Metric(
        "policy/entropy",
        "entropy",
        "How undecided the policy is; ln(number of actions) means pure chance.",
        "nats",
        "Near 0 before the task is solved: it collapsed and tries nothing new. Stuck at the start: no learning.",
        POLICY,
    ),
    Metric(
        "policy/approx_kl",
        "KL",
        "How far this iteration's update moved the policy: estimated KL(old, new), measured after the update.",
        "nats",
        "Above 0.1, or peaks before a drop of the return: too large a step. Always 0: the policy does not move.",
        POLICY,
    ),
    Metric(
        "policy/kl",
        "exact KL",
        "KL(old, new) from the stored distributions, without sampling noise, measured after the update.",
        "nats",
        "As for KL; where the two differ much, the batch holds few or unlikely actions.",
        POLICY,
    ),
    Metric(
        "policy/std",
        "action std",
        "Mean standard deviation of a Gaussian policy: how widely it tries actions.",
        "action",
        "Shrinks to its lower limit early: exploration ends too soon. Grows without end: noise wins.",
        POLICY,
    ),
    Metric(
        "policy/clipped_actions",
        "clipped actions",
        "Share of sampled action components at the edge: outside the action box, which the env gets cut (Gaussian), or "
        "within 1 % of a bound (tanh_gaussian, beta).",
        "fraction",
        "Above 0.5: most actions are the edge; the policy cannot tell them apart.",
        POLICY,
    ),
    Metric(
        "policy/clip_fraction",
        "clip fraction",
        "Share of samples whose probability ratio new/old left the clip range; mean over the iteration's minibatches.",
        "fraction",
        "Above 0.3: too large a step or too many epochs. Always 0: the clip never acts; more could be learned.",
        POLICY,
    ),
    Metric(
        "policy/ratio_max",
        "largest ratio",
        "Largest probability ratio new/old in a minibatch; mean over the iteration's minibatches.",
        "1",
        "Far above 2: single actions have become many times likelier within one update.",
        POLICY,
    ),
    Metric(
        "update/epochs",
        "epochs",
        "Passes over the rollout that were made in this iteration.",
        "epochs",
        "Always 1 of many: the KL guard stops at once; lower `optim.lr.value`.",
        POLICY,
    ),
    Metric(
        "update/kl_guard",
        "KL guard",
        "How often the KL guard acted in this iteration: stopped or undid the update, or changed the learning rate.",
        "times",
        "In nearly every iteration (stop, skip): steps are too large for the limit.",
        POLICY,
    ),
    Metric(
        "schedule/clip",
        "clip range",
        "How far a probability ratio may move from 1 before its gradient ends.",
        "1",
        "Small and the clip fraction high: updates move the policy further than is used; fewer epochs.",
        POLICY,
    ),
    Metric(
        "schedule/kl_coef",
        "KL coefficient",
        "Weight of the KL penalty in the loss; it doubles after too large a KL and halves after too small a one.",
        "1",
        "Runs away in one direction: the target KL cannot be met at this learning rate.",
        POLICY,
    ),
    Metric(
        "schedule/entropy_coef",
        "entropy coefficient",
        "Weight of the entropy bonus in the loss.",
        "1",
        "So large that the entropy stays at its maximum: the bonus drowns the reward.",
        POLICY,
    ),
    Metric(
        "advantage/mean",
        "advantage mean",
        "Mean of how much better actions turned out than expected, before normalisation.",
        "reward",
        "Far from 0, seen against its std: the baseline or critic is biased.",
        CRITIC,
    ),
    Metric(
        "advantage/std",
        "advantage std",
        "Spread of the advantages, before normalisation: the strength of the learning signal.",
        "reward",
        "0: all actions look alike, there is nothing to learn from. Explodes: the critic diverges.",
        CRITIC,
    ),
    Metric(
        "advantage/min",
        "advantage min",
        "The worst surprise in the batch, before normalisation.",
        "reward",
        "Many std below the mean: one sample rules the update.",
        CRITIC,
    ),
    Metric(
        "advantage/max",
        "advantage max",
        "The best surprise in the batch, before normalisation.",
        "reward",
        "Many std above the mean: one sample rules the update.",
        CRITIC,
    ),
    Metric(
        "critic/explained_variance",
        "explained variance",
        "Share of the targets' variation that the critic foresaw: 1 perfect, 0 as good as a constant.",
        "1",
        "Below 0 after the first iterations: the critic is worse than a constant and adds noise.",
        CRITIC,
    ),
    Metric(
        "critic/value",
        "critic value",
        "Mean value that the critic expects: discounted reward still to come.",
        "reward",
        "Runs away from the discounted returns that are really reached.",
        CRITIC,
    ),
    Metric(
        "gradient/norm",
        "gradient norm",
        "Length of the gradient before the limit `optim.max_grad_norm`; mean over the iteration's updates.",
        "loss / parameter",
        "Always many times the limit: only the direction counts. 0: nothing is learned. Peaks: unstable.",
        GRADIENT,
    ),
    Metric(
        "gradient/skipped_updates",
        "skipped updates",
        "Updates left out so far since a loss or gradient was not finite.",
        "updates",
        "Anything above 0: look in `run.log` for the env and step where NaN or infinity came in.",
        GRADIENT,
    ),
    Metric(
        "gradient/skipped_share",
        "skipped share",
        "Share of all updates so far that were left out since a loss or gradient was not finite.",
        "fraction",
        "Above 0.01: little is learned, and what is skipped may be what matters. Lower `optim.lr.value` or `horizon`.",
        GRADIENT,
    ),
    Metric(
        "gradient/norm_first",
        "norm, first state",
        "Slope of a window's loss in the states after its first step: what came back through the whole window.",
        "loss / state",
        "Far above that of the last state: it explodes on its way back, take a shorter `horizon`. Near 0: it vanishes.",
        GRADIENT,
    ),
    Metric(
        "gradient/norm_last",
        "norm, last state",
        "Slope of a window's loss in the states before its last step: where the way back begins.",
        "loss / state",
        "Far above that of the first state: what early actions do late is lost. Explodes: the critic's slope does.",
        GRADIENT,
    ),
    Metric(
        "gradient/norm_through_time",
        "norm, largest",
        "The largest slope of a window's loss in the states of any one of its steps.",
        "loss / state",
        "Many times both ends: some states on the way (a contact, a clip, a pole) blow the gradient up.",
        GRADIENT,
    ),
    Metric(
        "gradient/norm_peak_step",
        "norm, peak at",
        "The step of the window whose states have that largest slope; counted from 0.",
        "step",
        "Always 1, with a norm that grows: the longer the way back the larger; `horizon` is too long.",
        GRADIENT,
    ),
    Metric(
        "gradient/alpha",
        "alpha",
        "Weight of the pathwise gradient in the mixture (mean over parameters); the score function has the rest.",
        "fraction",
        "Near 0: the dynamics are too stiff or jump; half of the envs is wasted, `algo=ppo` may do better.",
        GRADIENT,
    ),
    Metric(
        "gradient/variance_pathwise",
        "variance, pathwise",
        "Variance (summed over parameters) of the gradient by backpropagation through the env; last comparison.",
        "(loss / parameter)²",
        "Above that of the score function: too long a way back; a shorter `horizon`, or `algo=alpha_order`.",
        GRADIENT,
    ),
    Metric(
        "gradient/variance_score",
        "variance, score function",
        "Variance of the gradient that the score function would give, from the same kind of states and actions.",
        "(loss / parameter)²",
        "Below the pathwise one: then REINFORCE, A2C or PPO make better use of the same steps.",
        GRADIENT,
    ),
    Metric(
        "gradient/variance",
        "gradient variance",
        "Variance of one episode's policy gradient (fixed windows: of an env's piece of it), summed over parameters.",
        "(loss / parameter)²",
        "Jumps up or grows while the gradient does not: advantages explode; another baseline, `reward.scaling`.",
        GRADIENT,
    ),
    Metric(
        "gradient/snr",
        "gradient SNR",
        "Squared length of the true policy gradient / variance of the batch's: how far its direction can be trusted.",
        "1",
        "Below 1 for long: the update is mostly noise; more episodes an iteration, or a better baseline. "
        "Near 0 or negative is usual where nothing is left to learn.",
        GRADIENT,
    ),
    Metric(
        "gradient/noise_scale",
        "gradient noise scale",
        "The batch size, in episodes (pieces), at which noise equals signal and more of them stop paying. Averaged.",
        "episodes",
        "Far above the episodes of an iteration: larger batches are worth it. Far below: steps are wasted.",
        GRADIENT,
    ),
    Metric(
        "gradient/update_cosine",
        "update cosine",
        "Cosine of the angle between two successive updates: 1 straight on, 0 unrelated, -1 back again.",
        "1",
        "Near -1: updates undo each other; lower `optim.lr.value`. Near 0 for long: noise rules.",
        GRADIENT,
    ),
    Metric(
        "gradient/share_first",
        "share of first layer",
        "Part of the squared policy gradient that falls on the actor's first layer.",
        "fraction",
        "0 from some point on: the layer is cut off (saturated or dead units), and inputs are no longer learned from.",
        GRADIENT,
    ),
    Metric(
        "gradient/share_hidden",
        "share of hidden layers",
        "Part of the squared policy gradient that falls on the layers between first and last.",
        "fraction",
        "0 from some point on: saturated or dead units.",
        GRADIENT,
    ),
    Metric(
        "gradient/share_last",
        "share of last layer",
        "Part of the squared policy gradient that falls on the actor's last layer. Near 1 in the first iterations.",
        "fraction",
        "Stays at 1: only the output layer learns; `policy.last_layer_gain` or activations are too small or saturated.",
        GRADIENT,
    ),
    Metric(
        "gradient/share_spread",
        "share of log std",
        "Part of the squared policy gradient that falls on a Gaussian's free spread; 0 for other policies.",
        "fraction",
        "Near 1: updates change how widely is tried, hardly what.",
        GRADIENT,
    ),
    Metric(
        "update/line_search_trials",
        "line search trials",
        "Steps that the line search tried in this iteration, each shorter than the one before.",
        "trials",
        "Often more than 3: the surface is more curved than the natural gradient assumes; raise the damping.",
        GRADIENT,
    ),
    Metric(
        "update/line_search_failed",
        "failed line searches",
        "Line searches so far in which no step was good enough, so that the policy stayed as it was.",
        "updates",
        "Grows with nearly every iteration: nothing is learned. A larger batch, more damping or more CG iterations.",
        GRADIENT,
    ),
    Metric(
        "update/cg_residual",
        "CG residual",
        "Length of the remainder b - Ax that the conjugate gradient left, as a share of that of b.",
        "1",
        "Above 0.1: the direction is only roughly the natural gradient; more iterations or more damping.",
        GRADIENT,
    ),
    Metric(
        "schedule/learning_rate",
        "learning rate",
        "Step size of the optimiser.",
        "1",
        "Too large: KL and return jump. Too small: nothing moves.",
        GRADIENT,
    ),
    Metric(
        "time/steps_per_second",
        "steps/s",
        "Environment steps per second of wall time in this iteration, all envs together.",
        "steps/s",
        "Sinks during the run: other programs want the processor, or an env slows down.",
        TIME,
    ),
    Metric(
        "time/collect",
        "time: collect",
        "Time spent on playing: policy and envs.",
        "s / iteration",
        "Nearly all of the time: the envs are the bottleneck (more `num_envs`, `env.backend=process`).",
        TIME,
    ),
    Metric(
        "time/estimate",
        "time: estimate",
        "Time spent on returns, values and advantages.",
        "s / iteration",
        "More than a few percent of the iteration.",
        TIME,
    ),
    Metric(
        "time/update",
        "time: update",
        "Time spent on gradients and optimiser steps.",
        "s / iteration",
        "Nearly all of the time: fewer epochs, larger minibatches, or a smaller network.",
        TIME,
    ),
    Metric(
        "time/log",
        "time: log",
        "Time that the previous entry of this dashboard took.",
        "s / entry",
        "More than 2 % of the time between two entries (raise `monitor.log_every`).",
        TIME,
    ),
    Metric(
        "progress/iteration",
        "iteration",
        "Iterations so far: one is a rollout and the update from it.",
        "iterations",
        "Few at the end of the run: too few updates; make the rollout shorter.",
        TIME,
    ),
    Metric(
        "progress/steps",
        "steps",
        "Environment steps so far, summed over all envs. The x-axis of every chart.",
        "steps",
        "Does not grow: an env hangs.",
        TIME,
    ),
    Metric(
        "Final/evaluation_return",
        "final evaluation",
        "Mean return of the final evaluation, to compare runs in the HParams tab.",
        "reward",
        "Far below `Final/return_100`: the policy needs its randomness, or the return was luck.",
        RESULT,
    ),
    Metric(
        "Final/return_100",
        "final return",
        "Mean return of the last 100 training episodes.",
        "reward",
        "Differs widely between seeds: the setting is not reliable; compare several seeds.",
        RESULT,
    ),
    Metric(
        "Final/steps_per_second",
        "overall steps/s",
        "Environment steps per second over the whole run.",
        "steps/s",
        "Far below the usual `time/steps_per_second`: time went into evaluation, checkpoints or start-up.",
        RESULT,
    ),
)

SECTIONS: tuple[str, ...] = tuple(dict.fromkeys(metric.section for metric in METRICS))
BY_TAG: dict[str, Metric] = {metric.tag: metric for metric in METRICS}

# What TensorBoard's Custom Scalars tab shows: curves that are read together share a chart.
CHARTS: dict[str, tuple[Chart, ...]] = {
    LEARNING: (
        Chart("Return", ("episode/return", "episode/return_100", "evaluation/return")),
        Chart("Episode length", ("episode/length",)),
        Chart("Episodes per entry", ("episode/count",)),
        Chart("Reward scale", ("reward/scale",)),
    ),
    LOSSES: (Chart("Actor loss", ("loss/actor",)), Chart("Critic loss", ("loss/critic",))),
    POLICY: (
        Chart("Entropy", ("policy/entropy",)),
        Chart("KL of one iteration's update", ("policy/approx_kl", "policy/kl")),
        Chart("Continuous actions: std, clipped", ("policy/std", "policy/clipped_actions")),
        Chart("Probability ratio: share clipped", ("policy/clip_fraction",)),
        Chart("Probability ratio: largest", ("policy/ratio_max",)),
        Chart("Epochs, KL guard", ("update/epochs", "update/kl_guard")),
        Chart("Clip range", ("schedule/clip",)),
        Chart("KL coefficient", ("schedule/kl_coef",)),
        Chart("Entropy coefficient", ("schedule/entropy_coef",)),
    ),
    CRITIC: (
        Chart("Advantage: mean, min to max", ("advantage/mean", "advantage/min", "advantage/max"), band=True),
        Chart("Advantage: std", ("advantage/std",)),
        Chart("Explained variance", ("critic/explained_variance",)),
        Chart("Critic value", ("critic/value",)),
    ),
    GRADIENT: (
        Chart("Gradient norm before the limit", ("gradient/norm",)),
        Chart("Gradient variance", ("gradient/variance",)),
        Chart("Gradient SNR", ("gradient/snr",)),
        Chart("Gradient noise scale", ("gradient/noise_scale",)),
        Chart("Cosine of successive updates", ("gradient/update_cosine",)),
        Chart(
            "Share of the gradient by layer",
            ("gradient/share_first", "gradient/share_hidden", "gradient/share_last", "gradient/share_spread"),
        ),
        Chart("Skipped updates", ("gradient/skipped_updates",)),
        Chart("Skipped updates, share", ("gradient/skipped_share",)),
        Chart(
            "Gradient through time",
            ("gradient/norm_first", "gradient/norm_last", "gradient/norm_through_time"),
        ),
        Chart("Gradient through time: peak at step", ("gradient/norm_peak_step",)),
        Chart("Weight of the pathwise gradient", ("gradient/alpha",)),
        Chart(
            "Gradient variance: pathwise, score function",
            ("gradient/variance_pathwise", "gradient/variance_score"),
        ),
        Chart("Line search: trials", ("update/line_search_trials",)),
        Chart("Line search: failed so far", ("update/line_search_failed",)),
        Chart("CG residual", ("update/cg_residual",)),
        Chart("Learning rate", ("schedule/learning_rate",)),
    ),
    TIME: (
        Chart("Steps per second", ("time/steps_per_second",)),
        Chart("Seconds per iteration", ("time/collect", "time/estimate", "time/update", "time/log")),
        Chart("Progress", ("progress/iteration", "progress/steps")),
    ),
}


def legend_table() -> list[tuple[str, str, str, str, str, str]]:
    """The legend as rows: section, name, tag, meaning, unit, what bad looks like."""
    return [(m.section, m.name, m.tag, m.meaning, m.unit, m.bad) for m in METRICS]


def legend_markdown() -> str:
    """The legend as Markdown, one table a section under its name; pasted into the README."""
    lines: list[str] = []
    for section in SECTIONS:
        lines += [f"**{section}**", ""]
        lines += ["| name | tag | meaning | unit | what bad looks like |", "|---|---|---|---|---|"]
        lines += [
            f"| {m.name} | `{m.tag}` | {m.meaning} | {m.unit} | {m.bad} |"
            for m in METRICS
            if m.section == section
        ]
        lines.append("")
    return "\n".join(lines)


def section_markdown(section: str) -> str:
    """One section's table in three columns, for TensorBoard's Text tab: it breaks the words of narrow columns."""
    lines = ["| metric (unit) | meaning | what bad looks like |", "|---|---|---|"]
    lines += [
        f"| {m.name} ({m.unit}) `{m.tag}` | {m.meaning} | {m.bad} |" for m in METRICS if m.section == section
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(legend_markdown(), end="")
