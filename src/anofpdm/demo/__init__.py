"""The bundled models on phantoms."""
