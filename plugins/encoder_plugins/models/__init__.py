"""One folder per encoder family; ``encoder_plugins.catalog`` finds them."""
