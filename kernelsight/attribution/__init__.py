"""Production logs beside their simulation: what was predicted, why it differs, and what follows for later predictions."""
