"""What several plugins of one kind share."""
