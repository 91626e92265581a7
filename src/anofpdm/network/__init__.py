"""The network that predicts noise, and how it is trained and kept. It knows nothing of anomalies."""
