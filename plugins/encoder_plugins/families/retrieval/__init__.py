"""What the retrieval plugins share: prompts, tokens, projections, rows, scores, and everything else that does not depend on the encoder."""
