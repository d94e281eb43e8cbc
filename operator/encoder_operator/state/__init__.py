"""Read and parse the state of an EncoderModel: its spec, its children and what they report."""
