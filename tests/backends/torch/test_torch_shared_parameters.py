"""Optimizers that share parameters, parameters that come later, and orders that differ."""

from __future__ import annotations

import pytest
from ranks import on

ENGINES = on("torch", engines=("torch", "mpi", "horovod"))


def nets():
    import torch

    torch.manual_seed(0)
    return torch.nn.ModuleList([torch.nn.Linear(3, 3, bias=False).double() for _ in range(3)])


def rows(seed, count):
    import torch

    return torch.randn(count, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("how", ["one backward", "two backwards", "first half frozen", "other settings"])
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_r01_optimizers_that_share_parameters_equal_one_process(ranks, how):
    def body():
        import torch
        from torch_cases import apart, digest, rank

        import hvdkit.torch as hk

        def optimizers(parts, distribute):
            s, a, b = parts
            first = torch.optim.SGD([*s.parameters(), *a.parameters()], lr=0.1)
            second = torch.optim.SGD([*s.parameters(), *b.parameters()], lr=0.2, momentum=0.9)
            if distribute:
                hk.distribute(first, clip_norm=0.5 if how == "other settings" else None)
                hk.distribute(second, gradient_predivide=2.0 if how == "other settings" else None)
            return first, second

        def clip(parts):
            torch.nn.utils.clip_grad_norm_([p for part in parts[:2] for p in part.parameters()], 0.5)

        def train(parts, pair, own):
            s, a, b = parts
            first, second = pair
            for step in range(6):
                x = own(rows(step, 4))
                if how == "first half frozen":
                    a.requires_grad_(step >= 3)
                if how == "two backwards":
                    a(s(x)).square().mean().backward()
                    first.step()
                    first.zero_grad()
                    b(s(x)).square().mean().backward()
                    second.step()
                    second.zero_grad()
                    continue
                (a(s(x)).square().mean() + b(s(x)).square().mean()).backward()
                if how == "other settings" and parts is plain:
                    clip(parts)
                first.step()
                second.step()
                first.zero_grad()
                second.zero_grad()

        mine, plain = nets(), nets()
        train(mine, optimizers(mine, True), lambda x: x[2 * rank() : 2 * rank() + 2])
        train(plain, optimizers(plain, False), lambda x: x)
        return apart(mine, plain), digest(mine)

    (distance, mine), other = ranks.run(body)
    assert distance < 1e-12
    assert other == (distance, mine)


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_r05_a_group_that_is_added_later_is_reduced_from_then_on(ranks):
    def body():
        import torch
        from torch_cases import apart, digest, rank

        import hvdkit.torch as hk

        def train(parts, own, distribute):
            s, a, b = parts
            s.requires_grad_(False)
            optimizer = torch.optim.SGD(a.parameters(), lr=0.1, momentum=0.9)
            if distribute:
                hk.distribute(optimizer, parts)
            for step in range(6):
                if step == 2:
                    s.requires_grad_(True)
                    optimizer.add_param_group({"params": s.parameters(), "lr": 0.05})
                if step == 4:
                    a.requires_grad_(False)
                    optimizer.add_param_group({"params": b.parameters(), "lr": 0.05})
                b(a(s(own(rows(step, 4))))).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                b.zero_grad()

        mine, plain = nets(), nets()
        train(mine, lambda x: x[2 * rank() : 2 * rank() + 2], True)
        train(plain, lambda x: x, False)
        return apart(mine, plain), digest(mine)

    (distance, mine), other = ranks.run(body)
    assert distance < 1e-12
    assert other == (distance, mine)


@pytest.mark.parametrize("named", ["with the model", "without the model"])
@pytest.mark.parametrize("ranks", on("torch", engines=("torch",)), indirect=True)
def test_r06_parameters_in_another_order_on_one_rank_are_refused(ranks, named):
    def body():
        import torch
        from torch_cases import complaint, rank

        import hvdkit.torch as hk

        model = nets()
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters[::-1] if rank() else parameters, lr=0.1)

        def train():
            hk.distribute(optimizer, model if named == "with the model" else None)
            model[0](torch.ones(1, 3, dtype=torch.float64)).sum().backward()
            optimizer.step()

        return complaint(train)

    texts = ranks.run(body)
    assert texts[0] == texts[1]
    expected = "another order on rank 1" if named == "with the model" else "differ between ranks before the first"
    assert expected in texts[0]


@pytest.mark.parametrize("ranks", on("torch", engines=("torch",)), indirect=True)
def test_r35_an_optimizer_of_another_model_is_refused(ranks):
    def body():
        import torch
        from torch_cases import complaint

        import hvdkit.torch as hk

        first, second, _ = nets()
        return complaint(lambda: hk.distribute(torch.optim.SGD(first.parameters(), lr=0.1), second))

    for text in ranks.run(body):
        assert "no parameter of this model" in text
