"""The convolutional autoencoder: pictures, training, scoring, metrics. Knows no page."""
