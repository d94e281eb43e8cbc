"""The span head in plain PyTorch: what CPUs run, and what the kernel is tested against."""

from __future__ import annotations

import torch

# start words that are scored at once: their spans' activations (words * max_width * inner) stay in the processor's cache
_WORDS = 32


def dense(
    start: torch.Tensor, end: torch.Tensor, label: torch.Tensor, label_bias: torch.Tensor, max_width: int
) -> torch.Tensor:
    """Return `[words, max_width, labels]`; arguments as in ``span_logits``."""
    words = start.shape[0]
    exact = torch.float64 if start.dtype == torch.float64 else torch.float32
    logits = torch.full((words, max_width, label.shape[0]), float("-inf"), dtype=exact, device=start.device)
    weight = label.to(exact).t()
    for first in range(0, words, _WORDS):
        last = min(first + _WORDS, words)
        # rows past the request's last word are computed from its last word, and not kept
        ends = torch.arange(first, last, device=start.device)[:, None] + torch.arange(max_width, device=start.device)
        inside = ends < words
        activations = (start[first:last, None].to(exact) + end[ends.clamp(max=words - 1)].to(exact)).relu_()
        scores = torch.addmm(label_bias.to(exact), activations.flatten(0, 1), weight).view(last - first, max_width, -1)
        logits[first:last] = scores.masked_fill_(~inside[:, :, None], float("-inf"))
    return logits


def candidates(
    arguments: tuple[torch.Tensor, ...], max_width: int, results: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> None:
    """Write the candidates of every request to ``results``; arguments as in ``span_scores``, in its order."""
    start, end, label, label_bias, word_offsets, label_offsets, thresholds = arguments
    counts, spans, logits = results
    capacity = spans.shape[1]
    words, labels = word_offsets.tolist(), label_offsets.tolist()
    for request in range(len(words) - 1):
        word, name = slice(words[request], words[request + 1]), slice(labels[request], labels[request + 1])
        scores = dense(start[word], end[word], label[name], label_bias[name], max_width)
        inside = torch.arange(scores.shape[0], device=start.device)[:, None] + torch.arange(
            max_width, device=start.device
        )
        # minus infinity as a threshold takes every span that exists, and none that does not
        above = (scores >= thresholds[request]) & (inside < scores.shape[0])[:, :, None]
        found = above.nonzero()
        counts[request] = len(found)
        kept = found[:capacity]
        spans[request, : len(kept)] = kept.to(torch.int32)
        logits[request, : len(kept)] = scores[kept[:, 0], kept[:, 1], kept[:, 2]].float()
