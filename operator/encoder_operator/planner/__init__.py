"""Decide what to do about an EncoderModel. Pure functions: state in, plan out."""
