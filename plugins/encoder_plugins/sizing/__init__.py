"""What one GPU serves: a cost model with fitted coefficients, and the answers that `encoder-plugins size` computes from it."""
