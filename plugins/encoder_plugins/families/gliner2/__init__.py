"""What a GLiNER2 plugin consists of: schemas, prompts, the heads, decoding and parity."""
