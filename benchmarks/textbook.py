"""The textbook network with the paper's two scores: what the speed scripts compare anocaps with."""

from torch import Tensor

from anocaps.capsules import textbook
from anocaps.capsules.textbook import lengths


class TextbookCapsNet(textbook.TextbookCapsNet):
    def pp(self, x: Tensor) -> Tensor:
        """PP of [N, 1, 28, 28], which needs no decoder."""
        return lengths(self(x)).amax(1)

    def scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """PP and RE of [N, 1, 28, 28]."""
        capsules = self(x)
        length = lengths(capsules)
        reconstruction = self.decode(capsules, length.argmax(1))
        error = (x - reconstruction).square().flatten(1).sum(1)
        return length.amax(1), -error / x.flatten(1).norm(dim=1)
