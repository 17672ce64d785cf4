"""The bundled model, and how it is made."""
