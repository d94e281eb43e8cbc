"""Watch EncoderModels and their children, and reconcile each EncoderModel."""
