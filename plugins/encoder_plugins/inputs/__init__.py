"""What requests of several plugins have in common: bodies, texts, and the encodings of arrays."""
