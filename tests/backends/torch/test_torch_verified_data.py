"""What arrived at a rank is held against what one process loads, but for what is random in it."""

from __future__ import annotations

import pytest
from ranks import on

ALONE = on("torch", engines=("serial",), sizes=(1,))


@pytest.mark.parametrize("ranks", ALONE, indirect=True)
def test_samples_are_known_by_what_is_not_random_in_them(ranks):
    def body():
        import numpy as np
        import torch

        import hvdkit
        from hvdkit.tools.verification.given import _reloaded, identity, is_like
        from hvdkit.tools.verification.storage import Micro, sample_digests
        from hvdkit.tools.verification.torch_view import TorchView

        class Rows:
            def __init__(self, augmented, shift=0):
                self.augmented, self.shift = augmented, shift

            def __len__(self):
                return 9

            def __getitem__(self, place):
                noise = torch.rand(2) if self.augmented else torch.zeros(2)
                return torch.full((2,), float(place + self.shift)) + noise, place

        def as_named(augmented, places, named):
            inputs, targets = zip(*(Rows(augmented)[place] for place in places), strict=True)
            samples = sample_digests(torch.stack(inputs).numpy(), np.array(targets))
            due = _reloaded(TorchView(), Rows(augmented), Micro(1, 0, 2, 1.0, samples, "", named))
            return [is_like(*pair) for pair in zip(due, samples, strict=True)]

        found = [
            as_named(augmented, places, [3, 5]) for augmented in (False, True) for places in ([3, 5], [3, 4], [5, 3])
        ]
        validation = np.zeros((3, 2), np.float32), np.zeros(3)
        several = [hvdkit.Data(Rows(True, shift)) for shift in (0, 0, 1)]
        return found, [identity(TorchView(), data) for data in [*several, hvdkit.Data(Rows(True), validation)]]

    ((found, (first, again, other, validated)),) = ranks.run(body)
    assert found == 2 * [[True, True], [True, False], [False, False]]
    assert first == again
    assert len({first, other, validated}) == 3
