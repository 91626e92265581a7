"""The network that predicts noise: architecture, training, files. Independent of anomaly detection."""
