"""Every error that hvdkit raises: one line, what is wrong and what to do about it."""


class HvdkitError(Exception):
    """Base of all errors raised by hvdkit.

    Attributes:
        rank: Whose error it is, where all ranks raise it; None for the one that raises it.
    """

    rank: int | None = None

    # inside a tf.function, AutoGraph makes a StagingError of many lines of all other classes that it does not know
    ag_pass_through = True


class RecipeError(HvdkitError, ValueError):
    """A field of a recipe, or an argument of one of the eight verbs, has a wrong value."""


class DataError(HvdkitError, ValueError):
    """A data set is empty, too small, cut short, or holds values out of range."""


class ModelError(HvdkitError, ValueError):
    """A model, loss or optimizer that hvdkit cannot train as it is."""


class EngineError(HvdkitError, RuntimeError):
    """An engine is unknown, not installed, or not built for the framework."""


class LaunchError(HvdkitError, RuntimeError):
    """The launcher, its arguments or its environment do not fit the job."""


class CollectiveError(HvdkitError, ValueError):
    """Ranks called a collective with arguments that do not fit together."""


class CheckpointError(HvdkitError, RuntimeError):
    """A checkpoint is missing, damaged, or does not fit this run."""


class BuildError(HvdkitError, RuntimeError):
    """Building Horovod failed, or the machine lacks what the build needs."""


class RankFailedError(HvdkitError, RuntimeError):
    """Another rank of the job failed, left early, or fell silent."""
