"""Production logs compared with their simulation: errors of predictions, causes of errors, corrections."""
