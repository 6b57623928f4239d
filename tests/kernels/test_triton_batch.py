"""The Triton batch against Preprocessing.windows, bit by bit; see triton_interpreter.py."""

import numpy as np
import pytest
import torch
from triton_interpreter import DEVICE, HERE, WithoutGpu, needs_triton

from anocaps.training.preprocessing import Preprocessing

pytestmark = needs_triton


class TestTake:
    __test__ = HERE

    @pytest.mark.parametrize("dtype", [np.uint8, np.float32])
    @pytest.mark.parametrize(
        ("height", "width", "channels", "crop", "shift"),
        [(5, 7, 1, None, 0), (6, 5, 3, None, 2), (9, 8, 2, 4, 0), (9, 8, 3, 5, 1)],
    )
    def test_the_next_windows(self, height, width, channels, crop, shift, dtype, monkeypatch):
        from anocaps.kernels.triton import batch as kernels

        monkeypatch.setattr(kernels, "NUMBERS", 32)  # several programs an image
        generator = np.random.default_rng(0)
        bytes_ = generator.integers(0, 256, (10, height, width, channels), dtype=np.uint8)
        images = bytes_ if dtype == np.uint8 else bytes_.astype(np.float32) / 300
        preprocessing = Preprocessing(height, width, channels, crop, shift)
        padded = preprocessing.pad(torch.from_numpy(images))
        order = torch.from_numpy(generator.permutation(10))
        offsets = torch.from_numpy(preprocessing.draw_offsets(generator, 10))
        labels = torch.arange(10) * 7
        for cursor in (0, 6):
            batch = slice(cursor, cursor + 4)
            right = preprocessing.windows(padded, order[batch], offsets[batch])
            found, taken = kernels.take(
                *(x.to(DEVICE) for x in (padded, labels, order, offsets, torch.tensor(cursor))),
                4,
                preprocessing.window,
            )
            assert found.dtype == torch.float32
            assert torch.equal(found.cpu(), right)
            assert torch.equal(taken.cpu(), labels[order[batch]])


class TestWithoutGpu(WithoutGpu):
    __test__ = not HERE
