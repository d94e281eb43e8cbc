"""What the GLiNER plugins share: words, prompts, payload, decoding, and everything else that no trunk decides."""
