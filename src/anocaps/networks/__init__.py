"""Plain torch modules that know nothing of anomalies."""
