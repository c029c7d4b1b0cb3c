"""``Recipe(scheduler=...)``: torch's schedulers beside scaling and warm-up, as on one process."""

from __future__ import annotations

import pytest
from ranks import on

ONE = on("torch", engines=("serial",), sizes=(1,))
TWO = on("torch", engines=("torch", "mpi"))


@pytest.mark.parametrize("kind", ["step", "cosine", "one cycle", "plateau", "sequential", "milestones"])
@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_r16_a_scheduler_moves_as_in_a_plain_script_and_comes_back_with_the_checkpoint(ranks, kind, tmp_path):
    def body(folder):
        import torch
        from torch.nn.functional import cross_entropy
        from torch.optim import lr_scheduler as kinds
        from torch_cases import mlp
        from torch_recipes import recipe, weights

        import hvdkit
        from hvdkit.recipe.plan import ShardPlan

        def make(optimizer, steps):
            return {
                "step": lambda: kinds.StepLR(optimizer, 2, gamma=0.5),
                "cosine": lambda: kinds.CosineAnnealingLR(optimizer, 4 * steps),
                "one cycle": lambda: kinds.OneCycleLR(optimizer, 0.05, epochs=4, steps_per_epoch=steps),
                "plateau": lambda: kinds.ReduceLROnPlateau(optimizer, patience=0, threshold=0.2),
                "sequential": lambda: kinds.SequentialLR(
                    optimizer, [kinds.ConstantLR(optimizer, 0.5, 1), kinds.ExponentialLR(optimizer, 0.8)], [2]
                ),
                "milestones": lambda: kinds.MultiStepLR(optimizer, [1, 3]),
            }[kind]()

        every = "step" if kind in ("cosine", "one cycle") else "epoch"
        metric = "val_loss" if kind == "plateau" else None
        declared = hvdkit.Scheduler(make, every, metric)
        asked = {
            "scheduler": declared,
            "optimizer": hvdkit.SGD(0.02, momentum=0.9),
            "epochs": 4,
            "scale_lr": hvdkit.ScaleLR("linear", warmup_epochs=1),
        }
        trainer = hvdkit.apply(recipe(**asked), framework="torch")
        trainer.fit(2)
        trainer.save(f"{folder}/two.pt")
        trainer.fit(4)
        resumed = hvdkit.apply(recipe(**asked), framework="torch")
        resumed.restore(f"{folder}/two.pt")
        resumed.fit(4)

        # the plain script: the union of the batches, the rate multiplied by hand
        torch.manual_seed(7)
        model = mlp(torch.float32, 7)
        optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
        scheduler = make(optimizer, 6)
        (x, y), (v, w) = (
            (torch.from_numpy(part) for part in side) for side in (recipe().data.train, recipe().data.validation)
        )
        rates, done = [], 0
        for epoch in range(4):
            for indices in ShardPlan(48, 8, seed=7).order(epoch).reshape(-1, 8):
                optimizer.zero_grad()
                cross_entropy(model(x[indices]), y[indices]).backward()
                group = optimizer.param_groups[0]
                share, held = (1 + (done + 1) / 6 if done < 6 else 2.0), group["lr"]
                group["lr"] = held * share
                optimizer.step()
                rates += [group["lr"]] if done % 6 == 5 else []
                group["lr"], done = held, done + 1
                if every == "step":
                    scheduler.step()
            if metric:
                scheduler.step(float(cross_entropy(model(v), w)))
            elif every == "epoch":
                scheduler.step()
        plain = torch.cat([value.detach().reshape(-1) for value in model.state_dict().values()]).numpy()
        return trainer.history.values("learning_rate"), rates, weights(trainer), weights(resumed), plain

    answers = ranks.run(body, str(tmp_path))
    for found, due, whole, resumed, plain in answers:
        assert found == pytest.approx(due, rel=1e-6)
        assert len(set(due)) > 1
        assert (whole == resumed).all()
        assert (whole == answers[0][2]).all()
        assert abs(whole - plain).max() < 1e-4


@pytest.mark.parametrize("ranks", ONE, indirect=True)
def test_r16_schedulers_that_would_have_no_effect_are_refused(ranks):
    def body():
        import torch
        from torch.optim import lr_scheduler as kinds
        from torch_cases import complaint
        from torch_recipes import recipe

        import hvdkit
        from hvdkit.training.observers import Observer

        def hidden(parameters):
            optimizer = torch.optim.SGD(parameters, 0.1)
            optimizer.scheduler = kinds.StepLR(optimizer, 1)
            return optimizer

        class Meddling(Observer):
            def on_epoch_end(self, trainer, record):
                trainer.optimizer.param_groups[0]["lr"] *= 0.1

        other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
        plateau = hvdkit.Scheduler(kinds.ReduceLROnPlateau, metric="val_top5")

        def apply(**changes):
            return lambda: hvdkit.apply(recipe(**changes), framework="torch").fit()

        return [
            complaint(apply(optimizer=hidden)),
            complaint(apply(observers=(Meddling(),))),
            complaint(apply(scheduler=kinds.ReduceLROnPlateau)),
            complaint(apply(scheduler=plateau)),
            complaint(apply(scheduler=lambda _: kinds.StepLR(other, 1))),
            complaint(apply(scheduler=lambda optimizer: optimizer)),
        ]

    (messages,) = ranks.run(body)
    due = [
        "Recipe.optimizer makes a learning-rate scheduler",
        "learning rate was changed during training",
        "follows a metric; write Scheduler",
        "Scheduler.metric is 'val_top5', but there is no such metric; use loss, accuracy, val_loss, val_accuracy",
        "for the optimizer that it is given",
        "must return a scheduler of torch's, it gave Adam",
    ]
    for message, part in zip(messages, due, strict=True):
        assert part in message
