"""What a library must leave as it was in the process that calls it."""

import os
import random
import signal
import threading
import warnings

import numpy as np
import torch
import torch._inductor.codecache  # torch imports it late; it sets environment and warnings


def host_state():
    numpy_state = np.random.get_state()  # noqa: NPY002
    return {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "threads of torch": torch.get_num_threads(),
        "number type": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matrix products": torch.get_float32_matmul_precision(),
        "random of torch": torch.get_rng_state().tolist(),
        "random of NumPy": (numpy_state[1].tolist(), *numpy_state[2:]),
        "random": random.getstate(),
        "errors of NumPy": np.geterr(),
        "warnings": list(warnings.filters),
        "Ctrl-C": signal.getsignal(signal.SIGINT),
        "threads": threading.active_count(),
    }
