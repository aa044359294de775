"""Production logs beside their simulation: what was predicted, why it differs, and what corrects it."""
