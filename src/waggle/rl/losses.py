"""Policy-gradient losses by name, as pure functions from per-token tensors to per-token losses.

With `r = exp(logprob - old)` and advantage A, per token (all are divided by the number of trainable tokens of
the whole optimiser step, by the trainer):

- `reinforce`: `-A logprob` (Williams 1992), the ratio plays no part.
- `clip`: `-min(r A, clamp(r, 1 - low, 1 + high) A)`, PPO (1707.06347) with the asymmetric bounds of DAPO
  (2503.14476).
- `cispo`: `-sg(min(r, 1 + high)) A logprob`, MiniMax-M1 (2506.13585): the weight is clipped, no token is lost.
- `soft_gate`: `-(4 / tau) sigmoid(tau (r - 1)) A`, tau 1.0 for positive and 1.05 for negative advantages
  (2511.20347): a gradient weight that is 1 at r = 1 and fades smoothly on both sides.

Foreign tokens with a negative advantage are bounded in all of them as in TOPR (2503.14286): the ratio is at
most 1, with the gradient of a weight of 1, so that an answer of a peer that I find likelier than he did is
pushed down no harder than my own would be. Left out: a penalty towards a reference model.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from waggle.core.own import is_own, of_the_user, own_function

MAX_LOG_RATIO = 10.0
"""Log-ratios are clamped to this many nats either way before they are exponentiated."""
TAU_POSITIVE, TAU_NEGATIVE = 1.0, 1.05


@dataclass(frozen=True)
class LossInputs:
    """Per trained token, float32 [N] except where said. Example: `LossInputs(lp_N, lp_N.detach(), a_N, foreign_N)`."""

    logprobs_N: Tensor
    """Of my current policy, with gradient."""
    old_N: Tensor
    """Of the policy that sampled the token."""
    advantages_N: Tensor
    foreign_N: Tensor
    """Whether a peer sampled it, bool."""
    clip_low: float = 0.2
    clip_high: float = 0.28

    @property
    def ratio_N(self) -> Tensor:
        """Probability ratio, unbounded but for the clamp."""
        return (self.logprobs_N - self.old_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


Loss = Callable[[LossInputs], Tensor]


def bounded_ratio(x: LossInputs) -> Tensor:
    """The ratio, at most 1 on foreign tokens with a negative advantage; the bound scales the gradient too."""
    ratio_N = x.ratio_N
    bound_N = x.foreign_N & (x.advantages_N < 0) & (ratio_N > 1)
    return torch.where(bound_N, ratio_N / ratio_N.detach(), ratio_N)


def reinforce(x: LossInputs) -> Tensor:
    """`-A logprob`; foreign negatives weigh `sg(min(r, 1))`, which makes it TOPR on them."""
    foreign_negative_N = x.foreign_N & (x.advantages_N < 0)
    weight_N = torch.where(foreign_negative_N, x.ratio_N.detach().clamp(max=1.0), 1.0)
    return -weight_N * x.advantages_N * x.logprobs_N


def clip(x: LossInputs) -> Tensor:
    """`-min(r A, clamp(r, 1 - low, 1 + high) A)`."""
    ratio_N = bounded_ratio(x)
    clipped_N = ratio_N.clamp(1 - x.clip_low, 1 + x.clip_high)
    return -torch.minimum(ratio_N * x.advantages_N, clipped_N * x.advantages_N)


def cispo(x: LossInputs) -> Tensor:
    """`-sg(min(r, 1 + high)) A logprob`."""
    weight_N = bounded_ratio(x).detach().clamp(max=1 + x.clip_high)
    return -weight_N * x.advantages_N * x.logprobs_N


def soft_gate(x: LossInputs) -> Tensor:
    """`-(4 / tau) sigmoid(tau (r - 1)) A`."""
    tau_N = torch.where(x.advantages_N > 0, TAU_POSITIVE, TAU_NEGATIVE)
    return -(4 / tau_N) * torch.sigmoid(tau_N * (bounded_ratio(x) - 1)) * x.advantages_N


def own(name: str) -> Loss:
    """A loss of the user's own, kept to a number a token.

    Raises:
        ConfigError: there is no such function.
    """
    function = own_function(name)

    def loss(x: LossInputs) -> Tensor:
        with of_the_user(name):
            loss_N = function(x)
            if not isinstance(loss_N, Tensor) or loss_N.shape != x.logprobs_N.shape:
                raise ValueError(f"it has to return a tensor of shape {tuple(x.logprobs_N.shape)}")
        return loss_N

    return loss


def loss_of(name: str) -> Loss:
    """The loss of a name that `learn.loss` uses.

    Raises:
        ConfigError: it names a function that does not exist.
    """
    return own(name) if is_own(name) else LOSSES[name]


LOSSES: dict[str, Loss] = {"clip": clip, "cispo": cispo, "soft_gate": soft_gate, "reinforce": reinforce}


def clipped(x: LossInputs) -> tuple[Tensor, Tensor]:
    """Which tokens lie beyond the lower and the upper bound on the side where it bites, bool [N] each."""
    ratio_N = x.ratio_N.detach()
    low_N = (x.advantages_N < 0) & (ratio_N < 1 - x.clip_low)
    return low_N, (x.advantages_N > 0) & (ratio_N > 1 + x.clip_high)
