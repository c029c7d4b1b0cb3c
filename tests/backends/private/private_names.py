"""The names that frameworks and Horovod do not promise to keep, and that hvdkit leans on: one table.

``test_private_names.py`` looks for each of them in the installed version, and refuses one in hvdkit that is not here.
"""

from __future__ import annotations

from dataclasses import dataclass

RATES = "hvdkit/keras_common/rates/driven_rates.py"
FIT_DATASET = "hvdkit/keras/fit_dataset.py"
TF_ORDERS = "hvdkit/keras_common/data/order_checks.py"
VERSIONS = "hvdkit/keras_common/compat.py"
JAX_DEVICES = "hvdkit/keras_common/jax_devices.py"
WRAPPING = "hvdkit/keras_common/gradients/torch_wrapping.py"
HOST_STATE = "hvdkit/torch/graphs/host_state.py"
OBSTACLES = "hvdkit/torch/graphs/obstacles.py"
RECORDINGS = "hvdkit/torch/graphs/recordings.py"
BATCH_NORM = "hvdkit/torch/batch_norm.py"
HOROVOD = "hvdkit/engines/horovod/engine.py"
TORCH_HOROVOD = "hvdkit/engines/horovod/torch_channel.py"
HOROVOD_INFO = "hvdkit/engines/horovod/installed.py"


@dataclass(frozen=True)
class PrivateName:
    """One name.

    Attributes:
        library: Where it is: ``torch``, ``torchmetrics``, ``tf``, ``keras`` (2 and 3), ``horovod torch`` or
            ``horovod tf``. ``keras 2`` is Keras 2 alone, ``keras 3 jax`` is Keras 3 on JAX, ``keras 3.16 torch`` is
            Keras 3 from 3.16 on, on torch.
        name: Dotted, from a module that can be imported; or behind ``:``, from a specimen or a module in front of it.
        file: Of hvdkit, that uses it.
        purpose: What for.
        kind: ``callable``; ``value`` for anything; ``variable`` for what has ``assign``; ``hook`` for a method that an
            optimizer must call in every update, also where an instance has another in its place; ``class`` for a part
            of the specimen's class's name; ``path`` for the end of the path of one of its variables; ``extension`` for
            a compiled one, and ``text`` for what stands in it.
    """

    library: str
    name: str
    file: str
    purpose: str
    kind: str = "callable"

    def __str__(self) -> str:
        return f"{self.library} {self.name}"


TABLE = (
    PrivateName(
        "torchmetrics",
        "summed:_reductions",
        "hvdkit/torch/metric_objects.py",
        "join states by their own rules",
        "value",
    ),
    PrivateName("torch", "torch._foreach_copy_", "hvdkit/torch/gradients/buckets.py", "fill a bucket in one call"),
    PrivateName(
        "torch", "torch._foreach_zero_", "hvdkit/torch/gradients/buckets.py", "empty missing gradients in one call"
    ),
    PrivateName(
        "torch",
        "torch.autograd.Variable._execution_engine.queue_callback",
        "hvdkit/torch/gradients/passes.py",
        "finish the reduction when backward() ends",
    ),
    PrivateName(
        "torch",
        "torch.autograd.function.BackwardCFunction.apply",
        "hvdkit/torch/gradients/passes.py",
        "know a backward inside another",
    ),
    PrivateName(
        "torch", "torch.nn.modules.batchnorm._BatchNorm", BATCH_NORM, "be a BatchNorm layer of torch's for isinstance"
    ),
    *(
        PrivateName("torch", f"torch.nn.{kind}._check_input_dim", BATCH_NORM, "refuse the inputs that torch refuses")
        for kind in ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")
    ),
    PrivateName("torch", "copyreg._reconstructor", BATCH_NORM, "write a pickle that opens without hvdkit"),
    PrivateName(
        "torch",
        "torch.nn.modules.module.register_module_module_registration_hook",
        WRAPPING,
        "see a wrapper as it is put around a model",
    ),
    PrivateName(
        "torch", "compiled:_orig_mod", "hvdkit/torch/tensors.py", "save a compiled model under plain names", "value"
    ),
    PrivateName("torch", "torch._foreach_copy_", RECORDINGS, "bring a batch to a recording in one call"),
    *(
        PrivateName(
            "torch", f"layer:{name}", "hvdkit/torch/graphs/host_state.py", "see what a model is made of", "value"
        )
        for name in ("_buffers", "_modules", "_parameters")
    ),
    *(
        PrivateName("torch", f"layer:{name}", OBSTACLES, "find hooks that a recording would leave out", "value")
        for name in ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
    ),
    *(
        PrivateName("torch", f"stepper:{name}", OBSTACLES, "find hooks that a recording would leave out", "value")
        for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    ),
    *(
        PrivateName("torch", f"scaler:{name}", "hvdkit/torch/precision.py", purpose, "value")
        for name, purpose in (
            ("_scale", "count skipped updates where the scale is"),
            ("_per_optimizer_states", "forget an update that could not be recorded"),
        )
    ),
    PrivateName("tf", "shuffled:_inputs", TF_ORDERS, "look at what a data set is made of"),
    PrivateName("tf", "shuffled:_seed", TF_ORDERS, "find a shuffle without a seed", "value"),
    PrivateName("tf", "shuffled:_seed2", TF_ORDERS, "find a shuffle without a seed", "value"),
    PrivateName("tf", "shuffled:Shuffle", TF_ORDERS, "find a shuffle before the shard", "class"),
    PrivateName("tf", "repeated:Repeat", TF_ORDERS, "find a repetition before the shard", "class"),
    PrivateName("tf", "batched:Batch", TF_ORDERS, "find batches before the shard", "class"),
    PrivateName("tf", "drawn:_seed", TF_ORDERS, "compare seeds between ranks", "value"),
    PrivateName("tf", "drawn:_seed2", TF_ORDERS, "compare seeds between ranks", "value"),
    PrivateName("tf", "drawn:Random", TF_ORDERS, "find what draws at random before the shard", "class"),
    PrivateName("tf", "sharded:_num_shards", TF_ORDERS, "compare shards between ranks", "value"),
    PrivateName("tf", "sharded:_index", TF_ORDERS, "compare shards between ranks", "value"),
    PrivateName("tf", "sharded:Shard", TF_ORDERS, "find a shard before the shard", "class"),
    PrivateName("tf", "mapped:_deterministic", TF_ORDERS, "find an order that changes from run to run", "value"),
    PrivateName("tf", "flattened:_functions", TF_ORDERS, "look into data sets that functions make"),
    PrivateName("tf", "flattened:FlatMap", TF_ORDERS, "know what makes single samples", "class"),
    PrivateName("tf", "unbatched:Unbatch", TF_ORDERS, "know what makes single samples", "class"),
    PrivateName("tf", "interleaved:Interleave", TF_ORDERS, "know what makes single samples", "class"),
    PrivateName("tf", "chosen:DirectedInterleave", TF_ORDERS, "know what chooses among data sets", "class"),
    PrivateName("tf", "bucketed:GroupByWindow", TF_ORDERS, "find batches before the shard", "class"),
    PrivateName("tf", "batched:_variant_tensor", FIT_DATASET, "be a data set that knows its plan", "value"),
    PrivateName("tf", "batched:_inputs", FIT_DATASET, "be a data set that knows its plan"),
    PrivateName(
        "tf",
        "tensorflow.python.ops.control_flow_util.GraphOrParentsInXlaContext",
        "hvdkit/keras_common/gradients/tf_gradients.py",
        "refuse a function that XLA compiles",
    ),
    PrivateName(
        "tf",
        "tensorflow.python.eager.context.global_seed",
        "hvdkit/keras_common/random_state.py",
        "give each rank its own random numbers",
    ),
    PrivateName("keras", "sgd:_clip_gradients", VERSIONS, "reduce gradients once per update, before clipping", "hook"),
    PrivateName("keras", "sgd:_learning_rate", VERSIONS, "find the variable of the learning rate", "variable"),
    PrivateName("keras", "scheduled:_learning_rate", VERSIONS, "find a schedule object"),
    PrivateName(
        "keras",
        "sgd:momentums",
        "hvdkit/keras_common/optimizers.py",
        "scale momentum along with the learning rate",
        "value",
    ),
    PrivateName(
        "keras", "model:_flatten_layers", "hvdkit/tools/verification/keras_view.py", "see layers inside of layers, too"
    ),
    PrivateName(
        "keras", "model:_flatten_layers", "hvdkit/tools/verification/keras_tf_random.py", "find generators in layers"
    ),
    PrivateName(
        "keras",
        "model:_flatten_layers",
        "hvdkit/tools/verification/keras_arguments.py",
        "see what layers are made with",
    ),
    *(
        PrivateName(
            "tf",
            f"tensorflow.python.ops.gen_random_ops.{name}",
            "hvdkit/tools/verification/keras_tf_random.py",
            "draw random numbers from a state that can be set",
        )
        for name in (
            "random_standard_normal",
            "random_uniform",
            "random_uniform_int",
            "truncated_normal",
            "random_shuffle",
            "multinomial",
        )
    ),
    PrivateName("keras 3", "sgd:_backend_update_step", VERSIONS, "change gradients after clipping", "hook"),
    PrivateName(
        "keras 3",
        "keras.optimizers.Optimizer._backend_apply_gradients",
        VERSIONS,
        "tell optimizers that apply gradients in their own way",
    ),
    PrivateName("keras 3", "sgd:_trainable_variables", VERSIONS, "know what gradients belong to", "value"),
    PrivateName(
        "keras 3",
        "sgd:_trainable_variables",
        "hvdkit/tools/verification/scripts/keras_watch.py",
        "know what a script's optimizer trains",
        "value",
    ),
    PrivateName(
        "keras 3",
        "keras.src.backend.common.masking.get_keras_mask",
        VERSIONS,
        "count the entries that a loss divides by",
    ),
    PrivateName(
        "keras 3", "keras.src.backend.common.masking.set_keras_mask", VERSIONS, "take the loss of a part of a batch"
    ),
    PrivateName("keras 3", "model:_loss_tracker.update_state", VERSIONS, "weight the loss that fit shows"),
    PrivateName("keras 3", "sgd:_get_current_learning_rate", RATES, "let JAX read the rate from a table", "hook"),
    PrivateName(
        "keras 3",
        "keras.src.backend.common.stateless_scope.in_stateless_scope",
        RATES,
        "tell a step under way from a look at the rate between steps",
    ),
    PrivateName(
        "keras 3",
        "keras.src.backend.common.global_state.get_global_attribute",
        VERSIONS,
        "give each rank its own numbers of keras.random",
    ),
    PrivateName("keras 3", "model:seed_generator_state", VERSIONS, "leave random states each rank's own", "path"),
    PrivateName(
        "keras 3.16 torch",
        "model:ddp_model",
        WRAPPING,
        "keep Keras from wrapping a model whose gradients hvdkit reduces",
        "value",
    ),
    PrivateName(
        "keras 3 jax",
        "jax._src.xla_bridge.backends_are_initialized",
        JAX_DEVICES,
        "show JAX one GPU before it starts on all",
    ),
    PrivateName("keras 2", "sgd:_internal_apply_gradients", VERSIONS, "change gradients after clipping", "hook"),
    PrivateName("keras 2", "masked:_keras_mask", VERSIONS, "count the entries that a loss divides by", "value"),
    PrivateName("keras 2", "model:compiled_loss._total_loss_mean.update_state", VERSIONS, "weight the loss of fit"),
    *(
        PrivateName("keras 2", f"scaling:_loss_scale.{name}", VERSIONS, "keep the loss scale in files", "variable")
        for name in ("current_loss_scale", "counter")
    ),
    *(
        PrivateName("horovod torch", f"horovod.torch.{name}", TORCH_HOROVOD, "move gradients")
        for name in ("allreduce_async_", "allgather_async", "alltoall_async")
    ),
    *(
        PrivateName("horovod torch", f"horovod.torch.{name}", HOROVOD, "move arrays")
        for name in ("allreduce_async", "allgather_async", "broadcast_async", "alltoall_async")
    ),
    *(
        PrivateName("horovod torch", f"horovod.torch.{name}", HOROVOD, "wait without holding the interpreter's lock")
        for name in ("poll", "synchronize")
    ),
    *(
        PrivateName("horovod torch", f"horovod.torch.{name}", file, "name the operation", "value")
        for file, names in ((HOROVOD, ("Sum", "Min", "Max")), (TORCH_HOROVOD, ("Average", "Adasum")))
        for name in names
    ),
    *(
        PrivateName("horovod tf", f"horovod.tensorflow.{name}", HOROVOD, "move arrays and gradients")
        for name in ("allreduce", "allgather", "broadcast", "alltoall")
    ),
    *(
        PrivateName("horovod tf", f"horovod.tensorflow.{name}", HOROVOD, "place the ranks on nodes")
        for name in ("local_rank", "local_size", "cross_rank", "cross_size")
    ),
    *(
        PrivateName("horovod tf", f"horovod.tensorflow.{name}", HOROVOD, "name the operation", "value")
        for name in ("Sum", "Min", "Max")
    ),
    PrivateName(
        "horovod torch", "horovod.torch.mpi_lib_v2", HOROVOD_INFO, "see that it was built for torch", "extension"
    ),
    PrivateName(
        "horovod tf", "horovod.tensorflow.mpi_lib", HOROVOD_INFO, "see that it was built for TensorFlow", "extension"
    ),
    *(
        PrivateName(
            "horovod torch", f"horovod.torch.mpi_lib_v2:{name}", HOROVOD, "not wait for its cycle on GPUs", "text"
        )
        for name in ("HOROVOD_CYCLE_TIME", "HOROVOD_ENABLE_ASYNC_COMPLETION")
    ),
)
