"""What turns an encoder's rows into counts, candidate spans and the logits of labels."""
