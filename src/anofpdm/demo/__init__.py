"""The bundled models on synthetic brains."""
