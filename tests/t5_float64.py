"""Hugging Face's T5 in NumPy and float64: what their float32 arrays and ours are both measured against."""

import math

import numpy as np

# Longest distances that have a bucket of their own, and buckets of one direction, of tables with 32 buckets.
_MAX_DISTANCE = 128


class Float64T5:
    """A T5 1.0 (ReLU, tied and scaled logits) or 1.1 (gated GELU, unscaled) of two heads."""

    def __init__(self, weights, *, layers, gated):
        self._weights = {name: array.astype(np.float64) for name, array in weights.items()}
        self._layers, self._gated = layers, gated

    def encode(self, source):
        """Source [B, Ls] → [B, Ls, E]."""
        unseen = np.where(source == 0, -np.inf, 0.0)[:, None, None]
        bias = self._positions("encoder", source.shape[1], both_ways=True) + unseen
        x = self._weights["shared.weight"][source]
        for index in range(self._layers):
            at = f"encoder.block.{index}.layer"
            normed = self._norm(x, f"{at}.0.layer_norm")
            x = x + self._attention(normed, normed, bias, f"{at}.0.SelfAttention")
            x = x + self._feed(self._norm(x, f"{at}.1.layer_norm"), f"{at}.1.DenseReluDense")
        return self._norm(x, "encoder.final_layer_norm")

    def logits(self, source, target):
        """Source [B, Ls], decoder input [B, Lt] → [B, Lt, V]."""
        encoded = self.encode(source)
        length = target.shape[1]
        later = np.where(np.arange(length) > np.arange(length)[:, None], -np.inf, 0.0)
        bias = self._positions("decoder", length, both_ways=False) + later
        unseen = np.where(source == 0, -np.inf, 0.0)[:, None, None]
        x = self._weights["shared.weight"][target]
        for index in range(self._layers):
            at = f"decoder.block.{index}.layer"
            normed = self._norm(x, f"{at}.0.layer_norm")
            x = x + self._attention(normed, normed, bias, f"{at}.0.SelfAttention")
            normed = self._norm(x, f"{at}.1.layer_norm")
            x = x + self._attention(normed, encoded, unseen, f"{at}.1.EncDecAttention")
            x = x + self._feed(self._norm(x, f"{at}.2.layer_norm"), f"{at}.2.DenseReluDense")
        x = self._norm(x, "decoder.final_layer_norm")
        # 1.1's golden model has a head of its own, which holds the same table.
        table = self._weights["shared.weight"]
        return x @ table.T if self._gated else x @ table.T / math.sqrt(table.shape[1])

    def log_probabilities(self, source, target):
        """Of each token of the target [B, Lt], from a start token of 0 on: [B, Lt]."""
        logits = self.logits(source, np.pad(target[:, :-1], ((0, 0), (1, 0))))
        log_z = np.log(np.exp(logits).sum(-1))
        return np.take_along_axis(logits, target[..., None], -1)[..., 0] - log_z

    def _norm(self, x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * self._weights[f"{name}.weight"]

    def _attention(self, x, memory, bias, name):
        def heads(of, letter):
            projected = of @ self._weights[f"{name}.{letter}.weight"].T
            return projected.reshape(*of.shape[:2], 2, -1).transpose(0, 2, 1, 3)

        logits = heads(x, "q") @ heads(memory, "k").swapaxes(-1, -2) + bias
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        mixed = weights / weights.sum(-1, keepdims=True) @ heads(memory, "v")
        return mixed.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1) @ self._weights[f"{name}.o.weight"].T

    def _feed(self, x, name):
        def times(of, letter):
            return of @ self._weights[f"{name}.{letter}.weight"].T

        if not self._gated:
            return times(np.maximum(times(x, "wi"), 0.0), "wo")
        gate = times(x, "wi_0")
        gelu = 0.5 * gate * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (gate + 0.044715 * gate**3)))
        return times(gelu * times(x, "wi_1"), "wo")

    def _positions(self, stack, length, *, both_ways):
        table = self._weights[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        buckets = np.array([[_bucket(key - query, both_ways) for key in range(length)] for query in range(length)])
        return table[buckets].transpose(2, 0, 1)[None]


def _bucket(distance, both_ways):
    count, first = (16, 16 * (distance > 0)) if both_ways else (32, 0)
    distance = abs(distance) if both_ways else max(0, -distance)
    near = count // 2
    if distance < near:
        return first + distance
    far = near + int(math.log(distance / near) / math.log(_MAX_DISTANCE / near) * (count - near))
    return first + min(far, count - 1)
