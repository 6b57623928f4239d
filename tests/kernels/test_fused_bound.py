"""The Triton kernels of the VAE's loss against plain float64 PyTorch."""

import pytest
import torch
from torch import Tensor
from triton_interpreter import DEVICE, HERE, WithoutGpu, needs_triton, off

from anocaps.networks.vae import elbo

pytestmark = needs_triton


def drawn(n: int, c: int, height: int, width: int, latents: int) -> tuple[Tensor, ...]:
    """Pixels, logits, and mean and log-variance as halves of one tensor."""
    g = torch.Generator().manual_seed(n)
    pixels = torch.rand(n, c, height, width, generator=g)
    logits = torch.randn(n, c, height, width, generator=g) * 5
    latent = torch.randn(n, 2 * latents, generator=g).to(DEVICE).requires_grad_()
    return pixels.to(DEVICE), logits.to(DEVICE).requires_grad_(), latent


def compare(pixels: Tensor, logits: Tensor, latent: Tensor) -> None:
    from anocaps.kernels.elbo import mean_loss

    loss = mean_loss(pixels, logits, *latent.chunk(2, 1))
    logits64, latent64 = (x.detach().double().requires_grad_() for x in (logits, latent))
    true = -elbo(pixels.double(), logits64, *latent64.chunk(2, 1)).mean()
    assert loss.dtype == torch.float32 and loss.shape == ()
    assert off(loss, true) < 1e-6
    mine = torch.autograd.grad(3 * loss, (logits, latent))
    for a, b in zip(mine, torch.autograd.grad(3 * true, (logits64, latent64))):
        assert a.dtype == torch.float32
        assert off(a, b) < 1e-6


class TestMeanLoss:
    __test__ = HERE

    @pytest.mark.parametrize(
        "shape", [(1, 1, 8, 8, 64), (3, 2, 9, 7, 5), (20, 1, 12, 12, 64), (2, 3, 1, 1, 1)]
    )
    def test_shapes(self, shape):
        compare(*drawn(*shape))

    def test_large_logits_and_black_and_white_pixels(self):
        pixels, logits, latent = drawn(2, 1, 6, 6, 8)
        with torch.no_grad():
            pixels.round_()
            logits.mul_(10).clamp_(-80, 80)
        compare(pixels, logits, latent)

    def test_any_order_of_memory(self):
        from anocaps.kernels.elbo import mean_loss

        pixels, logits, latent = drawn(3, 2, 5, 4, 6)
        mean, log_variance = latent.chunk(2, 1)
        want = mean_loss(pixels, logits, mean, log_variance)
        last = {"memory_format": torch.channels_last}
        assert torch.equal(
            mean_loss(pixels.contiguous(**last), logits, mean, log_variance.contiguous()), want
        )
        given = logits.detach().contiguous(**last).requires_grad_()
        got = mean_loss(pixels, given, mean.T.contiguous().T, log_variance)
        assert torch.equal(got, want)
        grads = torch.autograd.grad(got, given)[0], torch.autograd.grad(want, logits)[0]
        assert torch.equal(*grads)

    def test_not_a_number_is_not_hidden(self):
        from anocaps.kernels.elbo import mean_loss

        for k in (1, 2):  # a logit, a latent
            tensors = drawn(2, 1, 4, 4, 3)
            with torch.no_grad():
                tensors[k].view(-1)[1] = float("nan")
            assert mean_loss(*tensors[:2], *tensors[2].chunk(2, 1)).isnan()

    def test_what_does_not_fit_is_refused(self):
        from anocaps.base.errors import InputError
        from anocaps.kernels.elbo import mean_loss

        pixels, logits, latent = drawn(2, 1, 4, 4, 3)
        mean, log_variance = latent.chunk(2, 1)
        for message, arguments in {
            "fp32": (pixels, logits.double(), mean, log_variance),
            "no gradient": (pixels.clone().requires_grad_(), logits, mean, log_variance),
            "do not fit": (pixels[1:], logits, mean, log_variance),
        }.items():
            with pytest.raises(InputError, match=message):
                mean_loss(*arguments)


class TestWithoutGpu(WithoutGpu):
    __test__ = not HERE

    def test_cpu_tensors_are_left_to_the_plain_path(self):
        from anocaps.kernels.elbo import available

        assert not available(torch.zeros(1, 1, 8, 8))
