"""The commands of `encoder-operator`."""
