"""Warm-up beside other schedulers, after a restore, and over groups of several rates."""

from __future__ import annotations

import pytest
from ranks import on

ONE = on("torch", engines=("serial",), sizes=(1,))
TWO = on("torch", engines=("torch",))


@pytest.mark.parametrize("often", ["every update", "every epoch"])
@pytest.mark.parametrize("first", ["warm-up first", "warm-up second"])
@pytest.mark.parametrize("kind", ["step", "exponential", "lambda", "cosine", "one cycle", "plateau"])
@pytest.mark.parametrize("ranks", ONE, indirect=True)
def test_r15_warmup_multiplies_the_rates_of_any_scheduler_beside_it(ranks, kind, first, often):
    def body():
        import torch
        from torch.optim import lr_scheduler as schedulers

        import hvdkit.torch as hk

        def schedule(optimizer):
            return {
                "step": lambda: schedulers.StepLR(optimizer, 2, gamma=0.1),
                "exponential": lambda: schedulers.ExponentialLR(optimizer, 0.9),
                "lambda": lambda: schedulers.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
                "cosine": lambda: schedulers.CosineAnnealingLR(optimizer, 12),
                "one cycle": lambda: schedulers.OneCycleLR(optimizer, 0.5, 12, cycle_momentum=False),
                "plateau": lambda: schedulers.ReduceLROnPlateau(optimizer, patience=1),
            }[kind]()

        def rates(warm):
            weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
            optimizer = torch.optim.SGD([weight], lr=0.2)
            beside = None if first == "warm-up first" else schedule(optimizer)
            warming = hk.warmup(optimizer, base=0.1, steps_per_epoch=2, epochs=2) if warm else None
            beside = beside or schedule(optimizer)
            steps = []
            for step in range(10):
                if warming is not None:
                    said = warming.get_last_lr()[0]
                before = weight.item()
                weight.grad = torch.ones((), dtype=torch.float64)
                optimizer.step()
                steps.append(before - weight.item())
                if warming is not None:
                    assert said == pytest.approx(steps[-1], rel=1e-9)
                    warming.step()
                if often == "every update" or step % 2:
                    beside.step(*([1.0] if kind == "plateau" else []))
            return steps

        return rates(True), rates(False)

    if (kind, first) == ("one cycle", "warm-up second"):
        # the rate is a twenty-fifth of the highest at once, so that there is nothing to raise
        with pytest.raises(AssertionError, match="warmup would lower the rate"):
            ranks.run(body)
        return
    ((warm, plain),) = ranks.run(body)
    shares = [0.625, 0.75, 0.875, *[1.0] * 7]
    assert warm == pytest.approx([share * rate for share, rate in zip(shares, plain, strict=True)], rel=1e-9)


@pytest.mark.parametrize("after", [1, 3, 7])
@pytest.mark.parametrize("ranks", ONE, indirect=True)
def test_r15_warmup_that_is_made_after_restore_goes_on(ranks, after, tmp_path):
    def body():
        import torch

        import hvdkit.torch as hk

        def made():
            model = torch.nn.Linear(1, 1)
            return model, torch.optim.SGD(model.parameters(), lr=0.4)

        def train(model, optimizer, warming, number):
            rates = []
            for _ in range(number):
                rates.append(warming.get_last_lr()[0])
                model(torch.ones(1, 1)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                warming.step()
            return rates

        def warm(optimizer):
            return hk.warmup(optimizer, base=0.1, steps_per_epoch=5, epochs=1)

        model, optimizer = made()
        rates = train(model, optimizer, warm(optimizer), after)
        hk.save(str(tmp_path / "x.pt"), model, optimizer)
        model, optimizer = made()
        hk.restore(str(tmp_path / "x.pt"), model, optimizer)
        rates += train(model, optimizer, warm(optimizer), 8 - after)
        # the same optimizer once more, from the start
        return rates, train(model, optimizer, warm(optimizer), 2)

    ((rates, again),) = ranks.run(body)
    assert rates == pytest.approx([0.16, 0.22, 0.28, 0.34, *[0.4] * 4])
    assert again == pytest.approx([0.16, 0.22])


@pytest.mark.parametrize("ranks", ONE, indirect=True)
def test_r15_an_initial_rate_that_an_older_scheduler_left_does_not_count(ranks):
    def body():
        import torch

        import hvdkit.torch as hk

        weight = torch.nn.Parameter(torch.zeros(()))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        torch.optim.lr_scheduler.StepLR(optimizer, 10)
        for group in optimizer.param_groups:
            group["lr"] = 0.2
        warming = hk.warmup(optimizer, base=0.1, steps_per_epoch=2, epochs=1)
        rates = []
        for _ in range(4):
            rates.append(warming.get_last_lr()[0])
            optimizer.step()
            warming.step()
        return rates

    assert ranks.run(body) == [pytest.approx([0.15, 0.2, 0.2, 0.2])]


@pytest.mark.parametrize("ranks", [*ONE, *TWO], indirect=True)
def test_r18_a_first_group_of_rate_zero_stays_at_zero_and_the_others_follow_the_schedule(ranks):
    def body():
        import torch
        from torch_cases import samples

        import hvdkit
        from hvdkit.training.observers import Observer

        seen = []

        class Rates(Observer):
            def on_step_end(self, trainer):
                seen.append([group["lr"] for group in trainer.optimizer.param_groups])

        def groups(parameters):
            parameters = list(parameters)
            return torch.optim.SGD(
                [
                    {"params": parameters[:1], "lr": 0.0},
                    {"params": parameters[1:2], "lr": 0.1},
                    {"params": parameters[2:]},
                ],
                lr=0.2,
            )

        recipe = hvdkit.Recipe(
            model=lambda: torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 4)),
            data=hvdkit.Data(samples(16, torch.float32)),
            optimizer=groups,
            batch_size=4,
            schedule=lambda epoch: 0.5 if epoch >= 1 else 1.0,
            epochs=2,
            observers=(Rates(),),
        )
        hvdkit.apply(recipe, "torch").fit()
        return seen

    size = ranks.size
    for seen in ranks.run(body):
        assert seen[0] == pytest.approx([0.0, 0.1 * size, 0.2 * size])
        assert seen[-1] == pytest.approx([0.0, 0.05 * size, 0.1 * size])
