"""What plugins for retrieval share: prompts, and the Dense modules behind an encoder."""
