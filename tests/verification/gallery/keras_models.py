"""Small nets and data for the galleries of tf and keras."""

from __future__ import annotations

from typing import Any

import numpy as np

import hvdkit

SEED = 11


def random(seed: int = 3) -> Any:
    return np.random.default_rng(seed)


def pair(x: Any, y: Any, count: int = 30) -> hvdkit.Data:
    """Return arrays, or trees of them, of which those behind ``count`` are for validation."""
    from hvdkit.recipe.trees import map_tree

    return hvdkit.Data(
        train=tuple(map_tree(lambda array: array[:count], side) for side in (x, y)),
        validation=tuple(map_tree(lambda array: array[count:], side) for side in (x, y)),
    )


def images(count: int = 41) -> hvdkit.Data:
    drawn = random()
    x = drawn.normal(size=(count, 8, 8, 3)).astype(np.float32)
    return pair(x, (x[:, :4].mean((1, 2, 3)) > 0).astype(np.int64) + (x[:, 0, 0, 0] > 1))


def texts(count: int = 41, words: int = 12, length: int = 6) -> hvdkit.Data:
    tokens = random().integers(0, words, (count, length))
    return pair(tokens.astype(np.int32), (tokens[:, 0] > tokens[:, -1]).astype(np.int64))


def one_hot_texts() -> hvdkit.Data:
    data = texts()
    labels = np.eye(2, dtype=np.float32)
    return hvdkit.Data(*((x, labels[y]) for x, y in (data.train, data.validation)))


def next_words() -> hvdkit.Data:
    tokens = texts(41, 9, 7).train[0]
    return pair(tokens[:, :-1], tokens[:, 1:].astype(np.int64), 26)


def flat(count: int = 41, features: int = 6) -> hvdkit.Data:
    x = random().normal(size=(count, features)).astype(np.float32)
    return pair(x, (np.abs(x[:, 0]) + x[:, 1] > 0.5).astype(np.int64) + (x[:, 2] > 0.8))


def binary() -> hvdkit.Data:
    x = flat().train[0]
    return pair(x, (x[:, :1] > 0.4).astype(np.float32), 25)


def pixels() -> hvdkit.Data:
    x = random().random((41, 10)).astype(np.float32)
    return pair(x, x)


def tables() -> hvdkit.Data:
    drawn = random()
    x = {
        "numbers": drawn.normal(size=(44, 4)).astype(np.float32),
        "codes": drawn.integers(0, 5, (44, 1)).astype(np.int32),
    }
    return pair(x, (x["numbers"].sum(1, keepdims=True) + x["codes"]).astype(np.float32), 37)


def boxes() -> hvdkit.Data:
    """Return images with a class and a box, as a detector has them."""
    data = images()
    return hvdkit.Data(
        *(
            (x, {"kind": y, "box": np.stack([x[:, 0, 0, 0], x[:, 1, 1, 1]], 1)})
            for x, y in (data.train, data.validation)
        )
    )


def layers() -> Any:
    import keras

    return keras.layers


def is_keras3() -> bool:
    import keras

    return hasattr(keras, "ops")


def convolutions() -> Any:
    import keras

    of, inputs = layers(), keras.Input((8, 8, 3))
    x = of.RandomFlip("horizontal", seed=SEED)(inputs)
    x = of.GaussianNoise(0.1)(x)
    x = of.Conv2D(6, 3, activation="relu")(x)
    x = of.BatchNormalization()(x)
    x = of.SpatialDropout2D(0.2)(x)
    x = of.Conv2D(6, 3)(of.MaxPooling2D()(x))
    x = of.GaussianDropout(0.1)(of.Flatten()(x))
    return keras.Model(inputs, of.Dense(3)(of.Dropout(0.3)(x)))


def recurrent() -> Any:
    import keras

    of = layers()
    return keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            of.Embedding(12, 5),
            of.Bidirectional(of.LSTM(4, dropout=0.2, recurrent_dropout=0.2, return_sequences=True)),
            of.GRU(4, dropout=0.3, recurrent_dropout=0.1, reset_after=False),
            of.Dense(2),
        ]
    )


def transformer() -> Any:
    import keras

    of, inputs = layers(), keras.Input((6,), dtype="int32")
    x = of.Embedding(12, 8)(inputs)
    attended = of.MultiHeadAttention(2, 4, dropout=0.2)(x, x)
    x = of.LayerNormalization()(x + of.Dropout(0.1)(attended))
    forward = of.Dense(8)(of.Dense(12, activation="gelu")(x))
    x = of.LayerNormalization()(x + of.Dropout(0.1)(forward))
    return keras.Model(inputs, of.Dense(2)(of.GlobalAveragePooling1D()(x)))


def tied(built: bool = False) -> Any:
    """Return a net whose words and whose logits have one matrix, built by its first batch if it is not yet."""
    import keras

    class Tied(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.words = layers().Embedding(9, 6)
            self.inner = layers().Dense(6, activation="tanh")

        def call(self, tokens: Any, training: Any = None) -> Any:
            x = self.inner(self.words(tokens))
            if not is_keras3():
                import tensorflow as tf

                return tf.einsum("btd,wd->btw", x, tf.convert_to_tensor(self.words.embeddings))
            return keras.ops.einsum("btd,wd->btw", x, keras.ops.convert_to_tensor(self.words.embeddings))

    model = Tied()
    if built:
        model(np.zeros((1, 6), np.int32))
    return model


def frozen() -> Any:
    """Return two towers with layers of one name each, of which the lower parts are not trained."""
    import keras

    of, inputs = layers(), keras.Input((6,))

    def tower() -> Any:
        parts = [
            keras.Input((6,)),
            of.Dense(5, name="lower", trainable=False),
            of.BatchNormalization(name="norm", trainable=False),
        ]
        penalty = keras.regularizers.L2(0.01)
        return keras.Sequential([*parts, of.Dense(4, activation="relu", kernel_regularizer=penalty, name="upper")])

    return keras.Model(inputs, of.Dense(3)(of.Concatenate()([tower()(inputs), tower()(inputs)])))


def vae(plain: bool = False) -> Any:
    """Return a variational autoencoder whose code is drawn at random, by TensorFlow alone if ``plain``."""
    import keras

    class Draw(layers().Layer):
        def __init__(self) -> None:
            super().__init__()
            if not plain:
                self.seeds = keras.random.SeedGenerator(SEED)

        def call(self, both: Any) -> Any:
            if plain:
                import tensorflow as tf

                mean, log_variance = tf.split(both, 2, -1)
                extra = tf.square(mean) + tf.exp(log_variance) - log_variance - 1.0
                self.add_loss(0.01 * tf.reduce_mean(extra))
                return mean + tf.exp(log_variance / 2) * tf.random.normal(tf.shape(mean), dtype=mean.dtype)
            ops = keras.ops
            mean, log_variance = ops.split(both, 2, -1)
            self.add_loss(0.01 * ops.mean(ops.square(mean) + ops.exp(log_variance) - log_variance - 1.0))
            drawn = keras.random.normal(ops.shape(mean), dtype=mean.dtype, seed=self.seeds)
            return mean + ops.exp(log_variance / 2) * drawn

    of, inputs = layers(), keras.Input((10,))
    code = Draw()(of.Dense(6)(of.Dense(8, activation="relu")(inputs)))
    return keras.Model(inputs, of.Dense(10, activation="sigmoid")(of.Dense(8, activation="relu")(code)))


def regression() -> Any:
    import keras

    of = layers()
    inputs = {"numbers": keras.Input((4,), name="numbers"), "codes": keras.Input((1,), dtype="int32", name="codes")}
    codes = of.Flatten()(of.Embedding(5, 3)(inputs["codes"]))
    x = of.Dense(6, activation="relu")(of.Concatenate()([inputs["numbers"], codes]))
    return keras.Model(inputs, of.Dense(1)(x))


def detector() -> Any:
    import keras

    of, inputs = layers(), keras.Input((8, 8, 3))
    x = of.Flatten()(of.Conv2D(4, 3, activation="relu")(inputs))
    return keras.Model(inputs, {"kind": of.Dense(3, name="kind")(x), "box": of.Dense(2, name="box")(x)})


def dense(outputs: int = 3, ending: str | None = None) -> Any:
    import keras

    of = layers()
    return keras.Sequential([keras.Input((6,)), of.Dense(7, activation="tanh"), of.Dense(outputs, activation=ending)])


def tagged() -> hvdkit.Data:
    """Return sentences of several lengths with a tag for each word; 0 fills them up."""
    tokens = texts().train[0].copy()
    tokens[np.arange(6) >= random().integers(2, 7, (len(tokens), 1))] = 0
    return pair(tokens, (tokens % 3).astype(np.int64), 22)


def tagger() -> Any:
    import keras

    of = layers()
    words = of.Embedding(12, 5, mask_zero=True)
    return keras.Sequential(
        [keras.Input((6,), dtype="int32"), words, of.LSTM(4, return_sequences=True, dropout=0.2), of.Dense(3)]
    )
