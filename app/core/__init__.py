"""The machine and TensorFlow's place on it. Knows no model and no page."""
