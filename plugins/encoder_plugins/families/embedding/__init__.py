"""What plugins for one vector per text share: sentence-transformers' format, tokens, requests, answers, reference and parity."""
