"""zero_grad, gradient scaling and half precision on the wire."""

from __future__ import annotations

import itertools

import pytest
from ranks import on

ENGINES = on("torch", engines=("torch", "mpi", "horovod"))
HALF = on("torch", engines=("torch", "horovod"))


@pytest.mark.parametrize("arguments", [{}, {"set_to_none": True}, {"set_to_none": False}], ids=str)
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_d20_zero_grad_takes_torchs_argument_with_torchs_meaning(ranks, arguments):
    def body():
        import torch
        from torch_cases import digest, distance, flat, mlp, rank

        import hvdkit.torch as hk

        model, reference = mlp(seed=rank()), mlp()
        start = flat(reference)
        optimizer = hk.distribute(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
        hk.broadcast(model, optimizer)
        plain = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
        torch.manual_seed(3)
        for step in range(6):
            x = torch.randn(4, 6, dtype=torch.float64)
            model(x[2 * rank() : 2 * rank() + 2]).square().mean().backward()
            reference(x).square().mean().backward()
            optimizer.step()
            plain.step()
            (optimizer if step % 2 else model).zero_grad(**arguments)
            plain.zero_grad(**arguments)
        kept = [parameter.grad is not None for parameter in model.parameters()]
        assert kept == [parameter.grad is not None for parameter in reference.parameters()]
        return distance(model, reference, start), digest(model)

    (mine, bits), (_, others) = ranks.run(body)
    assert mine <= 1e-10
    assert bits == others


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_d21_an_infinity_on_one_rank_makes_all_ranks_skip_the_step(ranks):
    def body():
        import torch
        from torch_cases import digest, mlp, rank

        import hvdkit.torch as hk

        model = mlp(torch.float32, seed=rank())
        optimizer = hk.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
        hk.broadcast(model, optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        digests, scales = [digest(model)], []
        for step in range(4):
            x = torch.full((2, 6), float("inf") if step == 2 and rank() == 1 else 0.5 + rank())
            scaler.scale((model[0](x) ** 2).mean()).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            digests.append(digest(model))
            scales.append(scaler.get_scale())
        return digests, scales

    first, second = ranks.run(body)
    assert first == second
    digests, scales = first
    assert scales == [1024.0, 1024.0, 512.0, 512.0]
    assert [before == after for before, after in itertools.pairwise(digests)] == [False, False, True, False]


def reduced(value, compression):
    """Return the reduced gradient of a weight whose local gradient is ``value`` on both ranks."""
    import torch

    import hvdkit.torch as hk

    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = hk.distribute(torch.optim.SGD([weight], lr=1.0), compression=compression)
    (weight * value).sum().backward()
    return weight.grad, hk.compression_losses(optimizer)


@pytest.mark.parametrize("ranks", HALF, indirect=True)
def test_d19_half_precision_keeps_large_gradients_finite_and_counts_what_it_changes(ranks):
    for gradient, counts in ranks.run(reduced, 4e4, "fp16"):
        assert gradient.tolist() == pytest.approx([4e4] * 3, rel=1e-3)
        assert counts == {"clipped": 0, "lost": 0}
    # below half precision's smallest number: off by less than that number, never anything else
    for gradient, counts in ranks.run(reduced, 1e-8, "fp16"):
        assert abs(gradient[0] - 1e-8) < 6e-8
        assert counts == {"clipped": 0, "lost": 3}
    for gradient, counts in ranks.run(reduced, 1e6, "fp16"):
        assert gradient.tolist() == pytest.approx([65504.0] * 3, rel=5e-3)
        assert counts == {"clipped": 3, "lost": 0}
    for gradient, _ in ranks.run(reduced, float("inf"), "fp16"):
        assert gradient.tolist() == [float("inf")] * 3
    for gradient, _ in ranks.run(reduced, 1e-8, "none"):
        assert gradient.tolist() == pytest.approx([1e-8] * 3)


@pytest.mark.parametrize("ranks", HALF, indirect=True)
def test_bfloat16_on_the_wire_has_the_range_of_float32(ranks):
    for value in (1e-8, 1.0, 1e6, 1e38, 3.2e38):
        for gradient, counts in ranks.run(reduced, value, "bf16"):
            assert gradient.tolist() == pytest.approx([value] * 3, rel=1e-2)
            assert counts == {"clipped": 0, "lost": 0}
    for gradient, counts in ranks.run(reduced, 3.4e38, "bf16"):
        assert gradient.tolist() == pytest.approx([3.4e38] * 3, rel=3e-2)
        assert counts["clipped"] == 3


@pytest.mark.parametrize("size", [2, 3, 5, 8, 64, 1000])
@pytest.mark.parametrize("ranks", on("torch", engines=("serial",), sizes=(1,)), indirect=True)
def test_d19_the_largest_numbers_of_any_number_of_ranks_have_a_finite_sum(ranks, size):
    def body():
        import torch

        from hvdkit.engines.serial.channel import SerialChannel
        from hvdkit.torch.gradients.reductions import NarrowMean

        channel, finite = SerialChannel(), []
        channel.size = size
        for kind in ("fp16", "bf16"):
            narrow = NarrowMean(channel, kind, float(size)).start(torch.full((1,), 3e38), [1])
            total = torch.zeros_like(narrow)
            for _ in range(size):
                total += narrow
            finite.append(bool(total.isfinite()))
        return finite

    assert ranks.run(body) == [[True, True]]


@pytest.mark.parametrize("ranks", on("torch", engines=("mpi",)), indirect=True)
def test_d19_an_engine_that_cannot_sum_half_precision_says_so_at_once(ranks):
    def body():
        from torch_cases import complaint

        return complaint(reduced, 1.0, "fp16"), complaint(reduced, 1.0, "bf16")

    for half, brain in ranks.run(body):
        assert half == "EngineError: engine 'mpi' cannot sum half precision; use compression='none'"
        assert brain == "EngineError: engine 'mpi' cannot sum bfloat16 here; use compression='none'"
