"""What stands behind an encoder in the engine: token rows of a whole batch in, one small tensor per request out."""
