"""What the GLiNER plugins share: words, prompts, payload, decoding, and everything else that does not depend on the encoder."""
