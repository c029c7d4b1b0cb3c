"""Mixed precision, gradient scaling, compression and compiled models through a recipe."""

from __future__ import annotations

from tempfile import gettempdir

import pytest
from ranks import on, slowly

import hvdkit

ENGINES = on("torch", engines=("torch", "mpi", "horovod"))
PAIR = on("torch", engines=("torch",))


def finished(precision, **changes):
    """Train with a recipe; return the history, the weights' digest and the change of all weights."""
    import torch
    from torch_cases import digest, flat
    from torch_recipes import curve, recipe

    trainer = hvdkit.apply(recipe(precision=precision, optimizer=hvdkit.SGD(lr=0.1), **changes), framework="torch")
    start = flat(trainer.model)
    trainer.fit()
    kinds = {str(parameter.dtype) for parameter in trainer.model.parameters()}
    assert kinds == {"torch.float32"}
    assert trainer.predict(torch.zeros(2, 6).numpy()).dtype.name == "float32"
    return curve(trainer), digest(trainer.model, trainer.optimizer), flat(trainer.model) - start, trainer.summary()


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_half_precision_follows_float32_with_accumulation_clipping_and_uneven_ends(ranks):
    def body(precision):
        # six passes by four: every second update divides by two and comes before the passes are complete
        return finished(precision, distribute=hvdkit.Distribute(accumulate=4, clip_norm=0.05))

    (_, _, expected, _), _ = ranks.run(body, "fp32")
    size = abs(expected).max()
    assert size > 0
    for precision in ("bf16", "fp16"):
        (curve, bits, moved, summary), (other, others, *_) = ranks.run(body, precision)
        assert (curve, bits) == (other, others)
        assert 0 < abs(moved - expected).max() < 0.05 * size
        assert f"precision {precision}" in summary
        assert [record.get("skipped_steps") for record in curve] == [0 if precision == "fp16" else None] * 3


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_d21_a_gradient_that_is_infinite_on_one_rank_is_a_step_that_all_skip_and_count(ranks, tmp_path):
    def body(folder):
        import torch
        from torch_cases import digest, rank
        from torch_recipes import curve, recipe

        class Watch(hvdkit.training.observers.Observer):
            def on_step_end(self, trainer):
                seen.append(digest(trainer.model))

        def loss(outputs, y):
            calls.append(1)
            # on one rank, in the second update, which has two passes of four and so is reduced after backward
            if rank() == 1 and len(calls) == 6:
                outputs = outputs * 1.0
                outputs.register_hook(lambda gradient: gradient * float("inf"))
            return torch.nn.functional.cross_entropy(outputs, y)

        seen, calls = [], []
        made = recipe(
            precision="fp16",
            loss=loss,
            epochs=1,
            metrics=(),
            data=hvdkit.Data(train=recipe().data.train),
            distribute=hvdkit.Distribute(accumulate=4, clip_norm=1.0),
            observers=(Watch(),),
            checkpoint=hvdkit.Checkpoint(folder),
        )
        trainer = hvdkit.apply(made, framework="torch")
        start = digest(trainer.model)
        trainer.fit()
        resumed = hvdkit.apply(made.replace(observers=()), framework="torch")
        scales = [each._precision.state()["scaler"]["scale"] for each in (trainer, resumed)]
        return [start, *seen], trainer.history.values("skipped_steps"), scales, len(curve(resumed))

    first, second = ranks.run(body, str(tmp_path))
    assert first == second
    (start, one, two), skipped, scales, epochs = first
    assert start != one == two
    assert skipped == [1]
    assert scales == [32768.0, 32768.0]
    assert epochs == 1


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_a_fused_optimizer_under_a_scaler_is_clipped_as_one_without(ranks):
    def body():
        import torch
        from torch_cases import flat, mlp, rank

        import hvdkit.torch as hk

        moved = []
        for scale, fused in ((1.0, False), (1024.0, True)):
            model = mlp()
            start = flat(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
            hk.distribute(optimizer, model, clip_norm=0.01)
            scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=fused)
            for step in range(3):
                x = torch.full((2, 6), 1.0 + rank() + step, dtype=torch.float64)
                scaler.scale(model(x).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            moved.append(flat(model) - start)
        return moved

    for plain, scaled in ranks.run(body):
        assert abs(plain).max() > 0
        assert abs(plain - scaled).max() < 1e-6 * abs(plain).max()


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_d19_what_compression_clips_and_loses_stands_in_the_history(ranks):
    def body():
        import torch
        from torch_recipes import run

        def loss(outputs, y):
            # a few outputs with gradients beyond half precision on both ends
            factors = torch.tensor([1e7, 1.0, 1.0, 1e-9])
            return (outputs * factors).sum()

        trainer = run(loss=loss, epochs=2, metrics=(), distribute=hvdkit.Distribute(compression="fp16"),
                      optimizer=hvdkit.SGD(lr=1e-12))  # fmt: skip
        plain = run(epochs=1)
        return [trainer.history.values(f"{name}_gradients") for name in ("clipped", "lost")], list(
            plain.history.epochs[0]
        )

    (first, keys), (second, _) = ranks.run(body)
    assert first == second
    assert all(count > 0 for counts in first for count in counts)
    assert not [key for key in keys if "gradients" in key or "skipped" in key]


@pytest.mark.skipif(" " in gettempdir(), reason="torch's compiler takes no temporary folder with a blank in its name")
@pytest.mark.parametrize("ranks", [*PAIR, *slowly(ENGINES[1:])], indirect=True)
def test_a_compiled_model_trains_as_one_that_is_not_and_keeps_its_names(ranks):
    def body():
        from torch_recipes import run, weights

        plain, compiled = (run(compile=value, epochs=2) for value in (False, True))
        names = list(plain.model.state_dict()) == list(compiled.model.state_dict())
        return abs(weights(plain) - weights(compiled)).max(), names, compiled.summary()

    for difference, names, summary in ranks.run(body):
        assert difference < 1e-5
        assert names
        assert "compiled" in summary
