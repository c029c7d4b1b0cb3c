"""Recorded updates, on the CPU by a stand-in and on a GPU by CUDA graphs, equal plain ones bit for bit."""

from __future__ import annotations

import pytest
from installed import needs
from ranks import on

import hvdkit

RANKS = on("torch", engines=("torch",), sizes=(1, 2))
PAIR = on("torch", engines=("torch",))


def same(found):
    """Check that a run with recordings and one without are the same, and that some updates were replayed."""
    for recorded, plain in found:
        assert recorded["replays"] > 0
        assert plain["recorded"] == 0
        assert (recorded["digest"], recorded["curve"]) == (plain["digest"], plain["curve"])
        assert ", CUDA graphs" in recorded["summary"]
        assert "CUDA graphs" not in plain["summary"]


CASES = {
    "adam": {"optimizer": hvdkit.Adam(lr=0.01)},
    "adamw": {"optimizer": hvdkit.AdamW(lr=0.01, weight_decay=0.1)},
    "momentum": {"optimizer": hvdkit.SGD(lr=0.1, momentum=0.9, nesterov=True)},
    "accumulated": {"distribute": hvdkit.Distribute(accumulate=3)},
    "clipped": {"distribute": hvdkit.Distribute(clip_norm=0.05)},
    "narrow": {"distribute": hvdkit.Distribute(compression="fp16")},
    "predivided": {"distribute": hvdkit.Distribute(gradient_predivide=2.0)},
    "global_batch_norm": {"distribute": hvdkit.Distribute(sync_batchnorm=True)},
    "warmed_up": {"scale_lr": hvdkit.ScaleLR(warmup_epochs=2.5), "schedule": lambda epoch: 0.9**epoch},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ranks", RANKS, indirect=True)
def test_a_recorded_run_is_a_plain_one_bit_for_bit(ranks, case):
    def body(changes):
        from torch_graphs import both

        return both(**changes)

    same(ranks.run(body, CASES[case]))


@pytest.mark.parametrize("ranks", RANKS, indirect=True)
def test_short_batches_have_their_own_recording(ranks):
    def body():
        from torch_graphs import both, data

        return both(data=data(46), epochs=6)

    found = ranks.run(body)
    same(found)
    assert all(recorded["recorded"] >= 2 for recorded, _ in found)


@pytest.mark.parametrize("ranks", RANKS, indirect=True)
def test_several_groups_and_a_scheduler_keep_their_rates(ranks):
    def body():
        import torch
        from torch_graphs import Net, both

        def optimizer(parameters):
            parameters = list(parameters)
            return torch.optim.SGD([{"params": parameters[:2], "lr": 0.2}, {"params": parameters[2:]}], lr=0.05)

        def scheduler(optimizer):
            return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

        return both(
            model={"torch": Net},
            optimizer={"torch": optimizer},
            scheduler=hvdkit.Scheduler(scheduler, every="step"),
            scale_lr=hvdkit.ScaleLR(warmup_epochs=1.5),
        )

    same(ranks.run(body))


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_layers_that_are_frozen_and_thawed_and_dropout_that_changes_are_recorded_anew(ranks):
    def body():
        from torch_graphs import both

        class Changing(hvdkit.training.observers.Observer):
            def on_epoch_begin(self, trainer):
                trainer.model.first.requires_grad_(trainer.epoch != 2)
                trainer.model.dropout.p = 0.5 if trainer.epoch < 4 else 0.1
                trainer.model.norm.train(trainer.epoch < 6)

        return both(observers=(Changing(),), epochs=8)

    found = ranks.run(body)
    same(found)
    assert all(recorded["recorded"] >= 3 for recorded, _ in found)


@needs("torchmetrics")
@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_metric_objects_take_what_was_replayed(ranks):
    def body():
        import torchmetrics
        from torch_graphs import both

        metrics = torchmetrics.classification.MulticlassAUROC(4, thresholds=None)
        return both(metrics=("accuracy", metrics))

    same(ranks.run(body))


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_a_run_that_goes_on_from_a_file_inside_an_epoch_is_recorded_too(ranks, tmp_path):
    def body(folder):
        from recorded_ops import recording
        from torch_cases import digest
        from torch_graphs import data, net
        from torch_recipes import curve, recipe

        class Saving(hvdkit.training.observers.Observer):
            def on_step_end(self, trainer):
                if trainer.global_step == 15 and not trainer.history.epochs[3:]:
                    trainer.save(f"{folder}/inside.pt")

        def made(**changes):
            return hvdkit.apply(recipe(model=net(), batch_size=4, epochs=4, data=data(48), **changes), "torch")

        with recording() as recorder:
            whole = made(observers=(Saving(),))
            whole.fit()
            resumed = made()
            resumed.fit(2)  # its recordings are of other states
            resumed.restore(f"{folder}/inside.pt")
            replays = recorder.replays
            resumed.fit()
        return (
            [digest(each.model, each.optimizer) for each in (whole, resumed)],
            [curve(each) for each in (whole, resumed)],
            recorder.replays > replays > 0,
        )

    for (first, second), (curve, resumed), replayed in ranks.run(body, str(tmp_path)):
        assert first == second
        assert curve == resumed
        assert replayed


def reasons():
    """Return recipes that cannot be recorded, and what the line about each says."""
    import random

    import torch
    from torch_graphs import Net

    class Waits(Net):
        def forward(self, x):
            return super().forward(x if float(x.sum()) < 1e9 else -x)

    class Counts(Net):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    class DrawsOnTheHost(Net):
        def forward(self, x):
            return super().forward(x * (1.0 if random.random() < 0.5 else 0.5))

    def hooked():
        net = Net()
        net.first.register_forward_hook(lambda *_: None)
        return net

    def own(parameters):
        class Own(torch.optim.Optimizer):
            def __init__(self, params):
                super().__init__(params, {"lr": 0.1})

            @torch.no_grad()
            def step(self, closure=None):
                for group in self.param_groups:
                    for parameter in group["params"]:
                        if parameter.grad is not None:
                            parameter.add_(parameter.grad, alpha=-group["lr"])

        return Own(parameters)

    return {
        "waits": ({"model": {"torch": Waits}}, "the host waits for the device"),
        "counts": ({"model": {"torch": Counts}}, "'Counts' changes in every step"),
        "draws": ({"model": {"torch": DrawsOnTheHost}}, "draws random numbers on the host"),
        "hooks": ({"model": {"torch": hooked}}, "hooks run in Python: reasons.<locals>.hooked"),
        "optimizer": ({"optimizer": {"torch": own}}, "Own takes its learning rate"),
        "adagrad": ({"optimizer": hvdkit.Adagrad(lr=0.1)}, "Adagrad takes its learning rate"),
    }


@pytest.mark.parametrize("name", ["waits", "counts", "draws", "hooks", "optimizer", "adagrad"])
@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_what_cannot_be_recorded_is_said_in_one_line_and_trained_all_the_same(ranks, name):
    def body():
        from torch_graphs import both

        changes, line = reasons()[name]
        return *both(**changes), line

    for number, (tried, plain, line) in enumerate(ranks.run(body)):
        assert (tried["digest"], tried["curve"]) == (plain["digest"], plain["curve"])
        assert tried["recorded"] == 0
        assert line in tried["summary"]
        if number == 0:
            assert tried["told"].count("no CUDA graphs: ") == 1
            assert line in tried["told"]


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_an_update_that_would_not_fit_twice_is_not_recorded(ranks):
    def body():
        from unittest import mock

        from torch_graphs import trained

        from hvdkit.torch.graphs.recorder import crowded

        gib = 2**30
        said = [crowded(3 * gib, 6 * gib), crowded(3 * gib, 5 * gib)]
        with mock.patch("hvdkit.torch.graphs.recorder.crowded", return_value=said[1]):
            return said, trained(), trained(False)

    for (fits, crowded), tried, plain in ranks.run(body):
        assert fits == ""
        assert crowded == "an update takes 3.0 GiB of the GPU, and would be held twice in 5.0 GiB"
        assert tried["recorded"] == 0
        assert f"no CUDA graphs: {crowded}" in tried["summary"]
        assert (tried["digest"], tried["curve"]) == (plain["digest"], plain["curve"])


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_an_error_while_it_is_recorded_leaves_no_trace(ranks):
    def body():
        from torch_graphs import Net, both

        from hvdkit.torch.graphs.recording import is_recording

        class Fails(Net):
            """Waits for the device behind the passes that are looked at: only the recording itself finds it."""

            def forward(self, x):
                x = super().forward(x)
                return x * float(x[0, 0]) if is_recording() else x

        return both(model={"torch": Fails})

    for number, (tried, plain) in enumerate(ranks.run(body)):
        assert (tried["digest"], tried["curve"]) == (plain["digest"], plain["curve"])
        assert tried["recorded"] == 0
        assert number or "no CUDA graphs: " in tried["told"]


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_graphs_that_are_demanded_are_refused_where_they_cannot_be(ranks):
    def body():
        from unittest import mock

        from complaints import complaint
        from recorded_ops import recording
        from torch_recipes import recipe

        changes, line = reasons()["optimizer"]
        with recording():
            said = complaint(lambda: hvdkit.apply(recipe(cuda_graphs=True, **changes), "torch"))
        with mock.patch("hvdkit.torch.graphs.updates.recorder_for", return_value=None):
            return said, line, complaint(lambda: hvdkit.apply(recipe(cuda_graphs=True), "torch"))

    for said, line, without in ranks.run(body):
        assert "Recipe.cuda_graphs is True" in said
        assert line in said
        assert "Recipe.cuda_graphs is True but there is no GPU" in without


@pytest.mark.parametrize("ranks", RANKS, indirect=True)
def test_a_captured_step_of_a_loop_of_ones_own_is_the_plain_one(ranks):
    def body():
        import torch
        from recorded_ops import recording
        from torch_cases import digest, samples
        from torch_graphs import Net

        import hvdkit.torch as hk

        def run(captured):
            torch.manual_seed(3)
            device = hk.pin()
            model = Net().to(device)
            optimizer = torch.optim.Adam(model.parameters(), lr=hk.scale_lr(0.01), fused=True)
            hk.distribute(optimizer, model, clip_norm=0.5)
            hk.broadcast(model, optimizer)
            warm = hk.warmup(optimizer, base=0.01, steps_per_epoch=6, epochs=2)
            batches = hk.shard(samples(46, torch.float32), 4, seed=1)

            def step(x, y, *, factor):
                loss = torch.nn.functional.cross_entropy(model(x), y) * factor
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return {"loss": loss.detach()}

            torch.manual_seed(5)
            recorded = hk.capture(step, optimizer, model)
            # a plain step has its rate in float32 too behind that
            step = recorded if captured else step
            losses = []
            for _ in range(6):
                for x, y in batches:
                    losses.append(step(x.to(device), y.to(device), factor=0.5)["loss"])
                    warm.step()
            return digest(model, optimizer), [float(loss) for loss in losses], hk.average(float(losses[-1]))

        with recording() as recorder:
            plain = run(False)
            assert recorder.recorded == 0
            return plain, run(True), recorder.recorded, recorder.replays

    for plain, captured, recorded, replays in ranks.run(body):
        assert plain == captured
        assert recorded >= 2
        assert replays > 10


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_a_step_that_counts_goes_on_as_it_is(ranks):
    def body():
        import torch
        from recorded_ops import recording
        from torch_cases import samples
        from torch_graphs import eight_lines

        import hvdkit.torch as hk

        with recording() as recorder:
            model, optimizer = eight_lines()
            seen = 0

            def step(x, y):
                nonlocal seen
                seen += 1
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()

            captured = hk.capture(step, optimizer, model)
            for x, y in hk.shard(samples(48, torch.float32), 4):
                captured(x, y)
            return seen, recorder.recorded

    assert ranks.run(body) == [(6, 0), (6, 0)]


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_what_a_step_reads_of_its_object_and_of_variables_is_recorded_anew_when_it_changes(ranks):
    def body():
        import torch
        from recorded_ops import recording
        from torch_cases import digest, samples
        from torch_graphs import eight_lines

        import hvdkit.torch as hk

        class Loop:
            def __init__(self):
                self.model, self.optimizer = eight_lines()
                self.factor, self.unused = 1.0, 0

            def step(self, x, y):
                loss = self.scaled(torch.nn.functional.cross_entropy(self.model(x), y)) * options["factor"]
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                return loss

            def scaled(self, loss):
                return loss * self.factor

        options = {"factor": 1.0}

        def run(captured):
            loop = Loop()
            recorded = hk.capture(loop.step, loop.optimizer, loop.model)
            step = recorded if captured else loop.step
            for epoch in range(6):
                loop.factor, options["factor"] = 1.0 + (epoch > 1), 1.0 + (epoch > 3)
                for x, y in hk.shard(samples(48, torch.float32), 4, seed=epoch):
                    loop.unused += 1
                    step(x.to(loop.model[0].weight.device), y.to(loop.model[0].weight.device))
            return digest(loop.model, loop.optimizer)

        with recording() as recorder:
            return run(False), run(True), recorder.recorded

    for plain, captured, recorded in ranks.run(body):
        assert plain == captured
        assert recorded == 3


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_numbers_in_a_module_and_on_a_class_are_recorded_anew_when_they_change(ranks):
    def body():
        import types

        import torch
        from torch_graphs import Net, both

        settings = types.ModuleType("settings")
        settings.factor = 1.0

        class Scaled(Net):
            shift = 0.0

            def forward(self, x):
                return super().forward(x) * settings.factor + self.shift

        def loss(outputs, targets):
            return torch.nn.functional.cross_entropy(outputs * settings.factor, targets)

        class Changing(hvdkit.training.observers.Observer):
            def on_epoch_begin(self, trainer):
                settings.factor, Scaled.shift = 1.0 + (trainer.epoch > 1), float(trainer.epoch > 3)

        return both(model={"torch": Scaled}, loss={"torch": loss}, observers=(Changing(),), epochs=6)

    found = ranks.run(body)
    same(found)
    assert all(recorded["recorded"] == 3 for recorded, _ in found)


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_results_of_a_captured_step_are_the_callers_own(ranks):
    def body():
        import torch
        from recorded_ops import recording
        from torch_cases import samples
        from torch_graphs import eight_lines

        import hvdkit.torch as hk

        with recording() as recorder:
            model, optimizer = eight_lines()

            def step(x, y):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss

            captured = hk.capture(step, optimizer, model)
            losses = [captured(x, y) for x, y in hk.shard(samples(80, torch.float32), 4)]
            return [float(loss) for loss in losses], recorder.replays, losses[0].requires_grad

    for losses, replays, attached in ranks.run(body):
        assert len(set(losses)) == len(losses) == 10
        assert replays == 7
        assert not attached


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_a_checkpoint_of_a_gpus_optimizer_goes_on_on_the_cpu_and_back(ranks, tmp_path):
    def body(path):
        import torch
        from torch_cases import mlp

        import hvdkit.torch as hk

        def made():
            model = mlp(torch.float32)
            return model, torch.optim.Adam(model.parameters(), lr=0.1)

        def steps(model, optimizer, number):
            for _ in range(number):
                model(torch.ones(2, 6)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

        model, optimizer = made()
        steps(model, optimizer, 2)
        for group in optimizer.param_groups:
            group["capturable"] = True  # as on a GPU, where alone a step takes it
        hk.save(path, model, optimizer)
        other, resumed = made()
        hk.restore(path, other, resumed)
        for group in optimizer.param_groups:
            group["capturable"] = False
        for each in ((model, optimizer), (other, resumed)):
            steps(*each, 1)
        same = [torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True)]
        return all(same), resumed.param_groups[0]["capturable"]

    assert ranks.run(body, str(tmp_path / "saved.pt")) == [(True, False)] * 2
