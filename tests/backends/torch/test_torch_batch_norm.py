"""BatchNorm over the global batch, against one process that holds the whole batch."""

from __future__ import annotations

import pytest
from ranks import on

import hvdkit

ENGINES = on("torch", engines=("torch", "mpi", "horovod"))
PAIR = on("torch", engines=("torch",))
ONE = on("torch", engines=("mpi",))


def parts(kind):
    """Return a layer, a batch of five for it, and how many samples each rank takes."""
    import torch

    torch.manual_seed(4)
    layers = {
        "1d": (torch.nn.BatchNorm1d(3), torch.randn(5, 3)),
        "1d_long": (torch.nn.BatchNorm1d(3), torch.randn(5, 3, 4)),
        "2d": (torch.nn.BatchNorm2d(3), torch.randn(5, 3, 4, 2)),
        "channels_last": (torch.nn.BatchNorm2d(3), torch.randn(5, 3, 4, 2)),
        "3d": (torch.nn.BatchNorm3d(3, eps=1e-3), torch.randn(5, 3, 2, 2, 2)),
        "plain": (torch.nn.BatchNorm2d(3, affine=False), torch.randn(5, 3, 4, 2)),
        "cumulative": (torch.nn.BatchNorm2d(3, momentum=None), torch.randn(5, 3, 4, 2)),
        "untracked": (torch.nn.BatchNorm2d(3, track_running_stats=False), torch.randn(5, 3, 4, 2)),
        "without_bias": (torch.nn.BatchNorm2d(3), torch.randn(5, 3, 4, 2)),
        "without_weight": (torch.nn.BatchNorm2d(3), torch.randn(5, 3, 4, 2)),
    }
    layer, x = layers[kind]
    if kind.startswith("without_"):
        layer.register_parameter(kind.removeprefix("without_"), None)
    if kind == "channels_last":
        x = x.to(memory_format=torch.channels_last)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, 1.0)
    return layer.double(), x.double() * 3 + 100


KINDS = ["1d", "1d_long", "2d", "channels_last", "3d", "plain", "cumulative", "untracked"]
KINDS += ["without_bias", "without_weight"]


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_r10_forward_backward_and_running_statistics_equal_one_process(ranks):
    def body(kind):
        import copy

        import torch
        from torch_cases import rank

        import hvdkit.torch as hk

        layer, x = parts(kind)
        reference = copy.deepcopy(layer)
        # a parameter before the layer, so that the gradient of its input is seen too
        shift, whole_shift = (torch.nn.Parameter(torch.zeros_like(x[0])) for _ in range(2))
        model = torch.nn.ModuleList([layer])
        optimizer = torch.optim.SGD([shift, *layer.parameters()], lr=1.0)
        hk.distribute(optimizer, model, sync_batchnorm=True)
        mine, weight = (slice(0, 3), 6 / 5) if rank() == 0 else (slice(3, 5), 4 / 5)
        differences = []
        for _ in range(2):
            part = (x[mine] + shift).detach().requires_grad_(True)
            out = layer(part + shift)
            whole_x = (x + whole_shift).detach().requires_grad_(True)
            whole = reference(whole_x + whole_shift)
            ((out.square() * (1 + out)).flatten(1).mean(1).mean() * weight).backward()
            (whole.square() * (1 + whole)).flatten(1).mean(1).mean().backward()
            pairs = [(out, whole[mine]), (part.grad / 2, whole_x.grad[mine]), (shift.grad, whole_shift.grad)]
            pairs += [(a.grad, b.grad) for a, b in zip(layer.parameters(), reference.parameters(), strict=True)]
            pairs += [(a, b) for a, b in zip(layer.buffers(), reference.buffers(), strict=True)]
            differences += [float(((a - b).abs().max() / b.abs().max().clamp(min=1e-3)).detach()) for a, b in pairs]
            strides = out.stride() == whole.stride()
            optimizer.zero_grad()
            whole_shift.grad = None
            reference.zero_grad()
        layer.eval()
        reference.eval()
        if kind != "untracked":
            differences.append(float((layer(x) - reference(x)).detach().abs().max()))
        return max(differences), strides

    for kind in KINDS:
        for difference, strides in ranks.run(body, kind):
            assert difference <= 1e-10, kind
            assert strides


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_a_model_with_batch_norm_equals_one_process_also_where_a_rank_runs_out_of_samples(ranks):
    def body(count):
        import torch
        from torch import nn
        from torch_cases import compare

        def build(dtype, seed):
            torch.manual_seed(seed)
            first = nn.Linear(6, 8), nn.Unflatten(1, (2, 4)), nn.BatchNorm1d(2), nn.Flatten()
            return nn.Sequential(*first, nn.Tanh(), nn.Linear(8, 4)).to(dtype)

        distance, digest, model, reference = compare(
            build, hvdkit.SGD(lr=0.1, momentum=0.9), torch.float64, count, 4, 5, sync_batchnorm=True
        )
        pairs = zip(model.buffers(), reference.buffers(), strict=True)
        return distance, digest, max(float((a - b).abs().max()) for a, b in pairs)

    # the last global batch holds 4 and 1 samples, or 1 and none
    for count in (45, 41):
        first, second = ranks.run(body, count)
        assert first == second
        assert first[0] <= 1e-10
        assert first[2] <= 1e-10


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_layers_copy_and_pickle_compile_and_take_half_precision(ranks):
    def body():
        import copy
        import pickle

        import torch
        from torch import nn
        from torch_cases import complaint, rank

        import hvdkit.torch as hk
        from hvdkit.torch.models import named_arrays
        from hvdkit.training import batches

        model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        hk.distribute(optimizer, model, sync_batchnorm=True)
        hk.broadcast(model, optimizer)
        x = torch.randn(2, 3, 4, 4) + rank()
        out = model(x)
        same = torch.equal(copy.deepcopy(model)(x), out)
        batches._counts[0] = rank() != 1
        single = complaint(model, x[:1, :, :1, :1])
        batches._counts[0] = True
        compiled = torch.compile(model, backend="aot_eager")(x)
        close = torch.allclose(compiled, out, atol=1e-6)
        compiled.square().mean().backward()
        loaded = pickle.loads(pickle.dumps(model))
        with torch.autocast("cpu", torch.bfloat16):
            half = model(x)
        near = half.dtype == torch.bfloat16 and torch.allclose(half.float(), out, atol=0.1)
        keys = list(model.state_dict()) == list(loaded.state_dict())
        keys = keys and list(named_arrays(model)) == list(named_arrays(loaded))
        other = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
        refused = complaint(hk.distribute, other, sync_batchnorm=True)
        return same, close, type(loaded[1]).__module__, near, keys, model[0].weight.grad, refused, single

    first, second = ranks.run(body)
    assert first[:5] == second[:5] == (True, True, "torch.nn.modules.batchnorm", True, True)
    assert (first[5] == second[5]).all()
    assert (
        first[6]
        == "RecipeError: sync_batchnorm needs the model; call distribute(optimizer, model, sync_batchnorm=True)"
    )


@pytest.mark.parametrize("ranks", ONE, indirect=True)
def test_a_recipe_synchronises_and_evaluates_as_one_process_does(ranks, pools):
    def body(batch):
        import torch
        from torch import nn
        from torch_recipes import curve, run

        def net():
            torch.manual_seed(1)
            return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))

        settings = hvdkit.Distribute(sync_batchnorm=True)
        return curve(run(model=net, batch_size=batch, scale_lr=None, optimizer=hvdkit.SGD(0.1), distribute=settings))

    ((expected,),) = (pools.get(on("torch", engines=("serial",), sizes=(1,))[0].values[0]).run(body, 8),)
    first, second = ranks.run(body, 4)
    assert first == second
    for record, single in zip(first, expected, strict=True):
        assert record == pytest.approx(single, rel=1e-4)
