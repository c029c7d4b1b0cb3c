"""The reducer under what users do with models and optimizers: strides, fused and compiled, shared, several, thawed."""

from __future__ import annotations

import pytest
from ranks import on

ENGINES = on("torch", engines=("torch", "mpi", "horovod"))


def both(build, loss, make_optimizer, steps=20, after=None, **settings):
    """Train two ranks on halves and one model on the whole batch; return distance and digest."""
    import torch
    from torch_cases import digest, distance, flat, rank

    import hvdkit.torch as hk

    def made(seed):
        torch.manual_seed(seed)
        model = build().double()
        return model, make_optimizer(model)

    (model, optimizer), (reference, plain) = made(rank()), made(0)
    start = flat(reference)
    hk.distribute(optimizer, model, **settings)
    hk.broadcast(model, optimizer)
    torch.manual_seed(5)
    for step in range(steps):
        x = torch.randn(4, 6, dtype=torch.float64)
        loss(model, x[2 * rank() : 2 * rank() + 2]).backward()
        loss(reference, x).backward()
        for each in (optimizer, plain):
            each.step()
            each.zero_grad()
        if after is not None:
            after(model, step)
            after(reference, step)
    return distance(model, reference, start), digest(model, optimizer)


def same_and_close(results, band=1e-10):
    (distance, digest), *others = results
    assert distance <= band
    assert all(other == (distance, digest) for other in others)


def sgd(model):
    import torch

    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


@pytest.mark.parametrize("kind", ["channels_last_3d", "transposed", "expanded"])
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_parameters_and_gradients_of_any_strides_equal_one_process(ranks, kind):
    def body():
        import torch
        from torch import nn

        class Transposed(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.randn(4, 6).t())

            def forward(self, x):
                seen.append(self.weight.grad is None or self.weight.grad.stride() == self.weight.stride())
                return x @ self.weight

        class Expanded(nn.Module):
            """The gradient of a sum is one number, spread over the parameter without memory of its own."""

            def __init__(self):
                super().__init__()
                self.shift, self.scale = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(()))

            def forward(self, x):
                return self.scale * x.mean() + self.shift.sum().square() / 10

        def volumes():
            layers = nn.Conv3d(1, 3, (1, 2, 2)), nn.Tanh(), nn.Conv3d(3, 2, 1)
            return nn.Sequential(*layers).to(memory_format=torch.channels_last_3d)

        def loss(model, x):
            if kind == "channels_last_3d":
                x = x.reshape(-1, 1, 1, 2, 3).to(memory_format=torch.channels_last_3d)
            return model(x).square().mean() if kind != "expanded" else model(x)

        seen = []
        build = {"channels_last_3d": volumes, "transposed": Transposed, "expanded": Expanded}[kind]
        return both(build, loss, sgd), all(seen)

    results = ranks.run(body)
    same_and_close([result for result, _ in results])
    assert all(seen for _, seen in results)


@pytest.mark.parametrize("setting", ["foreach", "fused"])
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_foreach_and_fused_optimizers_equal_one_process(ranks, kind, setting):
    def body():
        import torch
        from torch_cases import mlp

        def make(model):
            return getattr(torch.optim, kind)(model.parameters(), lr=0.05, **{setting: True})

        return both(mlp, lambda model, x: model(x).square().mean(), make)

    same_and_close(ranks.run(body))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_compiled_models_equal_one_process(ranks, backend):
    def body():
        import torch
        from torch_cases import mlp

        def loss(model, x):
            call = compiled.setdefault(model, torch.compile(model, backend=backend))
            return call(x).square().mean()

        compiled = {}
        return both(mlp, loss, sgd)

    same_and_close(ranks.run(body))


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_a_shared_parameter_and_layers_frozen_later_and_thawed_again_equal_one_process(ranks):
    def body():
        import torch
        from torch import nn

        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.middle, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
                self.last.weight = self.first.weight

            def forward(self, x):
                return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))

        def switch(model, step):
            if step in (5, 9):
                model.middle.requires_grad_(step == 9)
            if step == 7:
                model.first.weight.requires_grad_(False)

        return both(Tied, lambda model, x: model(x).square().mean(), sgd, after=switch)

    same_and_close(ranks.run(body))


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_several_optimizers_on_one_model_do_not_disturb_each_other(ranks):
    def body():
        import torch
        from torch_cases import digest, distance, flat, rank

        import hvdkit.torch as hk

        def made(seed):
            torch.manual_seed(seed)
            model = torch.nn.ModuleList([torch.nn.Linear(6, 3) for _ in range(2)]).double()
            return model, [torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.9) for part in model]

        (model, optimizers), (reference, plain) = made(rank()), made(0)
        start = flat(reference)
        for optimizer in optimizers:
            hk.distribute(optimizer, model)
        for optimizer in optimizers:
            hk.broadcast(model, optimizer)
        random = torch.Generator().manual_seed(3)
        for _ in range(20):
            x = torch.randn(4, 6, dtype=torch.float64, generator=random)
            whole = reference[1](x).square().mean() + reference[0](x[:2]).square().mean() / 2
            mine = x[2 * rank() : 2 * rank() + 2]
            # the first layer has no gradient on rank 1, and the second layer's comes first on rank 0
            out = model[1](mine).square().mean()
            (out + model[0](mine).square().mean() if rank() == 0 else out).backward()
            whole.backward()
            for each in (*optimizers, *plain):
                each.step()
                each.zero_grad()
        return distance(model, reference, start), digest(model)

    same_and_close(ranks.run(body))


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_complex_and_double_parameters_are_averaged_in_their_own_type(ranks):
    def body():
        import torch
        from torch_cases import rank

        import hvdkit.torch as hk

        kinds = torch.complex64, torch.complex128, torch.float64, torch.float32
        weights = [torch.nn.Parameter(torch.ones(3, dtype=kind)) for kind in kinds]
        hk.distribute(torch.optim.SGD(weights, lr=0.1))
        for weight in weights:
            factor = complex(1 + rank(), 3 * rank()) if weight.is_complex() else 1 + 1e-12 * rank()
            (weight * factor).sum().abs().backward()
        return [(str(weight.grad.dtype), weight.grad) for weight in weights]

    # with all weights 1 the gradient of |sum(w z)| is conj(z) z / |z|
    expected = (abs(complex(1, 0)) + abs(complex(2, 3))) / 2
    for gradients in ranks.run(body):
        assert [dtype for dtype, _ in gradients] == [f"torch.{kind}" for kind in
                                                     ("complex64", "complex128", "float64", "float32")]  # fmt: skip
        assert gradients[0][1] == pytest.approx([expected] * 3, rel=1e-6)
        assert gradients[1][1] == pytest.approx([expected] * 3, rel=1e-14)
        assert gradients[2][1] == pytest.approx([1 + 0.5e-12] * 3, rel=1e-15)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_state_defaults_class_and_schedulers_survive(ranks, when):
    def body():
        import torch
        from torch_cases import mlp

        import hvdkit.torch as hk

        class Mine(torch.optim.Adam):
            pass

        def schedule():
            return torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)

        model = mlp()
        optimizer = Mine(model.parameters(), lr=0.8, betas=(0.5, 0.6))
        model(torch.ones(1, 6, dtype=torch.float64)).sum().backward()
        optimizer.step()
        held = {key: dict(state) for key, state in optimizer.state.items()}
        defaults, groups = dict(optimizer.defaults), [dict(group) for group in optimizer.param_groups]
        scheduler = schedule() if when == "before" else None
        same = hk.distribute(optimizer, model) is optimizer
        scheduler = scheduler or schedule()
        kept = all(optimizer.state[key][name] is value for key, state in held.items() for name, value in state.items())
        rates = []
        for _ in range(5):
            model(torch.ones(1, 6, dtype=torch.float64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
        betas = optimizer.param_groups[0]["betas"] == groups[0]["betas"]
        return same, type(optimizer) is Mine, optimizer.defaults == defaults, kept, betas, rates

    assert ranks.run(body) == [(True, True, True, True, True, [0.8, 0.4, 0.4, 0.2, 0.2])] * 2
