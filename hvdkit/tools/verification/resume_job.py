"""What runs in the processes that go on from checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path

import hvdkit
from hvdkit.process.environment import launched_as
from hvdkit.recipe.steps import Checkpoint
from hvdkit.tools.verification.jobs import Job, begin, stand_back, watched
from hvdkit.tools.verification.layout import load_data
from hvdkit.tools.verification.recording import Recorder
from hvdkit.tools.verification.resuming import KEPT, Resumption
from hvdkit.tools.verification.storage import Log


def resume(job: Job, plans: list[Resumption]) -> None:
    """Let this rank go on from files of :func:`train`, once for each plan."""
    stand_back()
    view, loaded = begin(job)
    if job.arrays:
        # they remember nothing of a run, so that all runs can have the same
        loaded = loaded.replace(data=load_data(loaded, job.framework))
    rank = launched_as().rank
    for plan in plans:
        view.begin_anew()
        for entry in loaded.metrics:
            # fit resets those of a new model only when its first batch has built them
            if hasattr(entry, "reset_state"):
                entry.reset_state()
        recorder = Recorder(view, f"{job.folder}/{plan.name}-{rank}")
        before = Log.load(f"{job.folder}/ranks-{rank}")
        recorder.earlier = before
        recorder.go_on = next((micro for micro in before.micros if micro.update == plan.update + 1), None)
        files = Checkpoint(plan.folder, keep=KEPT if plan.keeps else 99) if plan.folder else None
        recipe = watched(loaded, job, view, recorder).replace(stop_at=plan.stop_at, checkpoint=files)
        trainer = hvdkit.apply(recipe, framework=job.framework)
        if plan.file:
            trainer.restore(plan.file)
        view.record_batches(trainer, recorder)
        trainer.fit(None if plan.stop_at else plan.epochs)
        if plan.folder and rank == 0:
            recorder.log.facts["files"] = sorted(path.name for path in Path(plan.folder).glob("epoch-*"))
            shutil.rmtree(plan.folder)
        if plan.file and rank == 0:
            Path(plan.file).unlink()
        recorder.finish(trainer)
    trainer.shutdown()
