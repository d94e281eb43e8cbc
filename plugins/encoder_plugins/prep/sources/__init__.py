"""Where checkpoints are downloaded from."""
