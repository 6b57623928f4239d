# ruff: noqa
"""Step times with and without (a) the baselines' kernels, (b) the hand-written Adam."""

import json, os, statistics, sys, time
import numpy as np, torch
from anocaps.detectors.cnn_ocsvm import cnn_loss
from anocaps.detectors.vae import vae_loss
from anocaps.networks import cnn as cnn_module, vae as vae_module
from anocaps.networks.cnn import CNN
from anocaps.networks.vae import VAE
from anocaps.training import loop
from anocaps.training.loop import Run, TrainingConfig
from anocaps.training.preprocessing import Preprocessing
from anocaps.kernels import elbo as bound, adam as fused_adam
import common as W

dev = torch.device("cuda")
rng = np.random.default_rng(0)


def noise(n, side, c):
    return rng.integers(0, 256, (n, side, side, c), dtype=np.uint8), np.arange(n) % 9


def make(kind, side, c, batch, seed, std):
    images, labels = noise(6000, side, c)
    p = (
        Preprocessing(side, side, c, standardize=std)
        if kind == "cnn"
        else Preprocessing(side, side, c)
    )
    torch.manual_seed(seed)
    gen = None
    if kind == "cnn":
        net = CNN(c, side, side, 9)
        net.to(dev)
        loss = cnn_loss(net, p)
    else:
        net = VAE(c, side, side)
        net.to(dev)
        gen = torch.Generator(dev).manual_seed(seed)
        loss = vae_loss(net, gen)
    return Run(
        net,
        loss,
        images,
        labels.astype(np.int64),
        p,
        TrainingConfig(epochs=1000, batch_size=batch, precision="bf16", seed=seed),
        dev,
        noise=gen,
    )


def timed(runs, repeats=7, per=60):
    step = W.steps_of(runs, per)
    for r in runs:
        r.prepare(alone=len(runs) == 1)
    step()
    torch.cuda.synchronize()
    out = []
    for _ in range(repeats):
        t = time.perf_counter()
        step()
        torch.cuda.synchronize()
        out.append((time.perf_counter() - t) / per / len(runs) * 1e3)
    return dict(median=statistics.median(out), low=min(out), high=max(out))


found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
plain_in = cnn_module.in_bfloat16
for kind, side, c, batch, fleet in (
    ("cnn", 28, 1, 100, 11),
    ("vae", 28, 1, 100, 11),
    ("cnn", 32, 2, 64, 5),
    ("vae", 32, 2, 64, 5),
):
    for fast in (True, False, True, False):
        if not fast:
            cnn_module.in_bfloat16 = vae_module.in_bfloat16 = lambda x: False
            bound_av = bound.available
            bound.available = lambda *_: False
            cnn_module.Network.round_weights_ = cnn_module.Network.round_weights
            cnn_module.Network.round_weights = lambda self: {}
        try:
            runs = [
                make(kind, side, c, batch, s, None)
                if False
                else make(kind, side, c, batch, s, False)
                for s in range(fleet)
            ]
            r = timed(runs)
        except Exception as e:
            r = {"error": repr(e)[:300]}
        found.setdefault(
            f"{kind} {side} fleet {fleet} {'kernels' if fast else 'torch'}", []
        ).append(r)
        print(kind, side, fast, r, flush=True)
        if not fast:
            cnn_module.in_bfloat16 = vae_module.in_bfloat16 = plain_in
            bound.available = bound_av
            cnn_module.Network.round_weights = cnn_module.Network.round_weights_
        runs = None
        torch.cuda.empty_cache()


# (b) Adam
class TorchAdam(fused_adam.Adam):
    """torch's fused capturable Adam, with bf16 copies by one foreach copy."""

    def __init__(self, parameters, rate, decay, rounded=None):
        super().__init__(parameters, rate, decay)
        self.rounded = dict(rounded or {})
        self.round()

    def step(self):
        super().step()
        self.round()

    @torch.no_grad()
    def round(self):
        if self.rounded:
            torch._foreach_copy_(list(self.rounded.values()), [p.detach() for p in self.rounded])


orig = loop.Run._adam


def torch_adam(self):
    ps = list(self.network.parameters())
    rounded = (
        self.network.round_weights()
        if hasattr(self.network, "round_weights") and self.config.precision == "bf16"
        else {}
    )
    return TorchAdam(ps, self.rate, self.decay, rounded)


for preset, n in (("paper", 1), ("paper", 10), ("deep", 1), ("deep", 10)):
    for hand in (True, False, True, False):
        loop.Run._adam = orig if hand else torch_adam
        try:
            runs = [W.make_run(W.Kind(preset), s, dev, 6000) for s in range(n)]
            r = timed(runs)
        except Exception as e:
            import traceback

            traceback.print_exc()
            r = {"error": repr(e)[:300]}
        found.setdefault(
            f"{preset} {n} networks {'hand-written' if hand else 'torch'} Adam", []
        ).append(r)
        print(preset, n, "hand" if hand else "torch", r, flush=True)
        runs = None
        torch.cuda.empty_cache()
json.dump(
    found, open(os.path.join(os.environ.get("OUT", "."), "kernel-choices.json"), "w"), indent=1
)
